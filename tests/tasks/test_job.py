"""A job is resolved in one place: settings by name, mistakes in one line, and the same job back from a run directory."""

from __future__ import annotations

import json

import pytest

import mixlab
from mixlab.errors import MixlabError
from mixlab.recipes.find import job_of, recipes
from mixlab.tasks.classification import Classification
from mixlab.tasks.job import job_from


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_builds_for_every_architecture_and_survives_its_run_directory(name: str) -> None:
    for arch in ("gmlp", "bert"):
        job = job_of(name, (f"arch={arch}", "steps=20000", "model.hidden_dropout=0.1"))
        assert job.preset in mixlab.presets(arch)
        assert job.training.steps == 20_000
        stored = json.loads(json.dumps({**job.as_dict(), "settings": job.training.as_dict()}))
        assert job_from(stored) == job


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_says_what_it_is_for(name: str) -> None:
    assert len(recipes()[name][1]) > 30


def test_settings_that_need_each_other_are_applied_together() -> None:
    job = job_of(
        "pretrain-small", ("steps=10", "warmup=2", "masking.unit=word", "vocabulary.size=900", "data=notes.txt", "betas=[0.9,0.98]")
    )
    assert (job.training.steps, job.training.warmup, job.training.betas) == (10, 2, (0.9, 0.98))
    assert (job.masking.unit, job.vocabulary.size, job.data) == ("word", 900, "notes.txt")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("pretrain-smal", (), "did you mean 'pretrain-small'?"),
        ("pretrain-small", ("arch=gmpl",), "did you mean 'gmlp'?"),
        ("pretrain-small", ("arch=gmlp", "arch=bert"), "set it once"),
        ("pretrain-small", ("step=5",), "did you mean 'steps'?"),
        ("pretrain-small", ("steps",), "key=value"),
        ("pretrain-small", ("steps=5",), "warmup is 100"),
        ("pretrain-small", ("report_to=tensorbord",), "did you mean 'tensorboard'?"),
        ("pretrain-small", ("report_to=trackioo,wandb",), "did you mean 'trackio'?"),
        ("pretrain-small", ("steps=many",), "wrong kind"),
        ("pretrain-small", ("length=abc",), "length is 'abc'; it must be a whole number"),
        ("pretrain-small", ("vocabulary.size=0.5",), "vocabulary.size is 0.5"),
        ("pretrain-small", ("masking.rate=much",), "masking.rate is 'much'"),
        ("pretrain-small", ("data=",), "data is ''; give a file"),
        ("pretrain-small", ("data=2024",), "such as ./2024"),
        ("classify", ("validation=5",), "validation is 5"),
        ("classify", ("epochs=-1",), "epochs is -1"),
        ("classify", ("pairs=maybe",), "pairs is 'maybe'"),
        ("pretrain-small", ("masking.rat=0.1",), "did you mean 'masking.rate'?"),
    ],
)
def test_mistakes_are_told_in_one_line(name: str, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(MixlabError) as caught:
        job_of(name, settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_is_read_as_pairs_where_the_recipe_or_a_column_says_so() -> None:
    kinds = [Classification(job_of(name, ("data=nli.csv",))).kind() for name in ("classify", "classify-pairs")]
    assert kinds == ["sentences", "pairs"]
    assert Classification(job_of("classify", ("data=nli.csv", "columns.text_pair=claim"))).kind() == "pairs"
    assert Classification(job_of("classify", ("data=pairs",))).kind() == "pairs"
    assert Classification(job_of("paper-mnli")).train_split == "train"
    assert Classification(job_of("classify", ("data=owner/name#part", "validation=owner/name#rest"))).train_split is None
    with pytest.raises(MixlabError, match="use sentences or pairs"):
        Classification(job_of("classify", ("data=pydocs",))).kind()
