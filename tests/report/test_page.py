"""Reports show hostile text as text, need nothing from outside, and draw what they are given."""

from __future__ import annotations

import itertools
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from mixlab.report.charts import Series, bar_chart, heatmap, line_chart, png, ticks
from mixlab.report.page import Page, Section, Table

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<svg/onload=alert(1)>",
    "{{ 7*7 }}",
    "javascript:alert(1)",
    "</title><script>alert(1)</script>",
    "\u2028<b>bold</b>",
    "<!-- --><iframe src=//x>",
    "&lt;script&gt;",
]


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page(text: str) -> Page:
    chart = line_chart(text, text, text, [Series(text, [(0, 1), (1, 2)])])
    bars = bar_chart(text, [text], [(text, [1.0])], lambda value: text)
    section = Section(text, [text], Table([text], [[text]], [text]), [chart, bars, heatmap(torch.eye(3), text)], code=text, notes=[text])
    return Page(text, text, [section])


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_text(text: str) -> None:
    harmless, hostile = Seen(), Seen()
    harmless.feed(page("harmless").html())
    hostile.feed(page(text).html())
    assert hostile.tags == harmless.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in harmless.attributes]
    assert hostile.text.count(text) >= 7


def test_nothing_comes_from_outside() -> None:
    seen = Seen()
    html = page("plain").html()
    seen.feed(html)
    assert "script" not in seen.tags
    assert "link" not in seen.tags
    policy = next(value for name, value in seen.attributes if name == "content" and value and "default-src" in value)
    assert "default-src 'none'" in policy
    assert not re.search(r"(?:src|href)=\"(?!data:)", html)


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    page("plain").write(tmp_path / "new" / "report.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]


def test_a_matrix_becomes_a_picture_of_its_size() -> None:
    picture = png(torch.tensor([[-1.0, 0.0, 1.0]]))
    assert picture.startswith(b"\x89PNG")
    assert picture[16:24] == (3).to_bytes(4, "big") + (1).to_bytes(4, "big")
    data = picture[picture.index(b"IDAT") + 4 : picture.index(b"IEND") - 8]
    assert list(zlib.decompress(data)) == [0, 33, 102, 172, 247, 247, 247, 178, 24, 43]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 3), (-1e-9, 1e-9), (1e6, 3e6), (-5, 0.1)])
def test_ticks_enclose_the_range(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low
    assert marks[-1] >= high
    assert 2 <= len(marks) <= 12


def test_numbers_that_are_not_finite_are_left_out() -> None:
    drawn = line_chart("loss", "step", "loss", [Series("a", [(0, 1.0), (1, float("nan")), (2, float("inf")), (3, 2.0)])])
    assert "nan" not in drawn
    assert drawn.count("polyline") == 1
    assert "no numbers" in line_chart("loss", "step", "loss", [Series("a", [(0, float("nan"))])])


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bar_chart("shares", ["a", "b"], [("one", [0.5, 0.25]), ("two", [0.0, -1.0])], lambda share: f"{share:.0%}")
    lengths = [float(width) for width in re.findall(r'width="([\d.]+)" height="18"', drawn)]
    assert lengths == [lengths[0], lengths[0] / 2, 0.0, 0.0]
    assert "50%" in drawn
    assert "nan" not in bar_chart("nothing", ["a"], [("one", [0.0])], str)


def test_names_of_lines_stay_apart_and_above_the_axis() -> None:
    """Three lines that end in one point at the bottom, and one far above."""
    drawn = line_chart("t", "x", "y", [Series(name, [(0, 1), (1, 0)]) for name in "abc"] + [Series("d", [(0, 1), (1, 1)])])
    places = [float(y) for y in re.findall(r'class="name s\d" x="\d+" y="([\d.]+)"', drawn)]
    assert min(b - a for a, b in itertools.pairwise(sorted(places))) >= 20
    assert max(places) <= 320 - 56 + 4


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1,024", "12.5", "-3", "95%", "1e-05"], "number"),
        (["1", "about 2"], "short"),
        (["x" * 34], "short"),
        (["x" * 35, "1"], "words"),
        (["1.2.3"], "short"),
    ],
)
def test_columns_of_numbers_stand_to_the_right(cells: list[str], kind: str) -> None:
    assert Table(["a"], [[cell] for cell in cells]).kinds == [kind]
    assert f'<td class="{kind}">' in Page("t", "a", [Section("s", table=Table(["a"], [[cell] for cell in cells]))]).html()
