"""What all tests share: a fixed seed before each test, and few threads, so that results repeat and runs side by side do not fight."""

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# How long an example takes says more about what else the machine does than about the test.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> None:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
