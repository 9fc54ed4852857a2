"""What people do with models of transformers, done with these: Trainer, LoRA, pipelines, copies, the wheel."""

from __future__ import annotations

import copy
import importlib.util
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from mixlab import MixlabError
from mixlab.modeling.inputs import IGNORED
from tests.modeling.tiny import answer, archs_for, archs_with, blocks, every_task, inputs_for, small_presets, tasks_of, tiny

TEXT_ARCHS = archs_for("masked-lm")
EVERY_TEXT_ARCH = pytest.mark.parametrize("arch", TEXT_ARCHS)
MASKS = {arch: next(iter(small_presets(arch).values())).traits.masks for arch in TEXT_ARCHS}
HIDES_PADDING = pytest.mark.parametrize("arch", [arch for arch, masks in MASKS.items() if masks])
READS_PADDING = pytest.mark.parametrize("arch", [arch for arch, masks in MASKS.items() if not masks])
EVERY_TASK = pytest.mark.parametrize(("arch", "task"), every_task())
ROOT = Path(__file__).parents[2]
WORDS = ["the", "quick", "brown", "fox", "a", "lazy", "dog", "while", "seven", "clever", "cats", "watch", "from", "their", "window"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special + WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, model_max_length=24, **names)


# --- Trainer ---------------------------------------------------------------------------------------------------------


def masked_examples(count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """Texts with labels on some tokens; how many differs from text to text."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for i in range(count):
        ids = torch.randint(5, 48, (16,), generator=generator)
        labelled = torch.zeros(16, dtype=torch.bool)
        labelled[: 1 + i % 5] = True
        examples.append({"input_ids": ids.masked_fill(labelled, 4), "labels": ids.masked_fill(~labelled, IGNORED)})
    return examples


def classified_examples(count: int) -> list[dict[str, Any]]:
    return [{"input_ids": example["input_ids"], "labels": i % 3} for i, example in enumerate(masked_examples(count))]


def train(model: Any, data: list[dict[str, Any]], folder: Path, **options: Any) -> Trainer:
    defaults = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1, "seed": 3}
    silent = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "dataloader_pin_memory": False}
    trainer = Trainer(model, TrainingArguments(str(folder), **{**defaults, **silent, **options}), train_dataset=data)
    trainer.train()
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@EVERY_TEXT_ARCH
@pytest.mark.parametrize("task", ["masked-lm", "sequence-classification", "causal-lm"])
def test_trainer_trains(arch: str, task: str, tmp_path: Path) -> None:
    if task not in tasks_of(arch):
        pytest.skip(f"{arch} does not declare {task}")
    model = tiny(arch, task, scale=0.02, **({"num_labels": 3} if task == "sequence-classification" else {}))
    before = copy.deepcopy(model.state_dict())
    data = classified_examples(12) if task == "sequence-classification" else masked_examples(12)
    trainer = train(model, data, tmp_path)
    assert len(losses(trainer)) == 3
    assert all(torch.tensor(losses(trainer)).isfinite())
    assert [name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])] == []


@EVERY_TEXT_ARCH
@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
def test_accumulation_is_a_larger_batch(arch: str, task: str, tmp_path: Path) -> None:
    """Because the heads divide by the labels of the whole accumulated batch, not of each part of it."""
    if task not in tasks_of(arch):
        pytest.skip(f"{arch} does not declare {task}")
    trained = []
    for batch, parts in ((8, 1), (4, 2), (2, 4)):
        model = tiny(arch, task, scale=0.02)
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": parts, "optim": "sgd", "max_grad_norm": 0.0}
        trained.append((losses(train(model, masked_examples(24), tmp_path, **options)), model.state_dict()))
    (whole, weights), *others = trained
    for parts_losses, parts_weights in others:
        assert parts_losses == pytest.approx(whole, abs=1e-4)
        for name, tensor in weights.items():
            torch.testing.assert_close(parts_weights[name], tensor, atol=1e-6, rtol=1e-4)


@EVERY_TEXT_ARCH
def test_gradient_checkpointing_changes_nothing(arch: str, tmp_path: Path) -> None:
    plain, saving = (
        train(tiny(arch, scale=0.02), masked_examples(12), tmp_path, gradient_checkpointing=on, optim="sgd") for on in (False, True)
    )
    assert losses(plain) == pytest.approx(losses(saving), abs=1e-5)
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(saving.model.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)


def test_trainer_saves_and_resumes(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = train(tiny("gmlp", scale=0.02), masked_examples(16), tmp_path, **saving)
    again = Trainer(tiny("gmlp", seed=9), whole.args, train_dataset=masked_examples(16))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], tensor, atol=1e-6, rtol=0)


@EVERY_TEXT_ARCH
@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
def test_labelled_logits_only_is_the_same_loss(arch: str, task: str) -> None:
    if task not in tasks_of(arch):
        pytest.skip(f"{arch} does not declare {task}")
    examples = masked_examples(6)
    batch = {name: torch.stack([example[name] for example in examples]) for name in examples[0]}
    full, few = tiny(arch, task), tiny(arch, task, labelled_logits_only=True)
    outputs = [model(**batch) for model in (full, few)]
    assert abs(float((outputs[0].loss - outputs[1].loss).detach())) < 1e-6
    labelled = batch["labels"] != IGNORED
    if task == "causal-lm":  # a token is scored by what it says of the next one
        labelled = torch.cat([labelled[:, 1:], torch.zeros_like(labelled[:, :1])], dim=1)
    assert outputs[1].logits.shape == (int(labelled.sum()), full.config.vocab_size)
    torch.testing.assert_close(outputs[1].logits, outputs[0].logits[labelled], atol=1e-6, rtol=1e-5)
    for output in outputs:
        output.loss.backward()
    for (name, a), b in zip(full.named_parameters(), few.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, atol=1e-6, rtol=1e-5, msg=name)
    assert few(batch["input_ids"]).logits.shape == (*batch["input_ids"].shape, full.config.vocab_size)


def test_a_batch_without_a_label_has_loss_zero() -> None:
    for only in (False, True):
        model = tiny("gmlp", labelled_logits_only=only)
        loss = model(torch.randint(5, 40, (2, 6)), labels=torch.full((2, 6), IGNORED)).loss
        loss.backward()
        assert float(loss.detach()) == 0
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# --- LoRA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [arch for arch in TEXT_ARCHS if hasattr(blocks(tiny(arch))[0], "U")])
def test_lora_trains_and_merges(arch: str, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    base = tiny(arch)
    inputs, before = inputs_for(base), answer(base)
    model = get_peft_model(copy.deepcopy(base), LoraConfig(r=4, target_modules=["U", "V"]))
    assert {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, p in model.named_parameters() if p.requires_grad} == {"U", "V"}
    torch.testing.assert_close(answer(model, inputs), before)  # LoRA begins as nothing
    trainer = train(model, masked_examples(12), tmp_path / "run")
    assert all(torch.tensor(losses(trainer)).isfinite())
    model = model.eval()
    trained = answer(model, inputs)
    assert (trained - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").eval()
    torch.testing.assert_close(answer(again, inputs), trained, atol=1e-6, rtol=0)
    merged = model.merge_and_unload()
    assert type(merged) is type(base)
    torch.testing.assert_close(answer(merged, inputs), trained, atol=1e-5, rtol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(answer(type(base).from_pretrained(tmp_path / "merged"), inputs), answer(merged, inputs))


# --- Pipelines -------------------------------------------------------------------------------------------------------

SENTENCE = "the quick brown fox"


def local(arch: str, task: str, tokenizer: Any, folder: Path, **settings: Any) -> str:
    tiny(arch, task, pad_token_id=0, **settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@EVERY_TEXT_ARCH
def test_fill_mask(arch: str, tokenizer: Any, tmp_path: Path) -> None:
    fill = pipeline("fill-mask", local(arch, "masked-lm", tokenizer, tmp_path, vocab_size=len(tokenizer)))
    found = fill("the [MASK] brown fox", top_k=3)
    ids = tokenizer("the [MASK] brown fox", return_tensors="pt")
    with torch.no_grad():
        expected = fill.model(**ids).logits[0, 2].softmax(-1).topk(3)
    assert [entry["token"] for entry in found] == expected.indices.tolist()
    assert [entry["score"] for entry in found] == pytest.approx(expected.values.tolist(), abs=1e-5)


@HIDES_PADDING
@pytest.mark.parametrize("task", ["text-classification", "token-classification", "feature-extraction"])
def test_pipelines_do_not_depend_on_the_batch(arch: str, task: str, tokenizer: Any, tmp_path: Path) -> None:
    names = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    ours = {"text-classification": "sequence-classification", "feature-extraction": "features"}.get(task, task)
    settings = {} if ours == "features" else names
    pipe = pipeline(task, local(arch, ours, tokenizer, tmp_path, vocab_size=len(tokenizer), **settings))
    texts = [SENTENCE, "a lazy dog while seven clever cats watch", "cats"]
    options = {"top_k": None} if task == "text-classification" else {}
    alone, together = [pipe(text, **options) for text in texts], pipe(texts, batch_size=3, **options)
    if task == "feature-extraction":
        for text, one, three in zip(texts, alone, together, strict=True):
            n = len(tokenizer(text)["input_ids"])
            torch.testing.assert_close(torch.tensor(three)[0, :n], torch.tensor(one)[0], atol=1e-5, rtol=0)
        return
    for one, three in zip(alone, together, strict=True):
        key = "label" if task == "text-classification" else "entity"
        assert {entry[key] for entry in one} <= {"bad", "fair", "good"}
        assert [entry[key] for entry in one] == [entry[key] for entry in three]
        assert [entry["score"] for entry in one] == pytest.approx([entry["score"] for entry in three], abs=1e-5)


@READS_PADDING
def test_pipelines_refuse_to_pad_where_padding_would_be_read(arch: str, tokenizer: Any, tmp_path: Path) -> None:
    """One text at a time has an answer, as have texts of equal length."""
    embed = pipeline("feature-extraction", local(arch, "features", tokenizer, tmp_path, vocab_size=len(tokenizer)))
    (alone,), (first, second) = embed(["cats"]), embed(["cats", "cats"], batch_size=2)
    torch.testing.assert_close(torch.tensor([first, second]), torch.tensor([alone, alone]), atol=1e-5, rtol=0)
    with pytest.raises(MixlabError, match="cannot hide padding; batch texts of equal length"):
        embed([SENTENCE, "cats"], batch_size=2)


@HIDES_PADDING
def test_sentence_transformers_load_the_folder(arch: str, tokenizer: Any, tmp_path: Path) -> None:
    """An embedding is the mean over a text's own tokens, alone or padded in a batch."""
    library = pytest.importorskip("sentence_transformers", reason="of the dev extra")
    place = local(arch, "masked-lm", tokenizer, tmp_path, vocab_size=len(tokenizer))
    encoder = library.SentenceTransformer(place, device="cpu")
    texts = [SENTENCE, "cats"]
    found = encoder.encode(texts, convert_to_tensor=True)
    for text, embedding in zip(texts, found, strict=True):
        with torch.no_grad():
            states = AutoModel.from_pretrained(place)(**tokenizer(text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(embedding, states[0].mean(0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("arch", archs_with("causal"))
def test_text_generation(arch: str, tokenizer: Any, tmp_path: Path) -> None:
    place = local(arch, "causal-lm", tokenizer, tmp_path, vocab_size=len(tokenizer), eos_token_id=3)
    write = pipeline("text-generation", place)
    alone = [write(text, max_new_tokens=5, do_sample=False)[0]["generated_text"] for text in (SENTENCE, "cats")]
    together = write([SENTENCE, "cats"], max_new_tokens=5, do_sample=False, batch_size=2)
    assert [entry[0]["generated_text"] for entry in together] == alone
    assert alone[0].startswith(SENTENCE)


@pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="the pipeline needs Pillow, of the dev extra")
@pytest.mark.parametrize("arch", archs_for("image-classification"))
def test_image_classification(arch: str, tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTImageProcessorPil

    model = tiny(arch, "image-classification")
    model.save_pretrained(tmp_path)
    processor = ViTImageProcessorPil(size={"height": model.config.image_size, "width": model.config.image_size})
    processor.save_pretrained(tmp_path)
    image = Image.new("RGB", (30, 20), (200, 30, 90))
    classify = pipeline("image-classification", str(tmp_path), image_processor=processor)
    with torch.no_grad():
        expected = model(**processor(image, return_tensors="pt")).logits.softmax(-1)[0]
    found = classify(image, function_to_apply="softmax", top_k=3)
    assert [entry["score"] for entry in found] == pytest.approx(expected.topk(3).values.tolist(), abs=1e-5)


# --- Copies and packaging --------------------------------------------------------------------------------------------


def saved_by_torch(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model)), "torch.save": saved_by_torch}


@EVERY_TASK
@pytest.mark.parametrize("how", COPIES)
def test_copies_of_a_model(arch: str, task: str, how: str) -> None:
    model = tiny(arch, task)
    again = COPIES[how](model)
    assert type(again) is type(model)
    assert torch.equal(answer(again), answer(model))
    next(again.parameters()).data.zero_()
    assert next(model.parameters()).any()  # nothing is shared


@EVERY_TASK
def test_a_configuration_is_copied_and_pickled(arch: str, task: str) -> None:
    config = tiny(arch, task).config
    assert copy.deepcopy(config).to_dict() == pickle.loads(pickle.dumps(config)).to_dict() == config.to_dict()


@EVERY_TEXT_ARCH
def test_embeddings_can_be_resized(arch: str) -> None:
    """As for added tokens: the head follows, old tokens keep their scores."""
    model = tiny(arch)
    inputs, before = inputs_for(model), answer(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.resize_token_embeddings(60, mean_resizing=False)
    assert model.config.vocab_size == 60
    torch.testing.assert_close(answer(model, inputs)[..., :48], before, atol=1e-6, rtol=0)
    assert model(input_ids=torch.tensor([[59, 3]])).logits.shape[-1] == 60


def test_the_wheel_says_that_it_is_typed() -> None:
    from hatchling.builders.wheel import WheelBuilder

    names = {file.distribution_path.replace("\\", "/") for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"mixlab/py.typed", "mixlab/__init__.py", "mixlab/archs/gmlp.py"} <= names
    assert not any(name.startswith(("tests", ".")) for name in names)
