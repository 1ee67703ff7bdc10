# SPDX-License-Identifier: Apache-2.0
"""A chart of grouped bars as SVG, the same text for the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 336
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 80, 44
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Series:
    """Bars of one colour, one for each group; None where a group has none.

    Attributes:
        values: for each group the median, the least and the most.
        is_mark: drawn as a line across the group instead of as a bar.
    """

    name: str
    colour: str
    values: tuple[tuple[float, float, float] | None, ...]
    is_mark: bool = False


def bars(title: str, unit: str, groups: Sequence[str], series: Sequence[Series]) -> str:
    """An SVG with a bar, its range and its number for each group and series."""
    most = max(value[2] for one in series for value in one.values if value)
    step = _round_step(most / 5)
    top = step * -(-most // step)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def y(value: float) -> float:
        return _TOP + height * (1 - value / top)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 20, title, "start", size=14),
    ]
    for k in range(round(top / step) + 1):
        at = y(k * step)
        out.append(_line(_LEFT, at, _WIDTH - _RIGHT, at, "#dddddd", 1))
        out.append(_text(_LEFT - 6, at + 4, f"{k * step:g}", "end"))
    out.append(_text(8, _TOP - 10, unit, "start"))
    x = float(_LEFT)
    for one in series:
        out.append(f'<rect x="{x:.1f}" y="32" width="12" height="12" fill="{one.colour}"/>')
        out.append(_text(x + 17, 42, one.name, "start"))
        x += 34 + 6.6 * len(one.name)
    solid = [one for one in series if not one.is_mark]
    room = width / len(groups)
    bar = 0.8 * room / max(1, len(solid))
    for g, group in enumerate(groups):
        start = _LEFT + room * (g + 0.1)
        out.append(_text(start + 0.4 * room, _HEIGHT - _BOTTOM + 20, group, "middle"))
        for k, one in enumerate(solid):
            value = one.values[g]
            if value is None:
                continue
            median, low, high = value
            left, middle = start + k * bar, start + (k + 0.5) * bar
            out.append(
                f'<rect x="{left + 2:.1f}" y="{y(median):.1f}" width="{bar - 4:.1f}" '
                f'height="{y(0) - y(median):.1f}" fill="{one.colour}"/>'
            )
            out.append(_line(middle, y(low), middle, y(high), "#222222", 1.5))
            out.append(_text(middle, y(high) - 5, f"{median:.3g}", "middle"))
        for one in series:
            value = one.values[g]
            if one.is_mark and value is not None:
                end = start + 0.8 * room
                out.append(_line(start, y(value[0]), end, y(value[0]), one.colour, 2.5))
                out.append(_text(end + 3, y(value[0]) + 4, f"{value[0]:.3g}", "start"))
    out.append("</svg>")
    return "\n".join(out) + "\n"


def _round_step(least: float) -> float:
    """The least of 1, 2, 5, 10, 20, 50... that is not below."""
    power = 1.0
    while power > least:
        power /= 10
    while True:
        for step in _STEPS:
            if step * power >= least:
                return step * power
        power *= 10


def _text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#222222">{escape(words)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"/>'
    )
