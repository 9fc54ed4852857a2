"""The way back: what was imported can be written under its foreign names again, and comes in again unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import mixlab
from mixlab import MixlabError, registry
from mixlab.modeling.architecture import load
from mixlab.modeling.convert import import_model
from mixlab.modeling.convert_back import foreign_state, inverted, layouts, way_back, write_foreign
from mixlab.modeling.foreign import Rename
from tests.conformance.cases import Case, cases

BOTH_WAYS = [(case, importer.name) for case in cases() for importer in load(case.arch).importers if way_back(importer)]
NOT_IN_SHAPES = ("num_attention_heads", "window_size")


def test_a_rule_is_inverted() -> None:
    back = inverted(Rename(r"layers\.(\d+)\.fc(\d)\.(weight|bias)", r"model.blocks.\1.mlp.\3.\2"))
    assert (back.pattern, back.name) == (r"model\.blocks\.(\d+)\.mlp\.(weight|bias)\.(\d)", r"layers.\1.fc\3.\2")


@pytest.mark.parametrize(
    ("pattern", "name"), [(r"layers\.(\d+)(?:\.fn)*\.w", r"blocks.\1.w"), (r"a.b", "c"), (r"(\d+)\.(\d+)", r"\1"), (r"(\d+)x*", r"\1")]
)
def test_a_rule_that_forgets_something_has_no_way_back(pattern: str, name: str) -> None:
    with pytest.raises(MixlabError, match="way leads back"):
        inverted(Rename(pattern, name))


def test_rules_of_all_architectures_that_claim_a_way_back_have_one() -> None:
    for arch in registry.archs():
        for importer in load(arch).importers:
            for rename in importer.renames if way_back(importer) else []:
                assert inverted(inverted(rename)).name == rename.name


@pytest.mark.parametrize(("case", "layout"), BOTH_WAYS, ids=[f"{case.preset}-{layout}" for case, layout in BOTH_WAYS])
def test_out_and_in_again(case: Case, layout: str, tmp_path: Path) -> None:
    """A layout may not fit every preset (text, images, tasks); where it does, nothing is lost."""
    fits = 0
    for task in case.traits.tasks:
        model = case.build(task)
        try:
            write_foreign(model, layout, tmp_path / task / "x.safetensors")
        except MixlabError as error:
            if "has no place for" not in str(error):
                raise
            continue
        state = load_file(tmp_path / task / "x.safetensors")
        importer = next(importer for importer in load(case.arch).importers if importer.name == layout and importer.recognises(state))
        if importer.task(importer.prepare(dict(state))) != task:
            continue
        inferred = importer.settings(importer.prepare(dict(state)))
        untold = [name for name in [*case.sizes(), *NOT_IN_SHAPES] if inferred.get(name) != getattr(model.config, name, inferred.get(name))]
        again, report = import_model(
            str(tmp_path / task / "x.safetensors"), settings={name: getattr(model.config, name) for name in untold}
        )
        assert (report.missing, report.unused) == ([], [])
        for name, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name
        fits += 1
    assert fits or case.config().modality != "image" or layout not in layouts(case.arch)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    model = mixlab.create("gmlp-tiny-image", num_hidden_layers=1)
    with pytest.raises(MixlabError, match="did you mean 'timm'"):
        foreign_state(model, "timn")
    with pytest.raises(MixlabError, match="pickles are not written"):
        write_foreign(model, "timm", tmp_path / "x.pt")
    save_file({}, tmp_path / "x.safetensors")
    with pytest.raises(MixlabError, match="exists"):
        write_foreign(model, "timm", tmp_path / "x.safetensors")
    with pytest.raises(MixlabError, match="has no place for"):
        foreign_state(mixlab.create("gmlp-tiny", num_hidden_layers=1), "timm")
