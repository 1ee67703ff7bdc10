# SPDX-License-Identifier: Apache-2.0
"""Curves as SVG, for a page that holds them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_WIDTH, _HEIGHT = 460, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 26
_MOST_POINTS = 600
_N_TICKS = 4


def chart(title: str, points: Sequence[tuple[float, float]]) -> str:
    """A curve over steps, as an ``<svg>`` element; empty text where fewer than two points are
    finite.

    Args:
        title: above the curve.
        points: (step, value), by step; of many, every so many-th is drawn, and the last.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) < 2:
        return ""
    every = -(-len(finite) // _MOST_POINTS)
    drawn = finite[::every]
    if drawn[-1] != finite[-1]:
        drawn.append(finite[-1])
    x0, x1 = drawn[0][0], drawn[-1][0]
    y0, y1 = min(y for _, y in drawn), max(y for _, y in drawn)
    if y0 == y1:
        room = max(1.0, abs(y0) / 20)
        y0, y1 = y0 - room, y1 + room
    inner_w, inner_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + inner_w * (x - x0) / max(x1 - x0, 1e-12)

    def down(y: float) -> float:
        return _TOP + inner_h * (1 - (y - y0) / (y1 - y0))

    line = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in drawn)
    marks = []
    for k in range(_N_TICKS + 1):
        y = y0 + (y1 - y0) * k / _N_TICKS
        marks.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down(y):.1f}" '
            f'y2="{down(y):.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{_short(y)}</text>'
        )
    for x, anchor in ((x0, "start"), (x1, "end")):
        marks.append(
            f'<text x="{across(x):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{x:,.0f}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f'<text class="title" x="{_LEFT}" y="16">{html.escape(title)}</text>{"".join(marks)}'
        f'<polyline points="{line}"/></svg>'
    )


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:.0f}"
