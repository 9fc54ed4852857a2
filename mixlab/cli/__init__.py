"""The command line. Every file in this folder is a command: its docstring is the help, its `main` takes the options.

Exit codes: 0 done; 1 an error, told in one line; 2 wrong usage; 3 no valid checkpoint is left; 130 interrupted.
A trailing underscore keeps a file off a name of Python's own.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from mixlab.errors import MixlabError, one_line, unknown


def commands() -> dict[str, str]:
    """Every command and the first line of its file's docstring, without importing it."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem.rstrip("_")] = docstring.partition("\n")[0]
    return found


def overview() -> str:
    lines = [f"  {name:<10}{text}" for name, text in commands().items()]
    return "\n".join(["usage: mixlab COMMAND [OPTIONS]      (mixlab COMMAND --help tells its options)", "", *lines])


def main(argv: list[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    if not args or args[0] in ("-h", "--help"):
        print(overview(), file=sys.stdout if args else sys.stderr)
        sys.exit(0 if args else 2)
    if args[0] == "--version":
        from mixlab import __version__

        print(__version__)
        sys.exit(0)
    name, options = args[0], args[1:]
    if name not in commands():
        print(f"error: {unknown('command', name, commands())}", file=sys.stderr)
        sys.exit(2)
    try:
        run(name, options)
    except MixlabError as error:
        fail(str(error), error, debug, error.exit_code)
    except KeyboardInterrupt as stop:
        print(one_line(stop) or "interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        fail(one_line(error), error, debug)
    except Exception as error:
        fail(f"unexpected {type(error).__name__}: {one_line(error)} (--debug shows where; please report it)", error, debug)


def module_of(command: str) -> Any:
    """The module of a command, imported."""
    suffix = "" if (Path(__file__).parent / f"{command}.py").exists() else "_"
    return importlib.import_module(f"mixlab.cli.{command}{suffix}")


def run(name: str, options: list[str]) -> None:
    import tyro

    module = module_of(name)
    tyro.cli(module.main, args=options, prog=f"mixlab {name}", description=module.__doc__, config=(tyro.conf.OmitArgPrefixes,))


def fail(message: str, error: BaseException, debug: bool, code: int = 1) -> None:
    if debug:
        raise error
    print(f"error: {one_line(message)}", file=sys.stderr)
    sys.exit(code)
