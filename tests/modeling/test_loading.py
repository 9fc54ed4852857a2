"""Saving and loading: what was saved comes back, and what does not fit is refused in one line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, PreTrainedModel

import mixlab
from mixlab import MixlabError
from mixlab.modeling.auto import model_class, model_classes
from mixlab.modeling.config import FORMAT
from mixlab.modeling.loading import load_config
from mixlab.modeling.tasks import TASK_HEADS
from tests.modeling.tiny import answer, archs_for, every_task, inputs_for, randomise, tiny

EVERY_TASK = pytest.mark.parametrize(("arch", "task"), every_task())
EVERY_HEAD = pytest.mark.parametrize(("arch", "task"), [case for case in every_task() if case.values[1] != "features"])
HEAD_OPTIONS = {task: {"head_transform": True} for task in ("masked-lm", "causal-lm")}
EVERY_ARCH = pytest.mark.parametrize("arch", mixlab.archs())
EVERY_TEXT_ARCH = pytest.mark.parametrize("arch", archs_for("masked-lm"))


def auto_class(task: str) -> Any:
    import transformers

    return getattr(transformers, TASK_HEADS[task].auto_class)


def same_weights(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return a.state_dict().keys() == b.state_dict().keys() and all(torch.equal(t, b.state_dict()[n]) for n, t in a.state_dict().items())


def refusal(load: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(MixlabError) as caught:
        load(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tiny("gmlp").save_pretrained(tmp_path)
    return tmp_path


def rewrite_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# --- Round trips -----------------------------------------------------------------------------------------------------


@EVERY_TASK
def test_what_was_saved_comes_back(arch: str, task: str, tmp_path: Path) -> None:
    model = tiny(arch, task)
    model.save_pretrained(tmp_path)
    again, by_auto = type(model).from_pretrained(tmp_path), auto_class(task).from_pretrained(tmp_path)
    assert type(again) is type(by_auto) is model_class(arch, task)
    assert same_weights(again, model)
    assert same_weights(by_auto, model)
    assert not again.training
    assert torch.equal(answer(again), answer(model))
    assert again.config.to_dict() | {"_name_or_path": ""} == by_auto.config.to_dict() | {"_name_or_path": ""}


@EVERY_ARCH
def test_every_field_of_ours_is_written(arch: str, tmp_path: Path) -> None:
    """A default may change, a checkpoint may not: nothing is left to the defaults of the version that reads it."""
    model = tiny(arch)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    ours = {name for cls in type(model.config).__mro__ if cls.__module__.startswith("mixlab.") for name in inspect.get_annotations(cls)}
    assert ours & {field.name for field in dataclasses.fields(model.config)} <= written.keys()
    assert written["mixlab_format"] == FORMAT
    assert "auto_map" not in written
    assert {path.name for path in tmp_path.iterdir()} <= {"config.json", "model.safetensors", "generation_config.json"}


@EVERY_HEAD
def test_a_backbone_under_a_new_head(arch: str, task: str, tmp_path: Path) -> None:
    """The backbone comes bitwise, the head begins as `_init_weights` says, and the other way round the head is left behind."""
    fresh = tiny(arch, task, scale=0.0)
    backbone = randomise(fresh.model, seed=3)
    backbone.save_pretrained(tmp_path / "backbone")
    model = model_class(arch, task).from_pretrained(tmp_path / "backbone", **({"causal": True} if task == "causal-lm" else {}))
    assert same_weights(model.model, backbone)
    new = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("model.")}
    for name, tensor in new.items():
        if name in model.all_tied_weights_keys:
            assert torch.equal(tensor, model.get_input_embeddings().weight)
        elif name.endswith("bias") or name.startswith("residual."):  # a restored image begins as the image
            assert not tensor.any()
        elif name.endswith("norm.weight"):
            assert bool((tensor == 1).all())
        else:
            assert 0.5 < tensor.std() / model.config.initializer_range < 1.5
    model.save_pretrained(tmp_path / "head")
    assert same_weights(AutoModel.from_pretrained(tmp_path / "head"), backbone)


def test_one_task_into_another(tmp_path: Path) -> None:
    masked = tiny("amlp", head_bias=True, tie_word_embeddings=False, head_transform=True)
    masked.save_pretrained(tmp_path)
    classifier, info = model_class("amlp", "sequence-classification").from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
    assert same_weights(classifier.model, masked.model)
    assert classifier.classifier.weight.shape == (5, 32)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == {"lm_head", "transform"}


@EVERY_ARCH
def test_loaded_weights_survive_initialisation(arch: str, tmp_path: Path) -> None:
    """Every parameter, W and b above all, was moved far from where `_init_weights` puts it."""
    model = tiny(arch, scale=5.0)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert same_weights(again, model)
    again.init_weights()
    assert same_weights(again, model)


@EVERY_TEXT_ARCH
@pytest.mark.parametrize("tied", [True, False])
def test_ties_are_kept(arch: str, tied: bool, tmp_path: Path) -> None:
    model = tiny(arch, "masked-lm", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    again = type(model).from_pretrained(tmp_path)
    assert (again.lm_head.weight is again.get_input_embeddings().weight) is tied
    assert same_weights(again, model)


@EVERY_ARCH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(arch: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny(arch).to(dtype)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors").values()
    assert {tensor.dtype for tensor in stored if tensor.is_floating_point()} == {dtype}  # a batch norm counts its batches
    again = type(model).from_pretrained(tmp_path)
    assert again.dtype == dtype
    assert same_weights(again, model)
    assert torch.equal(answer(again), answer(model))
    full = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    assert full.dtype == torch.float32
    assert all(torch.equal(a, b.float()) for a, b in zip(full.parameters(), model.parameters(), strict=True))


def test_a_new_model_has_the_precision_that_it_is_given() -> None:
    assert mixlab.create("gmlp-tiny", dtype="bfloat16").dtype == torch.bfloat16
    assert mixlab.create("gmlp-tiny").dtype == torch.float32


@EVERY_ARCH
def test_shards(arch: str, tmp_path: Path) -> None:
    model = tiny(arch)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert same_weights(type(model).from_pretrained(tmp_path), model)
    next(iter(sorted(tmp_path.glob("model-*.safetensors")))).unlink()
    refusal(type(model).from_pretrained, tmp_path)


def test_subfolder(tmp_path: Path) -> None:
    model = tiny("gmlp")
    model.save_pretrained(tmp_path / "inner")
    assert same_weights(type(model).from_pretrained(tmp_path, subfolder="inner"), model)


def test_push_to_hub_uploads_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upload is replaced by a copy into a folder; what arrives there loads."""
    uploaded = tmp_path / "hub"

    def upload(self: Any, working_dir: str, repo_id: str, *_: Any, **__: Any) -> str:
        import shutil

        shutil.copytree(working_dir, uploaded / repo_id)
        return repo_id

    monkeypatch.setattr(PreTrainedModel, "_upload_modified_files", upload)
    hub = SimpleNamespace(create_repo=lambda repo_id, **_: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr("transformers.modeling_utils.hf_api", lambda: hub)
    model = tiny("gmlp")
    model.save_pretrained(tmp_path / "local", push_to_hub=False)
    assert not uploaded.exists()
    model.save_pretrained(tmp_path / "pushed", push_to_hub=True, repo_id="someone/tiny")
    assert same_weights(type(model).from_pretrained(uploaded / "someone/tiny"), model)


# --- Auto classes and imports ----------------------------------------------------------------------------------------

AUTO = "from transformers import AutoModelForMaskedLM as Auto"
CONFIG = "from transformers import AutoConfig as Auto"
MASKED, CONFIGURATION = "mixlab.archs.gmlp GMLPForMaskedLM", "mixlab.archs.gmlp GMLPConfig"
SLOW = pytest.mark.slow  # a new interpreter takes seconds
IMPORTS = [  # statements that end in a class named Auto, and the class of what it loads
    pytest.param(f"import mixlab; {AUTO}", MASKED, id="mixlab first"),
    pytest.param(f"{AUTO}; import mixlab", MASKED, id="transformers first"),
    pytest.param(f"import mixlab; {CONFIG}", CONFIGURATION, id="configuration alone"),
    pytest.param(f"{CONFIG}; import mixlab", CONFIGURATION, id="configuration alone, first", marks=SLOW),
    pytest.param(f"{CONFIG}; import mixlab; {AUTO}", MASKED, id="between the two", marks=SLOW),
    pytest.param("import transformers, mixlab; Auto = transformers.AutoModelForMaskedLM", MASKED, id="by the module", marks=SLOW),
    pytest.param(f"import transformers.models.auto.modeling_auto, mixlab; {AUTO}", MASKED, id="after the Auto classes", marks=SLOW),
    pytest.param("from mixlab.archs.gmlp import GMLPForMaskedLM as Auto", MASKED, id="the class itself"),
    pytest.param("import mixlab.archs.gmlp as gmlp; Auto = gmlp.GMLPForMaskedLM", MASKED, id="the module of the class", marks=SLOW),
]


@pytest.mark.parametrize(("imports", "loaded"), IMPORTS)
def test_any_order_of_imports(imports: str, loaded: str, saved: Path) -> None:
    code = f"import sys; {imports}; cls = type(Auto.from_pretrained(sys.argv[1])); print(cls.__module__, cls.__name__)"
    done = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == loaded


@EVERY_ARCH
def test_every_task_has_its_auto_class(arch: str) -> None:
    for task, cls in model_classes(arch).items():
        assert auto_class(task)._model_mapping[cls.config_class] is cls
        module = sys.modules[cls.__module__]
        assert getattr(module, cls.__name__) is cls
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = sys.modules[f"mixlab.archs.{arch}"].Nothing


@EVERY_HEAD
def test_the_layers_of_every_head_are_known_by_name(arch: str, task: str) -> None:
    """Loading tells by these names the head of another task, which may stay behind, from what nobody knows."""
    own = {name for name, child in tiny(arch, task, **HEAD_OPTIONS.get(task, {})).named_children() if list(child.parameters())}
    assert own - {"model"} <= set(TASK_HEADS[task].parts)


# --- Refusals --------------------------------------------------------------------------------------------------------


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def lose_backbone(folder: Path) -> None:
    tensors = weights(folder)
    del tensors["model.body.blocks.1.gate.bias"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def gain(folder: Path) -> None:
    tensors = {**weights(folder), "model.body.blocks.7.U.weight": torch.zeros(2)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def gain_outside(folder: Path) -> None:
    save_file({**weights(folder), "nobody.weight": torch.zeros(2)}, folder / "model.safetensors", metadata={"format": "pt"})


def lose_head(folder: Path) -> None:
    """The output matrix, which a configuration with ties would not have stored, and this one must."""
    tiny("gmlp", tie_word_embeddings=False).save_pretrained(folder)
    tensors = weights(folder)
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def misshape(folder: Path) -> None:
    tensors = {**weights(folder), "model.body.blocks.0.gate.bias": torch.zeros(1, 5)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def only_pickle(folder: Path) -> None:
    torch.save(weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


DAMAGE: dict[str, tuple[Any, str]] = {
    "another architecture": (
        lambda folder: tiny("amlp").save_pretrained(folder),
        "holds a 'mixlab-amlp' model, not 'mixlab-gmlp'; load it with",
    ),
    "a tensor is missing": (lose_backbone, "lacks model.body.blocks.1.gate.bias; the checkpoint is incomplete"),
    "a tensor too many": (gain, "holds model.body.blocks.7.U.weight, which this model does not have"),
    "a tensor of nobody": (gain_outside, "holds nobody.weight, which this model does not have"),
    "the head of the same task is missing": (lose_head, "lacks lm_head.weight; the checkpoint is incomplete"),
    "a tensor of another shape": (misshape, r"gate.bias is stored as (1, 5), but the configuration needs (1, 24)"),
    "more layers": (lambda folder: rewrite_config(folder, num_hidden_layers=3), "lacks model.body.blocks.2"),
    "fewer layers": (lambda folder: rewrite_config(folder, num_hidden_layers=1), "holds model.body.blocks.1"),
    "another width": (lambda folder: rewrite_config(folder, hidden_size=16), "do not belong together"),
    "a vocabulary that fills the memory": (
        lambda folder: rewrite_config(folder, vocab_size=2**24, hidden_size=2**24),
        "do not belong together",
    ),
    "another length": (lambda folder: rewrite_config(folder, max_position_embeddings=9), "do not belong together"),
    "truncated": (truncate, "are damaged"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "are damaged"),
    "only a pickle": (only_pickle, "holds only a pickle, pytorch_model.bin, which can run code; see `mixlab import"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no model.safetensors"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
    "configuration cut short": (lambda folder: (folder / "config.json").write_text('{"a": '), "is not JSON"),
    "configuration not text": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"), "is not JSON"),
    "configuration too deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "is not JSON"),
    "configuration a list": (lambda folder: (folder / "config.json").write_text("[1]"), "is not a JSON object"),
    "configuration without a type": (lambda folder: (folder / "config.json").write_text("{}"), "holds a None model"),
    "a newer format": (lambda folder: rewrite_config(folder, mixlab_format=FORMAT + 1, new_field=3), "upgrade mixlab"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_does_not_fit_is_refused(damage: str, saved: Path) -> None:
    harm, said = DAMAGE[damage]
    harm(saved)
    assert said in refusal(model_class("gmlp", "masked-lm").from_pretrained, saved)


# transformers reads the first two as what they say they are, and the last with a parser that ends in a RecursionError.
UNSEEN = ("another architecture", "configuration without a type", "configuration too deep")


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name not in UNSEEN])
def test_auto_classes_refuse_it_too(damage: str, saved: Path) -> None:
    """Where the Auto class finds our class, our class speaks; before that, transformers does, with an error of its own."""
    DAMAGE[damage][0](saved)
    with pytest.raises((MixlabError, OSError, ValueError)):
        auto_class("masked-lm").from_pretrained(saved)


def test_a_place_that_is_not_there() -> None:
    said = refusal(model_class("gmlp", "masked-lm").from_pretrained, "/nowhere/at-all")
    assert "/nowhere/at-all" in said
    assert "holds no config.json" in refusal(load_config, "/nowhere/at-all")


HOSTILE = {
    "auto_map": {"AutoModel": "evil--evil.Model"},
    "_attn_implementation_internal": "someone/kernel",
    "_attn_implementation": "someone/kernel",
    "attn_implementation": "someone/kernel",
    "_experts_implementation_internal": "eager",
    "trust_remote_code": True,
    "custom_pipelines": {"x": {"impl": "evil.Pipe"}},
    "quantization_config": {"quant_method": "fp8"},
    "use_bfloat16": True,
    "per_layer_config": {"0": {"hidden_size": 1}},
    "gate_heads ": 2,
    "__class__": "x",
    "__init__": 3,
    "traits": None,
    "hiden_size": 32,
    "temperature": 0.3,
}


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_or_unknown_keys_are_refused(key: str, saved: Path) -> None:
    rewrite_config(saved, **{key: HOSTILE[key]})
    assert key.strip("_ ").split("_")[0] in refusal(load_config, str(saved))
    refusal(model_class("gmlp", "masked-lm").from_pretrained, saved)


def test_names_near_a_field_are_suggested(saved: Path) -> None:
    rewrite_config(saved, hiden_size=32)
    assert "did you mean 'hidden_size'?" in refusal(load_config, str(saved))


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": "32"},
        {"hidden_size": 32.0},
        {"hidden_size": True},
        {"num_hidden_layers": 10**9},
        {"num_labels": 10**9},
        {"vocab_size": 10**15},
        {"vocab_size": 2**24 + 1},
        {"max_position_embeddings": 2**25},
        {"intermediate_size": 2**40},
        {"gate_heads": 2**50},
        {"dtype": "no_such_type"},
        {"dtype": "nn"},
        {"gate": "product"},
        {"spatial_structure": None},
        {"id2label": {"x": "y"}},
        {"id2label": ["a"]},
        {"problem_type": "guess"},
        {"hidden_dropout": 1.0},
        {"initializer_range": "wide"},
        {"layer_norm_eps": None},
        {"architectures": 3},
        {"dtype": []},
        {"dtype": {"text_config": "float32"}},
        {"mixlab_format": 0},
        {"mixlab_format": "2"},
        {"model_type": "mixlab-none"},
        {"model_type": ["mixlab-gmlp"]},
    ],
    ids=str,
)
def test_wrong_values_are_refused(wrong: dict[str, Any], saved: Path) -> None:
    rewrite_config(saved, **wrong)
    refusal(load_config, str(saved))
    refusal(model_class("gmlp", "masked-lm").from_pretrained, saved)


# --- Fuzzing ---------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FUZZ = settings(max_examples=200, derandomize=True, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
FIELDS = sorted({*mixlab.config("amlp-tiny").to_dict(), "num_labels", "torch_dtype", "output_attentions", "name_or_path"})


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("pristine")
    tiny("amlp", num_hidden_layers=1, vocab_size=16, max_position_embeddings=6, hidden_size=8, intermediate_size=16).save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def only_our_error(load: Any) -> None:
    said = ""
    try:
        load()
    except MixlabError as error:
        said = str(error)
    assert "\n" not in said


@FUZZ
@given(changes=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), JSON, min_size=1, max_size=3))
def test_any_configuration_loads_or_is_refused(changes: dict[str, Any], pristine: dict[str, bytes], tmp_path: Path) -> None:
    restore(tmp_path, pristine)
    rewrite_config(tmp_path, **changes)
    only_our_error(lambda: load_config(str(tmp_path)))
    only_our_error(lambda: model_class("amlp", "masked-lm").from_pretrained(tmp_path))


@FUZZ
@given(text=st.text(max_size=30) | JSON.map(json.dumps))
def test_any_text_as_configuration(text: str, pristine: dict[str, bytes], tmp_path: Path) -> None:
    restore(tmp_path, pristine)
    (tmp_path / "config.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    only_our_error(lambda: load_config(str(tmp_path)))


@FUZZ
@given(data=st.data())
def test_any_header_of_weights_loads_or_is_refused(data: st.DataObject, pristine: dict[str, bytes], tmp_path: Path) -> None:
    """Entries of the header exchanged, renamed, dropped; or bytes of the file changed; or its end cut off."""
    restore(tmp_path, pristine)
    content = pristine["model.safetensors"]
    (size,) = struct.unpack("<Q", content[:8])
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    kind = data.draw(st.sampled_from(["entry", "key", "drop", "byte", "cut", "size"]))
    name = data.draw(st.sampled_from(sorted(header)))
    if kind == "entry":
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        value = data.draw(st.sampled_from(["F16", "BF16", "I8", "F8_E4M3", "BOOL", "U64"]) if field == "dtype" else JSON)
        header[name] = {**header[name], field: value}
    elif kind == "key":
        header[data.draw(st.text(max_size=10))] = header.pop(name)
    elif kind == "drop":
        del header[name]
    encoded = json.dumps(header).encode("utf-8", "surrogatepass")
    content = struct.pack("<Q", data.draw(st.integers(0, 2**64 - 1)) if kind == "size" else len(encoded)) + encoded + body
    if kind == "byte":
        place = data.draw(st.integers(0, len(encoded)))
        content = content[:place] + bytes([data.draw(st.integers(0, 255))]) + content[place + 1 :]
    if kind == "cut":
        content = content[: data.draw(st.integers(0, len(content)))]
    (tmp_path / "model.safetensors").write_bytes(content)
    only_our_error(lambda: model_class("amlp", "masked-lm").from_pretrained(tmp_path))


@settings(FUZZ, max_examples=60)
@given(
    index=JSON
    | st.fixed_dictionaries({"weight_map": JSON | st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=2), "metadata": JSON})
)
def test_any_index_of_shards_loads_or_is_refused(index: Any, pristine: dict[str, bytes], tmp_path: Path) -> None:
    restore(tmp_path, pristine)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    only_our_error(lambda: model_class("amlp", "masked-lm").from_pretrained(tmp_path))


def test_inputs_are_those_of_the_model() -> None:
    """The helpers of these tests feed every model something that it reads."""
    for case in every_task():
        arch, task = case.values
        model = tiny(arch, task)
        assert set(inputs_for(model)) == {model.main_input_name}
    assert AutoConfig.for_model("mixlab-gmlp", max_position_embeddings=8).model_type == "mixlab-gmlp"
