"""How long starting takes: the median of several new processes, beside what importing the libraries alone costs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

ROWS = {
    "python alone": ["-c", "pass"],
    "import mixlab": ["-c", "import mixlab"],
    "mixlab --help": ["-m", "mixlab", "--help"],
    "mixlab list presets": ["-m", "mixlab", "list", "presets"],
    "import of transformers' config class": ["-c", "from transformers import PreTrainedConfig"],
    "mixlab show gmlp-base": ["-m", "mixlab", "show", "gmlp-base"],
}


def seconds(arguments: list[str], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return sorted(times)[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for name, arguments in ROWS.items():
        print(f"{name:<40}{seconds(arguments, rounds):6.2f} s")


if __name__ == "__main__":
    main()
