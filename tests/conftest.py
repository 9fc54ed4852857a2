"""What all tests share: a fixed seed before each test, and few threads, so that results repeat and runs side by side do not fight."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
