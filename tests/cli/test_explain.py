"""`mixlab explain`: layers, presets, comparisons and claims, as tables, markdown and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mixlab
from mixlab import cli


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    cli.main(["explain", *arguments])
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(["explain", *arguments])
    assert left.value.code == code
    error = capsys.readouterr().err
    assert code == 2 or error.count("\n") == 1
    return error


def test_a_layer_is_derived_in_formula_numbers_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "attention n=512 d=768 h=12")
    assert "i*o = 768*768 = 589,824" in text
    assert "2*m*t*a = 2*512*512*768 = 402,653,184" in text
    found = told(capsys, "conv", "3x3", "64->64")  # without quotes as well
    assert found["params"] == 36_864
    assert found["groups"][0]["lines"][0]["params"]["derivation"] == "k*l*i*o = 3*3*64*64 = 36,864"


def test_a_preset_is_the_account_that_python_gives(capsys: pytest.CaptureFixture[str]) -> None:
    found, counted = told(capsys, "gmlp-base"), mixlab.account("gmlp-base")
    assert [found[name] for name in ("params", "macs", "flops")] == [counted.params, counted.macs, counted.flops]
    for name in ("params", "macs", "kept"):
        assert found[name] == sum(line[name]["total"] for group in found["groups"] for line in group["lines"])
    assert told(capsys, "gmlp-base", "--length", "128")["macs"] == mixlab.account("gmlp-base", length=128).macs


def test_counting_as_the_paper_does_says_how_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "gmlp-base", "--as", "paper")
    assert found["flops"] == pytest.approx(158.0e9, rel=0.001)
    assert found["convention"] == (
        "FLOPs of one sequence or image, masked-language-model logits at the 15% labelled tokens alone, Toeplitz W as a dense product, "
        "with elementwise work"
    )
    assert found["convention"] in said(capsys, "gmlp-base", "--as", "paper", "--markdown")
    by_hand = told(capsys, "gmlp-base", "--unit", "flop", "--head", "labelled", "--elementwise")
    assert by_hand["flops"] == found["flops"]
    first, later = said(capsys, "ffn d=4"), said(capsys, "ffn d=4", "--unit", "flop")
    assert first.index("MACs  ") < first.index("FLOPs  ")
    assert later.index("FLOPs  ") < later.index("MACs  ")


def test_switches_reach_the_account(capsys: pytest.CaptureFixture[str]) -> None:
    full, bare = told(capsys, "gmlp-tiny"), told(capsys, "gmlp-tiny", "--no-embeddings", "--head", "none", "--toeplitz", "fft")
    assert bare["params"] < full["params"]
    assert bare["macs"] != full["macs"]
    assert "no tables of embeddings" in bare["convention"]


def test_the_state_is_that_of_a_model_that_decodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "gmlp-base")["state"] == 0
    assert told(capsys, "gmlp-base", "--task", "causal-lm")["state"] == 48 * 1536


def test_two_things_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    both = told(capsys, "conv 3x3 64->64", "vs", "separable 3x3 64->64")
    assert both["shares"]["params"] == "12.67%"
    assert "12.67%" in said(capsys, "conv 3x3 64->64 vs separable 3x3 64->64")
    assert told(capsys, "gram n=8 d=4", "vs", "ffn d=4")["shares"]["params"] is None


def test_every_claim_is_printed_with_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    rows = told(capsys, "--claims")
    assert len(rows) == 50
    for text in (said(capsys, "--claims"), said(capsys, "--claims", "--markdown")):
        assert "17,868,137,693,184" in text
        assert "50 claims:" in text


def test_markdown_has_the_same_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "ffn d=4", "--markdown", "--of", "kept", "work")
    assert "| numbers kept for the backward pass | operations on single numbers |" in text
    assert "`n*i = 1*4 = 4`" in text
    assert said(capsys, "ffn d=4", "vs", "ffn d=8", "--markdown").count("|") > 20


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["conv 3x3 64-> on 8x8"], "character 15, 'on'"),
        (["gmlp-bass"], "did you mean 'gmlp-base'?"),
        (["gmlp"], "is an architecture, not a preset"),
        (["convv 3x3"], "did you mean 'conv'?"),
        ([], "nothing to explain"),
        (["ffn d=4", "vs"], "write one thing, vs, and another"),
        (["ffn d=4", "vs", "ffn d=4", "vs", "ffn d=4"], "compares 3 things"),
        (["--claims", "ffn d=4"], "leave the rest out"),
        (["ffn d=4", "--length", "8"], "are for presets"),
        (["ffn d=4", "--as", "paper"], "are for presets"),
        (["gmlp-tiny", "--as", "paper"], "no publication"),
        (["gmlp-base", "--as", "paper", "--unit", "flop"], "decides what is counted"),
        (["gmlp-base", "--length", "0"], "outside 1..512"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], error: str) -> None:
    assert error in refused(capsys, *arguments)


def test_wrong_options_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "ffn d=4", "--unit", "byte", code=2)
