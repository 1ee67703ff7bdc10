# SPDX-License-Identifier: Apache-2.0
"""Room for the tile intersections of a view, chosen before they are counted."""

from __future__ import annotations

from collections import deque

from gs_raster import MAX_INSTANCES

KEPT_BYTES = 1 << 28
"""Memory that a renderer keeps from batch to batch at most. Where views take more, the time of an
allocation is small."""

_SPARE = 65536
"""Intersections beyond what is expected of a view."""

_A_ROW = 8
"""Intersections of a row that are expected in a view that was not drawn before."""


class Densities:
    """Intersections a row of each view when something of it was last drawn. They decide how often
    something is drawn, and no result.

    Args:
        n_lately: views that were drawn last, by which one is judged that was not drawn before. To
            draw again takes longer than to sort more, so it is expected to be as dense as the
            densest of them.
    """

    def __init__(self, n_lately: int = 0) -> None:
        self._of: dict[str, float] = {}
        self._lately: deque[float] = deque(maxlen=n_lately)

    def room(self, view: str, n_rows: int, known: int | None = None) -> int:
        """Intersections that a microbatch gets room for.

        Args:
            view: its name.
            n_rows: of the microbatch.
            known: intersections of the view when others drew it last, if that is known.
        """
        density = self._of.get(view)
        if density is None and known is None:
            density = max(self._lately, default=None)
        return room_for(n_rows, known if density is None else round(density * n_rows))

    def note(self, view: str, n_rows: int, count: int) -> None:
        """Something of a view has been drawn, with so many intersections."""
        if n_rows:
            density = count / n_rows
            self._of[view] = density
            self._lately.append(density)


def room_for(n_rows: int, known: int | None) -> int:
    """Intersections that a microbatch gets room for before they are counted.

    Args:
        n_rows: of the microbatch.
        known: intersections, by those of its view when that was last drawn; None: not known.
    """
    expected = _A_ROW * n_rows if known is None else known + known // 8
    return min(_rounded_up(expected + _SPARE), MAX_INSTANCES)


def room_of(count: int) -> int:
    """For intersections that have been counted; more than `MAX_INSTANCES` for too many."""
    return count if count > MAX_INSTANCES else min(_rounded_up(count), MAX_INSTANCES)


def _rounded_up(n: int) -> int:
    """To one of 16 numbers in an octave: rooms that differ little are equal, so that a renderer can
    go on with what it prepared for a room."""
    step = 1 << max(n.bit_length() - 5, 0)
    return -(-n // step) * step
