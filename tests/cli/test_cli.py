"""The command line as users meet it: new processes, real exit codes, one-line errors, quick starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mixlab
from mixlab import cli
from mixlab.cli import doctor
from mixlab.training.checkpoints import NoValidCheckpointError
from mixlab.training.interrupt import Interrupted

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "mixlab", *arguments], capture_output=True, text=True, check=False, cwd=cwd or ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_help_lists_every_command_and_every_command_has_help() -> None:
    overview = run("--help").stdout
    for command in cli.commands():
        assert f"  {command} " in overview
        told = run(command, "--help").stdout
        assert "usage: mixlab " + command in told
        documented = cli.module_of(command).main.__doc__ or ""
        for option in documented.partition("Args:")[2].splitlines():
            assert " ".join(option.partition(": ")[2].split()[:3]) in told
    assert run(code=2).stderr.startswith("usage: mixlab COMMAND")
    assert run("--version").stdout.strip() == mixlab.__version__


EXPLAINED = ["explain", "conv 3x3 64->64 on 256x256"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list", "presets"],
        ["list", "archs", "--json"],
        ["show", "--help"],
        EXPLAINED,
        [*EXPLAINED, "vs", "dense 3 -> 4", "--markdown"],
        ["explain", "--claims", "--json"],
        ["explain", "gmlp-bass"],
    ],
)
def test_quick_commands_load_neither_torch_nor_transformers(arguments: list[str]) -> None:
    code = (
        "import sys; from mixlab.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def quickest(*arguments: str, rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.slow
def test_starting_is_quick() -> None:
    """Limits of 0.2 s for the import and 0.3 s for listing, here beyond the bare interpreter's own start, whatever else runs."""
    bare = quickest("-c", "pass")
    assert quickest("-c", "import mixlab") - bare < 0.2
    assert quickest("-m", "mixlab", "--help") - bare < 0.3
    assert quickest("-m", "mixlab", "list", "presets") - bare < 0.3
    assert quickest("-m", "mixlab", *EXPLAINED) - bare < 0.3
    assert quickest("-m", "mixlab", "explain", "--claims") - bare < 0.3


@pytest.mark.slow
def test_showing_a_preset_costs_little_more_than_importing_transformers() -> None:
    imported = quickest("-c", "from transformers import PreTrainedConfig")
    assert quickest("-m", "mixlab", "show", "gmlp-xlarge") - imported < 0.5
    assert quickest("-m", "mixlab", "explain", "vit-22b") - imported < 0.5


def test_lists() -> None:
    assert [row["name"] for row in json.loads(run("list", "archs", "--json").stdout)] == mixlab.archs()
    assert [row["name"] for row in json.loads(run("list", "presets", "--json").stdout)] == mixlab.presets()
    assert "gmlp-base" in run("list", "presets").stdout


def test_show_gives_the_promised_keys() -> None:
    shown = json.loads(run("show", "gmlp-base", "--json").stdout)
    assert {"preset", "arch", "task", "params", "macs", "flops", "length", "traits"} <= set(shown)
    assert (shown["params"], shown["task"], shown["length"]) == (130_073_552, "masked-lm", 512)
    assert shown["flops"] == 2 * shown["macs"] == 2 * sum(part["macs"] for part in shown["parts"])
    assert shown["params"] == sum(part["params"] for part in shown["parts"])
    shorter = json.loads(run("show", "gmlp-base", "--length", "128", "--task", "causal-lm", "--json").stdout)
    assert (shorter["length"], shorter["task"]) == (128, "causal-lm")
    table = run("show", "amlp-base").stdout
    assert "108,791,516" in table
    assert "i*o + o = 512*3072 + 3072 = 1,575,936" in table


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["shwo"], 2, "did you mean 'show'?"),
        (["show"], 2, "preset"),
        (["list", "things"], 2, "things"),
        (["show", "gmlp-bass"], 1, "did you mean 'gmlp-base'?"),
        (["show", "gmlp-base", "--task", "masked-ml"], 1, "did you mean 'masked-lm'?"),
        (["show", "gmlp-base", "--task", "image-classification"], 1, "it can do: features"),
        (["show", "gmlp-base", "--length", "513"], 1, "outside 1..512"),
        (["show", "gmlp-base", "--length", "0"], 1, "outside 1..512"),
        (["import", "nothing.safetensors", "-o", "out"], 1, "does not exist"),
        (["import", "README.md", "-o", "out"], 1, "--allow-pickle"),
        (["import", "README.md", "-o", "out", "--allow-pickle"], 1, "was not loaded"),
        (["import", "docs", "-o", "out"], 1, "no .safetensors"),
        (["import", "README.md", "-o", "mixlab"], 1, "not an empty folder"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    stderr = capsys.readouterr().err
    assert left.value.code == code
    assert said in stderr
    if code == 1:
        assert stderr.count("\n") == 1
        assert stderr.startswith("error: ")


def test_a_mistake_in_a_new_process_has_its_exit_code() -> None:
    assert run("show", "gmlp-bass", code=1).stderr == "error: unknown preset 'gmlp-bass'; did you mean 'gmlp-base'?\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (NoValidCheckpointError("no valid checkpoint is left"), 3, "error: no valid checkpoint is left\n"),
        (
            Interrupted("interrupted after step 3; the same command continues"),
            130,
            "interrupted after step 3; the same command continues\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_ended_a_run_is_told_by_its_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(name: str, options: list[str]) -> None:
        raise error

    monkeypatch.setattr(cli, "run", end)
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "demo-pretrain"])
    assert left.value.code == code
    assert capsys.readouterr().err == said


def test_debug_shows_the_traceback() -> None:
    done = subprocess.run([sys.executable, "-m", "mixlab", "show", "x", "--debug"], capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(f"{sys.executable} -m mixlab list presets | head -1", shell=True, capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_import_writes_a_folder_that_auto_classes_load(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    mixlab.create("gmlp-tiny", num_hidden_layers=2).save_pretrained(tmp_path / "mlm")
    options = ["--task", "causal-lm", "--length", "64", "--json"]
    report = json.loads(run("import", str(tmp_path / "mlm"), "-o", str(tmp_path / "out"), *options).stdout)
    assert report["task"] == "causal-lm"
    assert any("dropped 127 of the 255 taps" in note for note in report["notes"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.max_position_embeddings == 64


def test_doctor_ends_well() -> None:
    found = json.loads(run("doctor", "--json").stdout)
    assert found["forward_pass"] is True
    assert found["packages"]["torch"]


def test_doctor_knows_what_is_needed() -> None:
    wanted = re.search(r"\ndependencies = \[(.*?)\n\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.DOTALL)
    assert wanted is not None
    assert set(re.findall(r'"([\w-]+)', wanted[1])) == set(doctor.REQUIRED)


def test_doctor_names_the_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a package that is needed, or with one that does not fit, it says so instead of breaking down itself."""

    def broken(*_: object) -> None:
        raise ImportError("libcudart.so: cannot open\nshared object file")

    monkeypatch.setattr(doctor, "version", lambda name: None if name == "scipy" else "1.0")
    monkeypatch.setattr(mixlab, "create", broken)
    doctor.main()
    told = capsys.readouterr().out
    assert "not installed, and needed: pip install scipy" in told
    assert "ImportError: libcudart.so: cannot open shared object file" in told


def test_the_demo_ends_with_a_report(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mixlab", "demo", "--run-dir", str(tmp_path / "demo"), "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"open {tmp_path / 'demo' / 'report.html'}" in done.stdout
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "What the gates learned" in page
    assert page.count("data:image/png;base64,") == 6  # W of four blocks, the nearest Toeplitz matrix of one, and the same shuffled
    assert "the same, shuffled" in page
    assert page.count("[MASK]") >= 3
    assert len(page) < 500_000
