# SPDX-License-Identifier: Apache-2.0
"""How fast a rank draws, by which ranks choose who draws what.

A pace decides who draws, never what is drawn together or where views are cut: no result depends on
a clock.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

UNKNOWN = 0
"""The pace of a rank that has not drawn lately."""

_UNIT_S = 1e-12
_KEPT = 33  # draws, one a batch, of which one in the middle counts: the first ones take long
_LATELY = 64  # batches


class Clock(Protocol):
    """Tells how long work of a device takes."""

    def mark(self) -> Any:
        """A moment: when what has been enqueued so far will be done."""
        ...

    def seconds(self, first: Any, last: Any) -> float | None:
        """Between two moments; None: the last one is not over, and nobody waits for it."""
        ...


class HostClock:
    """A `Clock` of work that is over when a call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, last: float) -> float:
        return last - first


class DeviceClock:
    """A `Clock` of the stream of a CUDA device that is current at the first mark."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def mark(self) -> torch.cuda.Event:
        if self._stream is None:  # asked once: to ask takes longer than to record
            self._stream = torch.cuda.current_stream()
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float | None:
        return first.elapsed_time(last) / 1000 if last.query() else None


def clock_of(device: torch.device) -> Clock:
    """The one that tells how long work of this device takes."""
    return DeviceClock() if device.type == "cuda" else HostClock()


class _Draw(NamedTuple):
    """What a rank has drawn."""

    batch: int
    n_rows: int
    first: Any
    last: Any


class DrawingPace:
    """What this rank takes to draw a row: the median of its last timed draws.

    The first draw of each batch is timed: marks take time of the launching thread, which may be the
    limit of a rank.

    Args:
        clock: of the rank's device.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._batch = 0
        self._is_timed = False  # a draw of this batch
        self._under_way: deque[_Draw] = deque()
        self._found: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # batch, seconds a row

    @contextlib.contextmanager
    def drawing(self, n_rows: int) -> Iterator[None]:
        """While entered, so many rows are drawn."""
        if self._is_timed or not n_rows:
            yield
            return
        first = self._clock.mark()
        yield
        self._under_way.append(_Draw(self._batch, n_rows, first, self._clock.mark()))
        self._is_timed = True

    def next_batch(self) -> int:
        """A batch begins. Returns the pace, in picoseconds a row, or `UNKNOWN`.

        Asynchrony: never waits; a draw counts once its time is known.
        """
        self._batch += 1
        self._is_timed = False
        while self._under_way:
            draw = self._under_way[0]
            seconds = self._clock.seconds(draw.first, draw.last)
            if seconds is None:
                break
            self._under_way.popleft()
            self._found.append((draw.batch, seconds / draw.n_rows))
        while self._found and self._found[0][0] < self._batch - _LATELY:
            self._found.popleft()
        if not self._found:
            return UNKNOWN
        return max(1, round(statistics.median_low([pace for _, pace in self._found]) / _UNIT_S))


def paces_of(gathered: ArrayLike) -> np.ndarray:
    """(W,) above 0, by which ranks share a batch.

    Args:
        gathered: (W,) int64, what `DrawingPace.next_batch` gave on each rank. A rank of `UNKNOWN`
            pace counts as a little faster than all others: it is tried.
    """
    paces = np.array(gathered, np.float64)
    known = paces[paces != UNKNOWN]
    paces[paces == UNKNOWN] = 0.99 * known.min() if len(known) else 1.0
    return paces
