# `make demo` and `make test` work on a fresh machine: they set up .venv themselves, once.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: setup oracles judge demo test lint type slow bench docs clean

setup: .venv/.installed
oracles: .oracles/.installed
judge: .judge/.fetched

# torch comes first and alone, so that a CPU build that pip is told about is taken and kept.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch numpy
	$(PIP) --editable ".[dev]"
	@touch $@

# Other implementations, in a folder of their own: PyPI's torchvision is built for CUDA and would break transformers beside a CPU torch.
.oracles/.installed: .venv/.installed
	rm -rf .oracles
	$(PIP) --target .oracles --no-deps timm torchvision g-mlp-pytorch einops
	$(PIP) --target .oracles/files --no-deps torchaudio
	@touch $@

# transformers' own model tests, of the installed version.
.judge/.fetched: .venv/.installed
	$(BIN)/python -m tests.judge.fetch
	@touch $@

demo: setup
	$(BIN)/mixlab demo --run-dir demo-out

test: setup oracles judge
	$(BIN)/python -m pytest -n 2 --dist loadscope -q -m "not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup
	$(BIN)/pyright

slow: setup oracles judge
	$(BIN)/python -m pytest -q -m slow

bench: setup
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/labelled_logits.py

docs: setup judge
	$(BIN)/python docs/tables.py
	$(BIN)/python -m tests.judge.table

clean:
	rm -rf .venv .oracles .judge build dist .pytest_cache .ruff_cache .hypothesis
