"""Charts as SVG and matrices as small PNG pictures, both written into the page. Labels are escaped; colours follow the theme."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from markupsafe import Markup, escape
from torch import Tensor

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 320, 60, 56, 28, 90
BAR = 18  # the height of a bar


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]


def line_chart(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> Markup:
    """Lines over common axes, each named at its end. Points that are not finite are left out."""
    kept = [Series(s.name, [p for p in s.points if all(map(math.isfinite, p))]) for s in series]
    kept = [s for s in kept if s.points]
    if not kept:
        return Markup("<p>{}: no numbers to draw</p>").format(title)
    xs, ys = [p[0] for s in kept for p in s.points], [p[1] for s in kept for p in s.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_of = _scale(x_ticks, LEFT, WIDTH - RIGHT)
    y_of = _scale(y_ticks, HEIGHT - BOTTOM, TOP)
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, title)]
    mark = Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
    parts += [mark.format(x_of(x), HEIGHT - BOTTOM + 22, f"{x:g}") for x in x_ticks]
    for y in y_ticks:
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y_of(y), y_of(y)))
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(LEFT - 6, y_of(y) + 4, f"{y:g}"))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label))
    parts.append(Markup('<text x="{}" y="{}">{}</text>').format(4, TOP - 12, y_label))
    ends = _apart([y_of(s.points[-1][1]) for s in kept], 20, HEIGHT - BOTTOM)
    for number, (s, end) in enumerate(zip(kept, ends, strict=True)):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in s.points)
        parts.append(Markup('<polyline class="s{}" points="{}"/>').format(number % 6, path))
        parts.append(Markup('<text class="name s{}" x="{}" y="{:.1f}">{}</text>').format(number % 6, WIDTH - RIGHT + 8, end + 4, s.name))
    return Markup("").join([*parts, Markup("</svg>")])


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that enclose a range."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.floor(low / step)
    return [round(k * step, 12) for k in range(first, math.ceil(high / step) + 1)]


def _scale(marks: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = marks[0], marks[-1]
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _apart(places: Sequence[float], least: float, lowest: float) -> list[float]:
    """Labels moved apart until they do not overlap, in their order, and up again where they would pass the lowest place."""
    moved = list(places)
    downwards = sorted(range(len(places)), key=lambda i: places[i])
    previous = -math.inf
    for i in downwards:
        moved[i] = previous = max(places[i], previous + least)
    limit = lowest
    for i in reversed(downwards):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - least
    return moved


def bar_chart(title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], unit: Callable[[float], str]) -> Markup:
    """Bars from zero to the right: one of each series in every group, with its value, and the names of the series above."""
    step = len(series) * (BAR + 4) + 18
    left, top, height = 90, 40, 40 + step * len(groups)
    most = max((value for _, values in series for value in values), default=0.0) or 1.0
    parts = [Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title)]
    for number, (name, values) in enumerate(series):
        x, colour = left + number * 250, f"b{number % 6}"
        parts.append(Markup('<rect class="{}" x="{}" y="8" width="14" height="14"/>').format(colour, x))
        parts.append(Markup('<text x="{}" y="20">{}</text>').format(x + 22, name))
        for place, value in enumerate(values):
            y, length = top + place * step + number * (BAR + 4), max(value, 0.0) / most * (WIDTH - left - RIGHT)
            parts.append(Markup('<rect class="{}" x="{}" y="{}" width="{:.1f}" height="{}"/>').format(colour, left, y, length, BAR))
            parts.append(Markup('<text x="{:.1f}" y="{}">{}</text>').format(left + length + 8, y + BAR - 4, unit(value)))
    for place, group in enumerate(groups):
        y = top + place * step + (step - 18) / 2 + 2
        parts.append(Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(left - 12, y, group))
    return Markup("").join([*parts, Markup("</svg>")])


def heatmap(matrix: Float[Tensor, "rows columns"], title: str, pixels: int = 192) -> Markup:
    """A matrix as a picture: blue below zero, white at it, red above; the strongest colour is the largest magnitude."""
    values = matrix.detach().float().cpu()
    top = float(values.abs().max()) or 1.0
    data = base64.b64encode(png((values / top).clamp(-1, 1))).decode()
    caption = f"{title} (largest {top:.2g})"
    return Markup(
        '<figure><img class="matrix" width="{}" height="{}" alt="{}" src="data:image/png;base64,{}"><figcaption>{}</figcaption></figure>'
    ).format(pixels, pixels, caption, data, escape(caption))


def png(values: Float[Tensor, "rows columns"]) -> bytes:
    """Numbers from -1 to 1 as an RGB picture."""
    strength = values.abs()[..., None]
    red, blue, white = (torch.tensor(colour) for colour in ((178.0, 24.0, 43.0), (33.0, 102.0, 172.0), (247.0, 247.0, 247.0)))
    colour = torch.where(values[..., None] > 0, red, blue)
    rows = (white + (colour - white) * strength).round().to(torch.uint8)
    raw = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in rows)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(raw, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
