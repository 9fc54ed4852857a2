"""Trying a job out: what it costs against a count by hand, and what it refuses. Epochs become steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mixlab import cli, create
from mixlab.errors import MixlabError
from mixlab.recipes.find import job_of
from mixlab.tasks.rehearsal import rehearse

SHORT = ("steps=1000", "warmup=0", "batch_size=8", "length=16", "model.num_hidden_layers=1", "vocabulary.size=300")


@pytest.mark.parametrize("name", ["pretrain-small", "causal-small", "classify", "classify-pairs"])
@pytest.mark.parametrize("arch", ["gmlp", "amlp", "bert"])
def test_every_small_recipe_can_be_rehearsed(name: str, arch: str) -> None:
    told = rehearse(job_of(name, (*SHORT, f"arch={arch}")))
    assert f"{arch}-tiny for" in told
    assert "two steps of 2 examples: loss" in told


def test_the_cost_is_three_forward_passes_per_example() -> None:
    """A gMLP block counted by hand: n d f and n f d / 2 of channels, n n f/2 of tokens, and the head d V for 15% of 20 tokens."""
    job = job_of("pretrain-small", (*SHORT, "length=20"))
    told = rehearse(job)
    config = create("gmlp-tiny", task="masked-lm", vocab_size=300, max_position_embeddings=20, num_hidden_layers=1).config
    n, d, f, v = 20, config.hidden_size, config.intermediate_size, 300
    macs = n * d * f + n * n * (f // 2) + n * (f // 2) * d + 3 * d * v
    flops = float(re.search(r"tokens, ([\d.e+]+) FLOPs \(3 times", told)[1])  # pyright: ignore[reportOptionalSubscript]
    assert flops == pytest.approx(8 * 3 * 2 * macs, rel=0.01)


def test_a_start_and_a_loss_that_is_not_finite_are_refused() -> None:
    with pytest.raises(MixlabError, match="leave start="):
        rehearse(job_of("pretrain-small", (*SHORT, "start=elsewhere")))
    with pytest.raises(MixlabError, match="lower learning_rate"):
        rehearse(job_of("pretrain-small", (*SHORT, "learning_rate=1e30")))


def test_the_command_prints_it_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.run("train", ["classify", "--dry-run"])
    assert "passes over the data" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_epochs_become_steps() -> None:
    job = job_of("classify", ("epochs=2.5", "batch_size=8"))
    assert job.with_steps_for(80).training.steps == 25
    assert job.with_steps_for(3).training.steps == 1
    assert job_of("classify", ("epochs=0", "steps=7")).with_steps_for(80).training.steps == 7
    with pytest.raises(MixlabError, match="set steps and epochs=0"):
        job.with_steps_for(None)
    with pytest.raises(MixlabError, match="epochs is -1"):
        job_of("classify", ("epochs=-1",))
