"""The shapes in the signatures are true: the tests of maps and layers again, with every annotation checked at run time."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_annotated_shapes_hold_at_run_time() -> None:
    hook = "--jaxtyping-packages=mixlab.maps,mixlab.layers,beartype.beartype"
    # Wrong names of options are told by the checker then, and not by us.
    arguments = ["tests/maps", "tests/layers", "-q", "-k", "not mistakes", "-p", "no:xdist", hook]
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
