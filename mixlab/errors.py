"""The one error that a user may see: a single line that says what was wrong, the value, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MixlabError(ValueError):
    """Something the user can mend; the command line prints it without a traceback and exits with `exit_code`."""

    exit_code = 1


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> MixlabError:
    """`unknown preset 'gmlp-bass'; did you mean 'gmlp-base'?`, or the known names when nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if near:
        remedy = f"did you mean {near[0]!r}?"
    elif len(names) > 12:
        remedy = f"known: {', '.join(names[:12])}, and {len(names) - 12} more"
    else:
        remedy = f"known: {', '.join(names)}"
    return MixlabError(f"unknown {kind} {name!r}; {remedy}{' ' + hint if hint else ''}")


def one_line(text: object) -> str:
    """Any message on a single line, for errors that come from other libraries."""
    return " ".join(str(text).split())
