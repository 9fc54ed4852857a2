"""Whole runs, very short: train, continue, evaluate, predict, and what is refused on the way."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import pipeline

from mixlab import cli
from mixlab.data import vocabulary
from mixlab.errors import MixlabError
from mixlab.recipes.find import job_of
from mixlab.tasks.runs import opened, read_job, train

QUICK = ("steps=6", "warmup=1", "batch_size=4", "save_every=3", "length=16", "model.num_hidden_layers=1", "log_every=3")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small texts, with a table of labelled ones beside it."""
    folder = tmp_path_factory.mktemp("corpus")
    words = [f"{a}{b}" for a in "bdfg" for b in ("a", "e", "i", "o", "u", "an", "en")]
    generator = random.Random(0)
    texts = [" ".join(generator.choices(words, k=60)) + "." for _ in range(40)]
    (folder / "train.txt").write_text("\n".join(texts[:30]), encoding="utf-8")
    (folder / "held-out.txt").write_text("\n".join(texts[30:]), encoding="utf-8")
    rows = [(" ".join(generator.choices(words, k=8)), "yes" if generator.random() < 0.5 else "no") for _ in range(60)]
    for name, part in (("train.csv", rows[:40]), ("held-out.csv", rows[40:])):
        (folder / name).write_text("text,label\n" + "\n".join(f"{text},{label}" for text, label in part), encoding="utf-8")
    return folder


def quick(recipe: str, corpus: Path, kind: str, *more: str) -> Any:
    place = (f"data={corpus / f'train.{kind}'}", f"validation={corpus / f'held-out.{kind}'}", "vocabulary.size=300")
    return job_of(recipe, (*QUICK, *place, *more))


@pytest.fixture(scope="module")
def masked(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    train(quick("pretrain-small", corpus, "txt"), folder, progress=False)
    return folder


def test_a_masked_run_fills_masks_and_is_measured(masked: Path) -> None:
    task, model, tokenizer = opened(masked)
    scores = task.evaluate(model, tokenizer, None, None)
    assert 1 < scores["perplexity"] < 1000
    assert scores == task.evaluate(model, tokenizer, None, None)
    (record,) = task.predict(model, tokenizer, ["ba [MASK] di"])
    assert len(record["masked"][0]) == 5
    with pytest.raises(MixlabError, match=r"has no \[MASK\]"):
        list(task.predict(model, tokenizer, ["ba di"]))
    filled = pipeline("fill-mask", model=str(masked / "model"), tokenizer=str(masked / "model"))("ba [MASK] di")
    assert filled[0]["token_str"].strip() == record["masked"][0][0]["token"].strip()


def test_the_run_directory_holds_what_it_promises(masked: Path) -> None:
    for name in ("recipe.json", "versions.json", "command.txt", "fingerprints.json", "metrics.jsonl", "tokenizer", "model/README.md"):
        assert (masked / name).exists(), name
    assert read_job(masked).task == "masked-lm"
    steps = [json.loads(line)["step"] for line in (masked / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == sorted(steps)


def test_a_finished_run_is_not_trained_again_and_a_changed_one_is_refused(masked: Path, corpus: Path) -> None:
    before = (masked / "model" / "model.safetensors").read_bytes()
    train(quick("pretrain-small", corpus, "txt"), masked, progress=False)
    assert (masked / "model" / "model.safetensors").read_bytes() == before
    with pytest.raises(MixlabError, match="learning_rate"):
        train(quick("pretrain-small", corpus, "txt", "learning_rate=0.5"), masked, progress=False)


def test_a_classifier_starts_from_the_masked_run(masked: Path, corpus: Path, tmp_path: Path) -> None:
    train(quick("classify", corpus, "csv", f"start={masked}"), tmp_path / "run", progress=False)
    task, model, tokenizer = opened(tmp_path / "run")
    scores = task.evaluate(model, tokenizer, None, None)
    assert scores["items"] == 20
    assert scores["confusion"]["labels"] == ["no", "yes"]
    (record,) = task.predict(model, tokenizer, ["ba di fan"])
    assert record["label"] in ("no", "yes")
    found = pipeline("text-classification", model=str(tmp_path / "run" / "model"), tokenizer=str(tmp_path / "run" / "model"))("ba di fan")
    assert found[0]["label"] == record["label"]
    with pytest.raises(MixlabError, match="holds a gmlp"):
        train(quick("classify", corpus, "csv", f"start={masked}", "arch=bert"), tmp_path / "other", progress=False)


def test_a_causal_run_generates_and_is_measured_in_bits(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(quick("causal-small", corpus, "txt", "arch=amlp", "vocabulary.size=300"), tmp_path / "run", progress=False)
    task, model, tokenizer = opened(tmp_path / "run")
    scores = task.evaluate(model, tokenizer, None, None)
    assert 0 < scores["bits_per_character"] < 10
    capsys.readouterr()
    cli.run("generate", [str(tmp_path / "run"), "--prompt", "ba di", "--tokens", "5", "--temperature", "0"])
    assert capsys.readouterr().out.startswith("ba di")
    with pytest.raises(MixlabError, match="change the prompt"):
        cli.run("generate", [str(tmp_path / "run"), "--prompt", "ba di " * 20])


def test_commands_read_files_and_refuse_what_is_no_run(masked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_text("ba [MASK]\n\ndi [MASK]\n", encoding="utf-8")
    cli.run("predict", [str(masked), "--input", str(tmp_path / "texts.txt")])
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["ba [MASK]", "di [MASK]"]
    cli.run("evaluate", [str(masked)])
    assert json.loads(capsys.readouterr().out)["task"] == "masked-lm"
    for command in (["predict", str(tmp_path), "x"], ["evaluate", str(tmp_path)], ["generate", str(masked), "--prompt", "x"]):
        with pytest.raises(MixlabError):
            cli.run(command[0], command[1:])
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 [MASK]\n")
    with pytest.raises(MixlabError, match=r"latin\.txt, line 1: not UTF-8"):
        cli.run("predict", [str(masked), "--input", str(tmp_path / "latin.txt")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ba [MASK]\n\nba di\n", r"line 3: 'ba di' has no \[MASK\]"),
        (b"ba [MASK]\n" + b"ba " * 40 + b"[MASK]\n", "line 2: .* reads at most 16"),
        (b"ba [MASK]\nb\0a [MASK]\n", "line 2: a NUL byte"),
        (b"\xff\xfeb\0a\0", "line 1: a NUL byte"),
    ],
)
def test_a_text_that_cannot_be_predicted_is_told_by_its_line(masked: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "texts.txt").write_bytes(content)
    with pytest.raises(MixlabError, match=rf"texts\.txt, {message}"):
        cli.run("predict", [str(masked), "--input", str(tmp_path / "texts.txt")])
    with pytest.raises(MixlabError, match="No such file"):
        cli.run("predict", [str(masked), "--input", str(tmp_path / "none.txt")])


def test_a_byte_order_mark_is_no_text(masked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts.txt").write_bytes(b"\xef\xbb\xbfba [MASK]\r\n")
    cli.run("predict", [str(masked), "--input", str(tmp_path / "texts.txt")])
    assert json.loads(capsys.readouterr().out)["text"] == "ba [MASK]"


def test_a_run_of_pairs_wants_pairs_and_others_read_a_tab_as_a_blank(corpus: Path, tmp_path: Path) -> None:
    rows = [json.dumps({"text": "ba di", "text_pair": f"fa {word}", "label": word}) for word in ("yes", "no") * 8]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows), encoding="utf-8")
    place = (f"data={tmp_path / 'pairs.jsonl'}", f"validation={tmp_path / 'pairs.jsonl'}", "vocabulary.size=300")
    train(job_of("classify-pairs", (*QUICK, "epochs=0", *place)), tmp_path / "pairs", progress=False)
    task, model, tokenizer = opened(tmp_path / "pairs")
    (tmp_path / "lines.txt").write_text("ba\tfa\n" * 3 + "ba\n" + "ba\tfa\n" * 3, encoding="utf-8")
    with pytest.raises(MixlabError, match=r"lines\.txt, line 4: 'ba' is one text"):
        cli.run("predict", [str(tmp_path / "pairs"), "--input", str(tmp_path / "lines.txt")])
    found = list(task.predict(model, tokenizer, ["ba\tfa", "ba\t" + "fa " * 40]))
    assert [record.get("truncated", False) for record in found] == [False, True]

    train(quick("classify", corpus, "csv", "epochs=0"), tmp_path / "single", progress=False)
    task, model, tokenizer = opened(tmp_path / "single")
    one, other = task.predict(model, tokenizer, ["ba\tfa", "ba fa"])
    assert one["score"] == other["score"]


def test_data_without_rows_to_measure_on_are_refused_before_any_work(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    for place in (corpus / "train.txt", corpus / "train.csv"):
        recipe = "classify" if place.suffix == ".csv" else "pretrain-small"
        with pytest.raises(MixlabError, match=r"is one file and has no split 'validation'; .* validation=PLACE"):
            train(job_of(recipe, (*QUICK, f"data={place}")), tmp_path / "run", say=said.append, progress=False)
    assert not any("tokenizer" in line for line in said)


def test_what_was_found_is_said_before_the_work_that_follows(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train(quick("classify", corpus, "csv", "epochs=0"), tmp_path / "run", say=said.append, progress=False)
    assert [line.partition(",")[0] for line in said[:3]] == [
        f"{corpus / 'train.csv'}: text = 'text'",
        "40 training rows",
        "training a wordpiece tokenizer of 300 entries",
    ]


def test_whole_numbers_can_be_meant_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "stars.csv").write_text("text,stars,source\n" + "ba di,1,a\nba fa,5,b\n" * 8, encoding="utf-8")
    place = (f"data={tmp_path / 'stars.csv'}", f"validation={tmp_path / 'stars.csv'}", "vocabulary.size=300", "epochs=0")
    with pytest.raises(MixlabError, match="label_kind=regression"):
        train(job_of("classify", (*QUICK, *place)), tmp_path / "refused", progress=False)
    train(job_of("classify", (*QUICK, *place, "label_kind=regression")), tmp_path / "run", progress=False)
    assert read_job(tmp_path / "run").label_kind == "regression"
    task, model, tokenizer = opened(tmp_path / "run")
    scores = task.evaluate(model, tokenizer, None, None)
    assert scores["by_source"].keys() == {"a", "b"}
    assert len(scores["pearson_95"]) == 2
    with pytest.raises(MixlabError, match="unknown kind of labels"):
        train(job_of("classify", (*QUICK, *place, "label_kind=ordinal")), tmp_path / "other", progress=False)


def test_a_run_of_several_labels_tells_each_score(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"ba {i}", "label": ["x", "y"][: 1 + i % 2]}) for i in range(16)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    place = (f"data={tmp_path / 'rows.jsonl'}", f"validation={tmp_path / 'rows.jsonl'}", "vocabulary.size=300", "epochs=0")
    train(job_of("classify", (*QUICK, *place)), tmp_path / "run", progress=False)
    task, model, tokenizer = opened(tmp_path / "run")
    (record,) = task.predict(model, tokenizer, ["ba 3"])
    assert record["scores"].keys() == {"x", "y"}
    assert record["labels"] == [name for name, score in record["scores"].items() if score > 0.5]
    scores = task.evaluate(model, tokenizer, None, None)
    assert sum(map(sum, scores["confusion"]["rows"][0])) == scores["items"] == 16


def test_a_text_without_a_token_to_mask_is_refused(masked: Path, tmp_path: Path) -> None:
    (tmp_path / "unknown.txt").write_text("漢", encoding="utf-8")
    task, model, tokenizer = opened(masked)
    with pytest.raises(MixlabError, match="no token that can be masked"):
        task.evaluate(model, tokenizer, str(tmp_path / "unknown.txt"), None)


def test_a_text_file_can_hold_a_document_per_line(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train(quick("pretrain-small", corpus, "txt", "documents=line"), tmp_path / "run", say=said.append, progress=False)
    assert said[-1].startswith("30 documents,")
    assert read_job(tmp_path / "run").documents == "line"


def test_a_run_continues_with_its_own_tokenizer(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = quick("pretrain-small", corpus, "txt", "vocabulary.kind=unigram", "vocabulary.size=400")
    said: list[str] = []
    train(job, tmp_path, say=said.append, progress=False)
    assert sum("training a unigram tokenizer" in note for note in said) == 1

    def again(*given: Any, **options: Any) -> Any:
        raise AssertionError("the tokenizer was trained again")

    monkeypatch.setattr(vocabulary, "train", again)
    train(job, tmp_path, say=said.append, progress=False)  # the same command
    with pytest.raises(AssertionError, match="trained again"):  # other settings want another one
        train(job.with_settings(("vocabulary.size=350",)), tmp_path, progress=False)
    (kept,) = (path for path in (tmp_path / "cache").glob("tokenizer-*") if path.is_dir())
    (kept / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(AssertionError, match="trained again"):  # a damaged one is not used
        train(job, tmp_path, progress=False)


def test_a_causal_run_is_measured_while_it_trains(corpus: Path, tmp_path: Path) -> None:
    train(quick("causal-small", corpus, "txt", "evaluate_every=6", "vocabulary.size=300"), tmp_path, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    (told,) = (line["eval_loss"] for line in lines if line["kind"] == "evaluate")
    task, model, tokenizer = opened(tmp_path)
    with task._examples(tokenizer, task.validation()) as examples, torch.no_grad():  # type: ignore[attr-defined]
        rows = torch.from_numpy(np.stack([row for row in examples["input_ids"] if len(row) == 16])).long()
        losses = F.cross_entropy(model(input_ids=rows).logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
    assert told == pytest.approx(float(losses), rel=0.02)  # the last example, which is shorter, counts otherwise
