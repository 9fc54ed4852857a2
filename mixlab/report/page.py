"""The page of a report: sections of text, tables and figures, rendered with autoescaping into one file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?%?")
SHORT = 34  # characters


@dataclass(frozen=True)
class Table:
    """Columns of numbers stand to the right. `total` is a last row that sums up."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] = ()

    @property
    def kinds(self) -> list[str]:
        """The style class of every column."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.header)
        return [_kind(column) for column in columns]


def _kind(column: Sequence[str]) -> str:
    """Numbers and short cells stay on one line; the others are broken where the page is narrow."""
    if column and all(NUMBER.fullmatch(cell) for cell in column):
        return "number"
    return "short" if all(len(cell) <= SHORT for cell in column) else "words"


@dataclass(frozen=True)
class Section:
    """`figures` are markup made by `charts`; everything else is text and is escaped. `notes` stand below them."""

    title: str
    paragraphs: Sequence[str] = ()
    table: Table | None = None
    figures: Sequence[Markup] = ()
    code: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    title: str
    answer: str
    sections: Sequence[Section] = field(default_factory=tuple)

    def html(self) -> str:
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
        return environment.from_string(template).render(page=self)

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(path.name + ".part")
        staged.write_text(self.html(), encoding="utf-8")
        staged.replace(path)
