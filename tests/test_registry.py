"""An architecture exists because its file does: one new file, and nothing else, makes it a full citizen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mixlab
from mixlab import registry
from mixlab.errors import MixlabError

ROOT = Path(__file__).parent.parent

POOL = '''"""Pooling: each token sees the mean of itself and its two neighbours (a test of the registry)."""

from functools import partial

import torch
from torch import nn

from mixlab.accounting import in_group
from mixlab.accounting.parts import layer_norm, linear
from mixlab.layers.tokens import without_padding
from mixlab.modeling.architecture import Architecture, Preset, stack
from mixlab.modeling.config import MixerConfig
from mixlab.modeling.traits import Traits


class PoolConfig(MixerConfig):
    model_type = "mixlab-pool"

    @property
    def traits(self):
        tasks = ("features", "masked-lm", "sequence-classification")
        return Traits(
            masks=True, causal=False, length="any", modalities=("text",), tasks=tasks, order=(1,), attention=False,
            equivariance="shift", reach=self.num_hidden_layers,
        )


class Pool(nn.Module):
    order = 1

    def forward(self, x):
        return nn.functional.avg_pool1d(x.mT, 3, stride=1, padding=1).mT


class PoolBlock(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.pool = Pool()
        self.project = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, tokens):
        x = without_padding(self.norm(tokens.x), tokens.mask)
        tokens.keep("maps", lambda: torch.ones(x.shape[1], x.shape[1]).tril(1).triu(-1)[None] / 3)
        return tokens.with_x(tokens.x + self.project(self.pool(x)))


def account(config, n):
    d = config.hidden_size
    block = [layer_norm("norm", d, n), linear("project", d, d, n)]
    return [*in_group("body", block, config.num_hidden_layers), *([layer_norm("norm", d, n)] if config.final_norm else [])]


PRESETS = {"pool-tiny": Preset({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 500}, "masked-lm", "a test")}
ARCH = Architecture("pool", PoolConfig, body=partial(stack, block=PoolBlock), account=account, presets=PRESETS)
'''

USE = """
import mixlab, sys
assert "pool" in mixlab.archs() and "pool-tiny" in mixlab.presets()
assert mixlab.__file__.startswith(sys.argv[1]), mixlab.__file__
model = mixlab.create("pool-tiny")
assert type(model).__name__ == "PoolForMaskedLM"
assert model._no_split_modules == {"PoolBlock"}
assert sum(p.numel() for p in model.parameters()) == mixlab.account("pool-tiny", length=9).params
model.save_pretrained(sys.argv[1] + "/saved")
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModel
assert type(AutoModelForMaskedLM.from_pretrained(sys.argv[1] + "/saved")) is type(model)
assert AutoConfig.from_pretrained(sys.argv[1] + "/saved").model_type == "mixlab-pool"
from mixlab.archs.pool import PoolModel
assert isinstance(AutoModel.from_pretrained(sys.argv[1] + "/saved"), PoolModel)
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and of the conformance suite, and one new file."""
    folder = tmp_path_factory.mktemp("extended")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mixlab", folder / "mixlab", ignore=skip)
    shutil.copytree(ROOT / "tests" / "conformance", folder / "tests" / "conformance", ignore=skip)
    for name in ("tests/__init__.py", "tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "mixlab" / "archs" / "pool.py").write_text(POOL, encoding="utf-8")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_dropped_in_file_is_listed_created_saved_loaded_and_counted(extended: Path) -> None:
    done = run(extended, "-c", USE, str(extended))
    assert done.returncode == 0, done.stderr
    listed = run(extended, "-m", "mixlab", "list", "archs")
    assert re.search(r"^pool +Pooling: each token sees the mean", listed.stdout, re.MULTILINE)
    shown = run(extended, "-m", "mixlab", "show", "pool-tiny", "--length", "9", "--json")
    assert '"arch": "pool"' in shown.stdout, shown.stderr


def test_a_dropped_in_file_is_conformance_tested(extended: Path) -> None:
    done = run(extended, "-m", "pytest", "-q", "tests/conformance", "-k", "pool", "-m", "not slow", "-p", "no:xdist")
    summary = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(summary.split(" passed")[0].split()[-1]) >= 15, summary


def test_a_file_without_written_out_presets_is_refused(extended: Path) -> None:
    bad = extended / "mixlab" / "archs" / "bad.py"
    bad.write_text('"""Bad."""\nPRESETS = {name: 1 for name in "ab"}\n', encoding="utf-8")
    done = run(extended, "-m", "mixlab", "list", "presets")
    bad.unlink()
    assert done.returncode == 1
    assert "archs/bad.py has no PRESETS" in done.stderr
    assert "Traceback" not in done.stderr


def test_names_are_found_without_importing_anything_heavy() -> None:
    code = "import sys, mixlab; mixlab.archs(); mixlab.presets(); print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_every_architecture_has_a_small_preset_for_text_and_for_images_where_it_takes_them() -> None:
    for arch in registry.archs():
        small = [name for name in registry.presets(arch) if "tiny" in name.split("-")]
        assert f"{arch}-tiny" in small
        if any("image" in mixlab.config(name).traits.modalities for name in small):
            assert f"{arch}-tiny-image" in small
        for name in small:
            assert sum(p.numel() for p in mixlab.create(name).parameters()) < 1_000_000
            if mixlab.config(name).modality == "text":
                assert mixlab.config(name).vocab_size <= 2000


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mixlab.create("gmlp-bass"), "did you mean 'gmlp-base'?"),
        (lambda: mixlab.create("gmlp"), "its presets: gmlp-ti16-224"),
        (lambda: mixlab.create("gmlp-tiny", task="masked-ml"), "did you mean 'masked-lm'?"),
        (lambda: mixlab.create("gmlp-tiny", task="image-classification"), "it can do: features, masked-lm"),
        (lambda: mixlab.create("gmlp-tiny", task=["masked-lm"]), "unknown task ['masked-lm']"),  # type: ignore[arg-type]
        (lambda: mixlab.account("gmlp-tiny", task=["masked-lm"]), "unknown task ['masked-lm']"),  # type: ignore[arg-type]
        (lambda: mixlab.account("gmlp-tiny", length=True), "outside 1..128"),
        (lambda: mixlab.config("gmlp-tiny", hidden_sizee=3), "did you mean 'hidden_size'?"),
        (lambda: mixlab.config("gmlp-tiny", hidden_size="big"), "expected int, got str"),
        (lambda: mixlab.config("gmlp-tiny", intermediate_size=513), "odd"),
        (lambda: mixlab.config("gmlp-tiny", gate="splitt"), "splitt"),
        (lambda: mixlab.config("gmlp-tiny", gate_heads=7), "divisor"),
        (lambda: mixlab.config("gmlp-tiny", hidden_dropout=1.0), "below 1"),
        (lambda: mixlab.config("gmlp-tiny", num_hidden_layers=0), "at least 1"),
        (lambda: mixlab.config("gmlp-tiny", max_position_embeddings=None), "max_position_embeddings is missing"),
        (lambda: mixlab.config("gmlp-tiny", causal=True), "sees only itself"),
        (lambda: mixlab.config("gmlp-tiny-image", image_size=33), "not a multiple"),
        (lambda: mixlab.config("gmlp-tiny-image", causal=True), "causal"),
        (lambda: mixlab.config("amlp-tiny", num_attention_heads=5), "divisor"),
        (lambda: mixlab.create("gmlp-tiny", task="causal-lm", causal=False), "contradict"),
        (lambda: mixlab.create("gmlp-tiny", task="sequence-classification", num_labels=0), "num_labels is 0"),
        (lambda: mixlab.config("gmlp-tiny", spatial_init_std=float("nan")), "finite"),
        (lambda: mixlab.config("gmlp-tiny", spatial_init_std=-1.0), "at least 0"),
        (lambda: mixlab.config("gmlp-tiny", initializer_range=-0.1), "at least 0"),
        (lambda: mixlab.config("gmlp-tiny", layer_norm_eps=-1e-6), "at least 0"),
        (lambda: mixlab.config("gmlp-tiny", pad_token_id=2000), "outside 0..1999"),
        (lambda: mixlab.config("gmlp-tiny", eos_token_id=[3, -1]), "eos_token_id is -1"),
        (lambda: mixlab.account("gmlp-tiny", length=9.5), "outside 1..128"),
        (lambda: mixlab.account("gmlp-tiny", length=4000), "outside 1..128"),
        (lambda: mixlab.account("gmlp-tiny-image", length=5), "set image_size instead"),
        (lambda: registry.module("gmpl"), "did you mean 'gmlp'?"),
    ],
)
def test_wrong_names_and_values_are_refused_in_one_line(call: object, said: str) -> None:
    with pytest.raises(MixlabError) as caught:
        call()  # type: ignore[operator]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
