"""Layouts whose authors publish code and no package: the same parameter names on small modules of our own, and the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from mixlab import MixlabError
from mixlab.modeling.convert import import_model
from tests.modeling.tiny import randomise

ROWS = {
    "gMLP: weights saved by labml [naive loops]": "test_labml",
    "gMLP: weights saved by a model of convolutions [naive loops]": "test_blog",
}

N, D, F, VOCABULARY = 10, 16, 48, 30


class WeightGate(nn.Module):
    """A gate that holds W and b itself, as labml's does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(F // 2)
        self.weight = nn.Parameter(torch.zeros(N, N))
        self.bias = nn.Parameter(torch.ones(N))

    def mix(self, v: Tensor) -> Tensor:
        return torch.stack([self.weight @ sample for sample in v]) + self.bias[None, :, None]

    def forward(self, z: Tensor) -> Tensor:
        return z[..., : F // 2] * self.mix(self.norm(z[..., F // 2 :]))


class ConvolutionGate(WeightGate):
    """A gate that mixes tokens as the channels of a 1-D convolution, as the blog's does."""

    def __init__(self) -> None:
        super().__init__()
        del self.weight, self.bias
        self.proj = nn.Conv1d(N, N, kernel_size=1)

    def mix(self, v: Tensor) -> Tensor:
        return self.proj(v)


class Block(nn.Module):
    def __init__(self, names: tuple[str, str], gate: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.names, self.act, self.sgu = names, act, gate
        self.norm = nn.LayerNorm(D)
        setattr(self, names[0], nn.Linear(D, F))
        setattr(self, names[1], nn.Linear(F // 2, D))

    def forward(self, x: Tensor) -> Tensor:
        expand, project = (getattr(self, name) for name in self.names)
        return x + project(self.sgu(self.act(expand(self.norm(x)))))


class Labml(nn.Module):
    """`encoder.layers.{i}` and, on request, `encoder.norm`; reads embeddings."""

    def __init__(self, layers: int = 3, norm: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(Block(("proj1", "proj2"), WeightGate(), nn.GELU()) for _ in range(layers))
        if norm:
            self.encoder.norm = nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder.layers:
            x = layer(x)
        return self.encoder.norm(x) if hasattr(self.encoder, "norm") else x


class Blog(nn.Module):
    """`embedding`, `model.model.{i}` and `fc`; with `shared`, one block many times, as its author wrote it."""

    def __init__(self, layers: int = 3, shared: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D)
        self.model = nn.Module()
        blocks = [Block(("channel_proj1", "channel_proj2"), ConvolutionGate(), nn.GELU(approximate="tanh")) for _ in range(layers)]
        self.model.model = nn.Sequential(*(blocks[:1] * layers if shared else blocks))
        self.fc = nn.Linear(D, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.model.model(self.embedding(ids)))


def save(state: Mapping[str, Tensor], path: Any) -> str:
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, path)
    return str(path)


def check_blog(theirs: Blog, path: str) -> Any:
    ours, report = import_model(path)
    ids = torch.randint(VOCABULARY, (3, N))
    with torch.no_grad():
        expected = theirs(ids)
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(input_ids=ids).logits, expected, atol=1e-5, rtol=0)
    assert (report.layout, report.task, report.missing, report.unused) == ("blog", "masked-lm", [], [])
    return ours


@pytest.mark.parametrize("norm", [True, False], ids=["with-norm", "without-norm"])
@pytest.mark.parametrize("prefix", ["encoder.", "", "model.encoder."])
def test_labml(norm: bool, prefix: str, tmp_path: Any) -> None:
    theirs = randomise(Labml(norm=norm)).eval()
    state = {name.replace("encoder.", prefix, 1): tensor for name, tensor in theirs.state_dict().items()}
    path = save(state, tmp_path / "m.safetensors")
    with pytest.raises(MixlabError, match=r"lacks stem\.tokens\.weight"):
        import_model(path)
    ours, report = import_model(path, allow_missing=True)
    assert report.missing == ["stem.tokens.weight"]
    assert "embeddings stay as initialised" in report.notes[0]
    x = torch.randn(2, N, D)
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs_embeds=x).last_hidden_state, theirs(x), atol=1e-5, rtol=0)


def test_labml_for_a_task(tmp_path: Any) -> None:
    """The same blocks under a head, which is new."""
    theirs = randomise(Labml()).eval()
    path = save(theirs.state_dict(), tmp_path / "m.safetensors")
    ours, report = import_model(path, task="masked-lm", allow_missing=True, settings={"vocab_size": VOCABULARY})
    x = torch.randn(2, N, D)
    with torch.no_grad():
        hidden = ours.model(inputs_embeds=x).last_hidden_state
        torch.testing.assert_close(hidden, theirs(x), atol=1e-5, rtol=0)
    assert ours.config.vocab_size == VOCABULARY
    assert report.missing == ["model.stem.tokens.weight"]


def test_blog(tmp_path: Any) -> None:
    theirs = randomise(Blog()).eval()
    check_blog(theirs, save(theirs.state_dict(), tmp_path / "m.safetensors"))


@pytest.mark.parametrize("how", ["names", "aliases"])
def test_shared_parameters_are_written_out(how: str, tmp_path: Any) -> None:
    """One block used three times becomes three equal blocks, whether the file holds it three times or once with its aliases."""
    theirs = randomise(Blog(shared=True)).eval()
    path = tmp_path / "m.safetensors"
    if how == "names":
        save(theirs.state_dict(), path)
    else:
        save_model(theirs, str(path))
    ours = check_blog(theirs, str(path))
    blocks = ours.model.body.blocks
    assert len(blocks) == 3
    assert torch.equal(blocks[0].U.weight, blocks[2].U.weight)
    assert blocks[0].U.weight is not blocks[2].U.weight


def test_what_no_model_here_computes_is_refused(tmp_path: Any) -> None:
    attention = {"model.model.0.sgu.attn.proj1.weight": torch.zeros(24, F)}
    path = save({**Blog().state_dict(), **attention}, tmp_path / "blog.safetensors")
    with pytest.raises(MixlabError, match=r"tiny attention reads the expanded channels and lacks the 1/sqrt\(d_attn\)"):
        import_model(path)
    positions = {"src_embed.positional_encodings": torch.zeros(N, 1, D), "src_embed.linear.weight": torch.zeros(VOCABULARY, D)}
    path = save({**Labml().state_dict(), **positions}, tmp_path / "labml.safetensors")
    with pytest.raises(MixlabError, match="add positions, which a gMLP here does not have"):
        import_model(path)
