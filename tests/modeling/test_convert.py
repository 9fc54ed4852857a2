"""Importing: what is read, what is refused, and what the report says. Agreement with other implementations is in tests/parity."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from mixlab import MixlabError
from mixlab.layers import SelfAttention
from mixlab.maps import DenseWeight, ToeplitzWeight
from mixlab.modeling.architecture import load
from mixlab.modeling.convert import import_model, read_tensors
from tests.modeling.tiny import LENGTH, answer, archs_with, blocks, every_task, inputs_for, tasks_of, tiny

N, D, F, VOCABULARY = 6, 8, 16, 20
BLOCK = {
    "norm.weight": (D,),
    "norm.bias": (D,),
    "channel_proj1.weight": (F, D),
    "channel_proj1.bias": (F,),
    "sgu.norm.weight": (F // 2,),
    "sgu.norm.bias": (F // 2,),
    "sgu.proj.weight": (N, N, 1),
    "sgu.proj.bias": (N,),
    "channel_proj2.weight": (D, F // 2),
    "channel_proj2.bias": (D,),
}


def foreign(layers: int = 2) -> dict[str, Tensor]:
    """A small state dict of a known layout."""
    shapes = {f"model.model.{i}.{name}": shape for i in range(layers) for name, shape in BLOCK.items()}
    shapes |= {"embedding.weight": (VOCABULARY, D), "fc.weight": (VOCABULARY, D), "fc.bias": (VOCABULARY,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(MixlabError) as caught:
        import_model(str(source), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_the_report_accounts_for_every_tensor(path: Path) -> None:
    state = foreign()
    save_file(state, path)
    model, report = import_model(str(path))
    assert report.loaded == len(state)
    assert report.as_dict()["missing"] == report.as_dict()["unused"] == report.as_dict()["misshaped"] == []
    assert report.lines()[0] == f"{path}: blog -> gmlp, masked-lm: {len(state)} tensors loaded, 0 missing, 0 unused"
    assert torch.equal(model.model.body.blocks[1].gate.spatial.weight[0], state["model.model.1.sgu.proj.weight"][..., 0])


def test_missing_tensors_are_named_and_can_be_allowed(path: Path) -> None:
    state = foreign()
    del state["fc.bias"]
    save_file(state, path)
    assert "lacks lm_head.bias; --allow-missing" in refusal(path)
    _, report = import_model(str(path), allow_missing=True)
    assert report.missing == ["lm_head.bias"]
    assert report.lines()[1] == "missing: lm_head.bias"


@pytest.mark.parametrize("allow_missing", [False, True])
def test_unused_tensors_are_refused(path: Path, allow_missing: bool) -> None:
    save_file({**foreign(), "pooler.weight": torch.zeros(D, D)}, path)
    assert "pooler.weight have no place in a gmlp for masked-lm" in refusal(path, allow_missing=allow_missing)
    save_file(foreign(), path)
    assert "fc" not in refusal(path, task="sequence-classification")
    assert "lm_head" in refusal(path, task="sequence-classification", allow_missing=allow_missing)


def test_misshaped_tensors_are_refused_with_both_shapes(path: Path) -> None:
    save_file({**foreign(), "model.model.1.sgu.proj.bias": torch.zeros(N + 1)}, path)
    said = refusal(path, allow_missing=True)
    assert "gate.bias is (1, 7), the model has (1, 6) (1 in all)" in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model.model.0.sgu.proj.weight": torch.zeros(())}, "is it complete?"),
        ({"model.model.0.channel_proj1.weight": torch.zeros(3)}, "is it complete?"),
        ({"embedding.weight": None}, "embedding.weight"),
        ({"model.model.0.channel_proj1.weight": None, "model.model.1.channel_proj1.weight": None}, "not complete"),
    ],
)
def test_an_incomplete_layout_is_refused(path: Path, changed: dict[str, Tensor | None], said: str) -> None:
    save_file({name: tensor for name, tensor in {**foreign(), **changed}.items() if tensor is not None}, path)
    assert said in refusal(path)


def test_an_unknown_layout_is_refused_with_those_that_are_known(path: Path) -> None:
    save_file({"encoder.0.kernel": torch.zeros(2)}, path)
    said = refusal(path)
    assert "encoder.0.kernel" in said
    assert "timm (gmlp)" in said
    assert "g-mlp-pytorch (amlp)" in said
    save_file({}, path)
    assert "holds no tensor" in refusal(path)


def test_settings_override_what_is_inferred(path: Path) -> None:
    save_file(foreign(), path)
    model, _ = import_model(str(path), settings={"gate_activation": "tanh", "hidden_act": "gelu"})
    assert (model.config.gate_activation, model.config.hidden_act) == ("tanh", "gelu")
    assert "num_layers" in refusal(path, settings={"num_layers": 1})
    assert "misshaped" in refusal(path, settings={"hidden_size": 16}) or "the model has" in refusal(path, settings={"hidden_size": 16})
    tiny("gmlp").save_pretrained(path.parent / "own")
    assert "brings its own configuration" in refusal(path.parent / "own", settings={"hidden_act": "gelu"})


# --- Pickles ---------------------------------------------------------------------------------------------------------


class Payload:
    """Unpickling this makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_a_pickle_needs_permission(tmp_path: Path, suffix: str) -> None:
    file, state = tmp_path / f"model{suffix}", foreign()
    torch.save(state, file)
    assert "--allow-pickle" in refusal(file)
    model, report = import_model(str(file), allow_pickle=True)
    assert report.loaded == len(state)
    assert torch.equal(model.lm_head.weight, state["fc.weight"])


@pytest.mark.parametrize("wrap", [dict, OrderedDict, lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}])
def test_usual_wrappings_of_a_state_dict(tmp_path: Path, wrap: Any) -> None:
    torch.save(wrap(foreign()), tmp_path / "model.pt")
    assert import_model(str(tmp_path / "model.pt"), allow_pickle=True)[1].loaded == len(foreign())


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_a_malicious_pickle_never_runs(tmp_path: Path, zipped: bool, allow_pickle: bool) -> None:
    file, canary = tmp_path / "model.pt", tmp_path / "canary"
    torch.save({**foreign(), "x": Payload(canary)}, file, _use_new_zipfile_serialization=zipped)
    refusal(file, allow_pickle=allow_pickle)
    file.write_bytes(pickle.dumps(Payload(canary)))
    refusal(file, allow_pickle=allow_pickle)
    renamed = tmp_path / "model.safetensors"
    renamed.write_bytes(file.read_bytes())
    refusal(renamed, allow_pickle=allow_pickle)
    assert not canary.exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {0: torch.zeros(2)}, torch.zeros(3), "text", {"state_dict": {}}, {}])
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "model.pt")
    refusal(tmp_path / "model.pt", allow_pickle=True)


@settings(max_examples=120, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), zipped=st.booleans())
def test_damaged_pickles_are_refused_in_one_line(tmp_path: Path, data: Any, zipped: bool) -> None:
    file = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(3), "b": torch.ones(2, 2)}, file, _use_new_zipfile_serialization=zipped)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    said = ""
    try:
        read_tensors(file, allow_pickle=True)
    except MixlabError as error:
        said = str(error)
    assert "\n" not in said


# --- Files and names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_truncated_safetensors_are_refused(path: Path, kept: int) -> None:
    save_file(foreign(), path)
    path.write_bytes(path.read_bytes()[:kept])
    assert "damaged or no safetensors file" in refusal(path)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing.safetensors")
    assert "holds no .safetensors file" in refusal(tmp_path)


def test_a_hub_name_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    save_file(foreign(), tmp_path / "model.safetensors")
    _, report = import_model("someone/something")
    assert report.loaded == len(foreign())
    assert asked == [("someone/something", ["*.safetensors", "*.json"])]
    tiny("gmlp").save_pretrained(tmp_path)
    assert import_model("someone/something")[1].layout == "mixlab"


@pytest.mark.parametrize("error", [OSError("no network\nat all"), ValueError("bad name"), RuntimeError("x")])
def test_a_hub_that_cannot_be_reached(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert "neither a path nor a model that the Hub gives out" in refusal("someone/something")


def pickled(folder: Path, state: dict[str, Tensor]) -> None:
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(("arch", "task"), every_task())
def test_an_own_folder_with_a_pickle_is_read_when_asked_for(arch: str, task: str, tmp_path: Path) -> None:
    model = tiny(arch, task)
    model.save_pretrained(tmp_path / "old")
    pickled(tmp_path / "old", model.state_dict())
    assert f"see `mixlab import {tmp_path / 'old'} --allow-pickle -o NEW`" in refusal(tmp_path / "old")
    again, report = import_model(str(tmp_path / "old"), allow_pickle=True)
    assert (report.task, report.missing, report.unused) == (task, [], [])
    assert torch.equal(answer(again), answer(model))
    again.save_pretrained(tmp_path / "new")
    assert torch.equal(answer(import_model(str(tmp_path / "new"))[0]), answer(model))


def test_a_pickle_of_our_own_is_checked_on_both_sides(tmp_path: Path) -> None:
    model = tiny("gmlp")
    model.save_pretrained(tmp_path)
    pickled(tmp_path, {**model.state_dict(), "model.body.blocks.9.U.bias": torch.zeros(2)})
    assert "model.body.blocks.9.U.bias have no place" in refusal(tmp_path, allow_pickle=True)
    assert "import it as it is first" in refusal(tmp_path, allow_pickle=True, task="features")
    torch.save({"x": Payload(tmp_path / "canary")}, tmp_path / "pytorch_model.bin")
    assert "was not loaded" in refusal(tmp_path, allow_pickle=True)
    assert not (tmp_path / "canary").exists()


def test_a_foreign_folder_with_a_pickle(tmp_path: Path) -> None:
    torch.save(foreign(), tmp_path / "weights.pt")
    assert "pass --allow-pickle" in refusal(tmp_path)
    assert import_model(str(tmp_path), allow_pickle=True)[1].layout == "blog"


def test_our_own_weights_without_their_configuration_are_told_apart(tmp_path: Path) -> None:
    tiny("gmlp").save_pretrained(tmp_path)
    assert "give the folder that holds its config.json" in refusal(tmp_path / "model.safetensors")
    (tmp_path / "config.json").unlink()
    assert "give the folder that holds its config.json" in refusal(tmp_path)


# --- Our own folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "task"), every_task())
def test_an_own_folder_comes_back_as_it_was(arch: str, task: str, tmp_path: Path) -> None:
    model = tiny(arch, task)
    model.save_pretrained(tmp_path)
    again, report = import_model(str(tmp_path))
    assert type(again) is type(model)
    assert (report.task, report.missing, report.unused) == (task, [], [])
    assert torch.equal(answer(again), answer(model))


def test_another_task_keeps_the_backbone_and_says_what_is_new(tmp_path: Path) -> None:
    old = tiny("gmlp")
    old.save_pretrained(tmp_path)
    model, report = import_model(str(tmp_path), task="sequence-classification")
    assert report.missing == ["classifier.bias", "classifier.weight"]
    for name, tensor in old.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], tensor)


def two_sided_with_lower_triangle(model: Any) -> Any:
    """The reference: a model that may read both sides, whose weights on later tokens are set to zero by hand."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, DenseWeight):
                module.weight.copy_(module.weight.tril())
            elif isinstance(module, ToeplitzWeight):
                module.taps[:, : module.length - 1] = 0
            elif isinstance(module, SelfAttention):
                module.causal = True
    return model


@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("arch", [arch for arch in archs_with("causal") if "spatial_structure" in load(arch).field_names()])
def test_masked_to_causal_drops_the_upper_half(arch: str, structure: str, heads: int, tmp_path: Path) -> None:
    old = tiny(arch, spatial_structure=structure, gate_heads=heads)
    old.save_pretrained(tmp_path / "masked")
    model, report = import_model(str(tmp_path / "masked"), task="causal-lm")
    dropped = {
        "dense": f"dropped {LENGTH * (LENGTH - 1) // 2} of the {LENGTH**2}",
        "toeplitz": f"dropped {LENGTH - 1} of the {2 * LENGTH - 1}",
    }
    assert report.notes == [note for note in report.notes if note.startswith(f"2 layers: {dropped[structure]}")]
    assert (report.missing, report.unused) == ([], [])
    assert model.config.causal
    inputs = inputs_for(old)
    torch.testing.assert_close(answer(model, inputs), answer(two_sided_with_lower_triangle(old), inputs), atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "causal")
    again, report = import_model(str(tmp_path / "causal"))
    assert report.task == "causal-lm"
    assert torch.equal(answer(again, inputs), answer(model, inputs))


@pytest.mark.parametrize("arch", [arch for arch in archs_with("causal") if "masked-lm" in tasks_of(arch)])
def test_a_causal_model_says_of_one_token_what_the_two_sided_one_said(arch: str, tmp_path: Path) -> None:
    """The first token of a text now reads itself alone; what cannot be carried over is refused."""
    old = tiny(arch, "masked-lm")
    old.save_pretrained(tmp_path)
    if hasattr(blocks(old)[0], "convolution"):
        assert "taps around a token cannot become" in refusal(tmp_path, task="causal-lm")
        return
    model, _ = import_model(str(tmp_path), task="causal-lm")
    ids = inputs_for(old)["input_ids"]
    torch.testing.assert_close(answer(model, {"input_ids": ids})[:, :1], answer(old, {"input_ids": ids[:, :1]}), atol=1e-5, rtol=0)


@pytest.mark.parametrize("stored", ["features", "sequence-classification"])
def test_any_two_sided_model_becomes_causal_with_its_backbone(stored: str, tmp_path: Path) -> None:
    old = tiny("amlp", stored)
    old.save_pretrained(tmp_path)
    model, report = import_model(str(tmp_path), task="causal-lm")
    ids = inputs_for(old)
    reference = two_sided_with_lower_triangle(old.base_model)(**ids).last_hidden_state
    torch.testing.assert_close(model.model(**ids).last_hidden_state, reference, atol=1e-5, rtol=0)
    assert report.loaded == len(old.base_model.state_dict())
    assert report.unused == ([] if stored == "features" else ["classifier.bias", "classifier.weight"])


def test_a_causal_model_does_not_become_two_sided(tmp_path: Path) -> None:
    tiny("gmlp", "causal-lm").save_pretrained(tmp_path)
    assert "sees both sides" in refusal(tmp_path, task="masked-lm")


@pytest.mark.parametrize("structure", ["dense", "toeplitz"])
@pytest.mark.parametrize("length", [LENGTH - 4, LENGTH, LENGTH + 9])
def test_length_resizes(structure: str, length: int, tmp_path: Path) -> None:
    old = tiny("gmlp", spatial_structure=structure)
    old.save_pretrained(tmp_path / "old")
    model, report = import_model(str(tmp_path / "old"), length=length)
    assert model.config.length == length
    assert "24 tokens" in report.notes[-1] or f"to {length} tokens" in report.notes[-1]
    inputs = inputs_for(old)  # LENGTH - 4 tokens
    torch.testing.assert_close(answer(model, inputs), answer(old, inputs), atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "new")
    ids = {"input_ids": torch.randint(5, 40, (1, length))}
    assert torch.equal(answer(import_model(str(tmp_path / "new"))[0], ids), answer(model, ids))
    assert "give at least 1" in refusal(tmp_path / "old", length=0)
