"""Question answering from files to answers: every id answered over long contexts, the threshold kept with the model, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixlab import cli
from mixlab.data import builtin, windows
from mixlab.errors import MixlabError
from mixlab.recipes.find import job_of
from mixlab.tasks import question_answering
from mixlab.tasks.job import Spans
from mixlab.tasks.question_answering import ask, decoded
from mixlab.tasks.runs import opened, train
from tests.reference import squad as naive

QUICK = ("steps=6", "epochs=0", "warmup=1", "batch_size=8", "save_every=3", "length=40", "model.num_hidden_layers=1", "log_every=3")
SIZES = {"train": 60, "validation": 30, "test": 1}
REPORTS = builtin.questions(0, SIZES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same questions as rows (for training) and in SQuAD's nesting, v2.0 and v1.1."""
    folder = tmp_path_factory.mktemp("questions")
    lines = [json.dumps(row) for row in REPORTS.data["train"]]
    (folder / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for name, some in (("v2.json", lambda row: True), ("v1.json", lambda row: row["answers"]["text"])):
        (folder / name).write_text(json.dumps(nested([row for row in REPORTS.data["validation"] if some(row)])), encoding="utf-8")
    return folder


def nested(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def question(row: dict[str, Any]) -> dict[str, Any]:
        golds = [{"text": text, "answer_start": start} for text, start in zip(*row["answers"].values(), strict=True)]
        return {"id": row["id"], "question": row["question"], "answers": golds, "is_impossible": not golds}

    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": r["context"], "qas": [question(r)]} for r in rows]}]}


def quick(corpus: Path, *more: str) -> Any:
    return job_of("answer", (*QUICK, f"data={corpus / 'train.jsonl'}", f"validation={corpus / 'v2.json'}", "vocabulary.size=400", *more))


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(quick(corpus, "evaluate_every=3"), folder, progress=False)
    return folder


def test_every_id_is_answered_and_scored_by_the_official_rules(run: Path, corpus: Path) -> None:
    task, model, tokenizer = opened(run)
    scores = task.evaluate(model, tokenizer, None, None)
    rows = list(REPORTS.data["validation"])
    lines = [json.dumps(row) for row in rows]
    told = list(task.predict(model, tokenizer, lines))
    assert [record["id"] for record in told] == [row["id"] for row in rows]
    answers = [record["answer"] for record in told]
    golds = [row["answers"]["text"] for row in rows]
    assert scores["exact"] == pytest.approx(np.mean([naive.exact(*pair) for pair in zip(answers, golds, strict=True)]))
    assert scores["f1"] == pytest.approx(np.mean([naive.f1(*pair) for pair in zip(answers, golds, strict=True)]))
    assert scores["questions"] == 30
    for record, row in zip(told, rows, strict=True):
        if record["answer"]:
            assert row["context"][record["start"] : record["end"]] == record["answer"]
        assert 0 <= record["score"] <= 1
    assert scores == task.evaluate(model, tokenizer, str(corpus / "v2.json"), None)


def test_the_threshold_is_that_of_the_validation_rows_and_travels_with_the_model(run: Path, corpus: Path, tmp_path: Path) -> None:
    task, model, tokenizer = opened(run)
    scores = task.evaluate(model, tokenizer, None, None)
    assert scores["null_threshold"] == scores["best_null_threshold"]["f1"]["threshold"] == model.config.null_threshold
    assert scores["f1"] == pytest.approx(scores["best_null_threshold"]["f1"]["reaches"])
    never, always = -1e9, 1e9
    model.config.null_threshold = never
    assert task.evaluate(model, tokenizer, None, None)["without_answer"]["exact"] == 1.0
    model.config.null_threshold = always
    assert task.evaluate(model, tokenizer, None, None)["without_answer"]["exact"] == 0.0
    train(quick(corpus, f"validation={corpus / 'v1.json'}"), tmp_path / "v1", progress=False)
    task, model, tokenizer = opened(tmp_path / "v1")
    assert model.config.null_threshold is None
    assert "best_null_threshold" not in task.evaluate(model, tokenizer, None, None)


def test_scores_while_training_are_those_afterwards(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    told = [line for line in lines if line["kind"] == "evaluate"][-1]
    task, model, tokenizer = opened(run)
    model.config.null_threshold = 0.0
    scores = task.evaluate(model, tokenizer, None, None)
    assert (told["eval_exact"], told["eval_f1"]) == (pytest.approx(scores["exact"]), pytest.approx(scores["f1"]))


def test_baselines(run: Path) -> None:
    task, model, tokenizer = opened(run)
    found = task.baselines(model, tokenizer, None, None)
    assert found["no answer"]["without_answer"]["exact"] == 1.0
    assert found["no answer"]["with_answer"]["f1"] == 0.0
    assert 0 < found["random span"]["f1"] < 0.3
    assert found == task.baselines(model, tokenizer, None, None)


class Knowing(torch.nn.Module):
    """A model that puts its weight on tokens 0, unless the window holds all of the tokens asked for."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__()
        self.answer, self.device = answer, torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        from mixlab.modeling.outputs import SpanOutput

        start, end = (torch.randn(input_ids.shape, generator=torch.Generator().manual_seed(0)) for _ in range(2))
        for row, ids in enumerate(input_ids.tolist()):
            size = len(self.answer)
            first = next((i for i in range(len(ids) - size + 1) if ids[i : i + size] == self.answer), 0)
            start[row, first] += 30
            end[row, first + size - 1 if first else 0] += 30
        return SpanOutput(start_logits=start, end_logits=end)


def test_an_answer_anywhere_in_a_long_document_comes_back_to_the_character(run: Path) -> None:
    """Windows, offsets and decoding, with a model that cannot be wrong."""
    _, trained, tokenizer = opened(run)
    for row in REPORTS.data["validation"]:
        for text, start in zip(*row["answers"].values(), strict=True):
            knowing: Any = Knowing(tokenizer(text, add_special_tokens=False)["input_ids"])
            knowing.config = trained.config
            cut = windows.of_question("q", row["question"], row["context"], tokenizer, 40, 10)
            assert len(cut) > 5
            found = decoded(cut, question_answering._logits(knowing, tokenizer, cut), Spans())["q"]
            place = row["context"].find(text)  # the first of several equal ones
            assert found.spans[0].start in (start, place)
            assert row["context"][found.spans[0].start : found.spans[0].end] == text
            assert found.margin < -10


def test_asking_in_python(run: Path) -> None:
    _, model, tokenizer = opened(run)
    document = "It was sent by Zoë Weiß. " * 200
    told = ask(model, tokenizer, "Who sent it?", document)
    assert len(told["candidates"]) == 5
    for one in told["candidates"]:
        assert document[one["start"] : one["end"]] == one["answer"]
    model.config.null_threshold = -1e9
    nothing = ask(model, tokenizer, "Who sent it?", document)
    assert (nothing["answer"], nothing["start"], nothing["candidates"]) == ("", None, told["candidates"])
    assert ask(model, tokenizer, "Who? " * 500, "\u200b \x01.")["answer"] in ("", ".")
    with pytest.raises(MixlabError, match="document is empty"):
        ask(model, tokenizer, "Who?", " \n")


def lines_of(text: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in text.splitlines())


def test_the_command_takes_tabs_objects_and_a_document(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = "The old mill was closed.\nIt was sent by José Núñez.\n" * 10
    (tmp_path / "report.txt").write_text(document, encoding="utf-8")
    cli.run("predict", [str(run), "Who sent it?", "What was closed?", "--document", str(tmp_path / "report.txt")])
    asked = list(lines_of(capsys.readouterr().out))
    assert [record["question"] for record in asked] == ["Who sent it?", "What was closed?"]
    one_line = document.replace("\n", " ")
    cli.run("predict", [str(run), f"Who sent it?\t{one_line}", json.dumps({"id": 7, "question": "Who sent it?", "context": document})])
    tabbed, named = lines_of(capsys.readouterr().out)
    places = [[(one["start"], one["end"]) for one in record["candidates"]] for record in (tabbed, asked[0])]
    assert places[0] == places[1]
    assert {**named, "id": None} == {**asked[0], "id": None}
    assert named["id"] == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Who sent it?", "has no document"),
        ('{"question": "Who?"', "is not JSON"),
        ('{"question": "Who?"}', "no text named 'context'"),
        ('{"question": 5, "context": "x"}', "no text named 'question'"),
        ("\tsome text", "question is empty"),
        ("Who?\t ", "document is empty"),
    ],
)
def test_what_cannot_be_asked_is_refused(run: Path, text: str, said: str) -> None:
    task, model, tokenizer = opened(run)
    with pytest.raises(MixlabError, match=said) as caught:
        list(task.predict(model, tokenizer, [text]))
    assert "\n" not in str(caught.value)


def test_data_without_answers_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text('{"question": "Who?", "context": "Ada."}\n', encoding="utf-8")
    with pytest.raises(MixlabError, match="no question has an answer"):
        train(quick(corpus, f"data={tmp_path / 'none.jsonl'}"), tmp_path / "run", progress=False)
    with pytest.raises(MixlabError, match="stride"):
        train(quick(corpus, "spans.stride=40"), tmp_path / "run", progress=False)
    with pytest.raises(MixlabError, match="longest is 0"):
        quick(corpus, "spans.longest=0")
