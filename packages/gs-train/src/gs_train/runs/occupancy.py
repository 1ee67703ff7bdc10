# SPDX-License-Identifier: Apache-2.0
"""How much of a traced run the device was idle, and how long it waited for the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[str, str, float, float]
"""Track, name, start and length in seconds, as `Trace.spans`."""

_DEVICE = ("compute", "load", "store")
_DRAWING = ("take", "draw", "give")
_UPDATING = ("update",)


def device_idle_share(spans: Sequence[Span]) -> float:
    """Share of the time between the first span and the last in which the device neither computes,
    loads nor stores; 0 without spans."""
    if not spans:
        return 0.0
    began = min(start for _, _, start, _ in spans)
    ended = max(start + seconds for _, _, start, seconds in spans)
    busy = _covered((start, start + n) for track, _, start, n in spans if track in _DEVICE)
    return 1.0 - busy / (ended - began) if ended > began else 0.0


def optimizer_tail_s(spans: Sequence[Span]) -> float:
    """Seconds in which an optimizer runs, on the device or on the host, and nothing is drawn."""
    drawing = _named(spans, ("compute",), _DRAWING)
    updating = _named(spans, ("compute", "worker"), _UPDATING)
    return _covered([*drawing, *updating]) - _covered(drawing)


def _named(
    spans: Iterable[Span], tracks: tuple[str, ...], names: tuple[str, ...]
) -> list[tuple[float, float]]:
    return [
        (start, start + seconds)
        for track, name, start, seconds in spans
        if track in tracks and name.startswith(names)
    ]


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
