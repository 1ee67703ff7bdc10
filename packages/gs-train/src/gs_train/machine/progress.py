# SPDX-License-Identifier: Apache-2.0
"""How far a run is: a live bar on a terminal, one plain line now and then anywhere else."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from gs_train.machine.memory import peak_host_bytes, resident_bytes
from gs_train.sizes import format_bytes

PLAIN_INTERVAL_S = 30.0
LIVE_INTERVAL_S = 0.5
WINDOW_S = 60.0

Clock = Callable[[], float]


class Progress:
    """Progress of a training run; a context manager.

    Args:
        total: steps when done.
        start: steps done before (a resumed run).
        device_bytes: called for the device memory in use when a line is shown; None on the CPU.
        more: called for more words of a line; None: there are none.
        stream: where to; a terminal gets the bar, anything else plain lines.
        clock: seconds, monotonic.
        plain_interval_s: between plain lines.
    """

    def __init__(
        self,
        total: int,
        *,
        start: int = 0,
        device_bytes: Callable[[], int] | None = None,
        more: Callable[[], str] | None = None,
        stream: IO[str] | None = None,
        clock: Clock = time.monotonic,
        plain_interval_s: float = PLAIN_INTERVAL_S,
    ) -> None:
        self._total = total
        self._device_bytes = device_bytes
        self._more = more
        self._display = _Display(stream or sys.stderr, plain_interval_s)
        self._clock = clock
        self._window = _Window(clock(), start)
        self._images = 0
        self._next_show = -math.inf
        self._step = self._shown = start
        self._loss: float | Callable[[], float] = math.nan
        self._n_gaussians = 0

    def __enter__(self) -> Progress:
        self._display.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._step != self._shown:
            self._show(self._clock())
        self._display.close()

    def update(
        self, step: int, loss: float | Callable[[], float], n_gaussians: int, *, n_images: int = 1
    ) -> None:
        """Say that ``step`` steps are done.

        Args:
            step: optimizer steps done.
            loss: of this step; pass ``tensor.item`` itself, not its value, so that the device is
                waited for only when a line is shown (every half second on a terminal, else with
                each plain line).
            n_gaussians: now.
            n_images: that this step trained on.

        Cost: a microsecond, unless a line is due.
        """
        self._step = step
        self._loss = loss
        self._n_gaussians = n_gaussians
        self._images += n_images
        now = self._clock()
        if now >= self._next_show or step >= self._total:
            self._show(now)

    def message(self, text: str) -> None:
        """Print a line of its own; above the bar on a terminal."""
        self._display.message(text)

    def _show(self, now: float) -> None:
        self._window.add(now, self._step, self._images)
        steps_per_s, images_per_s = self._window.rates()
        loss = self._loss() if callable(self._loss) else self._loss
        parts = [
            f"step {self._step:,}/{self._total:,}",
            f"loss {loss:.4f}",
            f"{self._n_gaussians:,} Gaussians",
            f"{images_per_s:.1f} images/s",
        ]
        if self._device_bytes is not None:
            parts.append(f"device {format_bytes(self._device_bytes())}")
        parts.append(f"host {format_bytes(resident_bytes() or peak_host_bytes())}")
        if self._more is not None and (words := self._more()):
            parts.append(words)
        left = max(0, self._total - self._step)
        parts.append(f"ETA {format_seconds(left / steps_per_s if steps_per_s else None)}")
        self._display.show(self._step, self._total, "  ".join(parts))
        self._shown = self._step
        self._next_show = now + self._display.interval_s


class TaskProgress:
    """Progress of a smaller task, such as undistorting images; a context manager.

    Args:
        description: what is being done, for the line.
        total: how many items; None when not known yet.
        stream, clock, plain_interval_s: as for ``Progress``.
    """

    def __init__(
        self,
        description: str,
        total: int | None = None,
        *,
        stream: IO[str] | None = None,
        clock: Clock = time.monotonic,
        plain_interval_s: float = PLAIN_INTERVAL_S,
    ) -> None:
        self._description = description
        self._total = total
        self._display = _Display(stream or sys.stderr, plain_interval_s)
        self._clock = clock
        self._window = _Window(clock(), 0)
        self._next_show = -math.inf
        self._done = 0
        self._shown = -1

    def __enter__(self) -> TaskProgress:
        self._display.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._done != self._shown and self._done:
            self._show(self._clock())
        self._display.close()

    def advance(self, n: int = 1) -> None:
        """Say that ``n`` more items are done."""
        self.update(self._done + n)

    def update(self, done: int, total: int | None = None) -> None:
        """Say that ``done`` items are done, of ``total`` when given."""
        self._done = done
        self._total = self._total if total is None else total
        now = self._clock()
        if now >= self._next_show or done == self._total:
            self._show(now)

    def _show(self, now: float) -> None:
        self._window.add(now, self._done, 0)
        per_s, _ = self._window.rates()
        text = f"{self._description} {self._done:,}"
        if self._total is not None:
            left = max(0, self._total - self._done)
            text += f"/{self._total:,}"
            if left:
                text += f"  ETA {format_seconds(left / per_s if per_s else None)}"
        self._display.show(self._done, self._total, text)
        self._shown = self._done
        self._next_show = now + self._display.interval_s


class Stages:
    """Says what is being done, of several things that follow one another; a context manager.

    Args:
        description: of them all.
        total: how many there are.
        stream: where to; a terminal gets a bar, anything else a line for each.
    """

    def __init__(self, description: str, total: int, *, stream: IO[str] | None = None) -> None:
        self._description = description
        self._total = total
        self._begun = 0
        self._display = _Display(stream or sys.stderr, 0.0)

    def __enter__(self) -> Stages:
        self._display.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.close()

    def begin(self, what: str) -> None:
        """The next one begins."""
        self._begun += 1
        text = f"{self._description} {self._begun}/{self._total}: {what}"
        self._display.show(self._begun - 1, self._total, text)

    def message(self, text: str) -> None:
        """Print a line of its own; above the bar on a terminal."""
        self._display.message(text)


def task_progress(description: str, total: int | None = None, **options: Any) -> TaskProgress:
    """``TaskProgress`` under the name that reads well in a with statement."""
    return TaskProgress(description, total, **options)


def format_seconds(seconds: float | None) -> str:
    """Hours, minutes, seconds; ``?`` when not known.

    >>> format_seconds(3725)
    '1:02:05'
    """
    if seconds is None:
        return "?"
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{s:02d}"


class _Window:
    """Rates over the last minute, so that a slow start does not spoil the estimate."""

    def __init__(self, now: float, steps: int) -> None:
        self._samples = deque([(now, steps, 0)])

    def add(self, now: float, steps: int, images: int) -> None:
        self._samples.append((now, steps, images))
        # Keep one sample that is at least a window old, to measure a whole window from.
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()

    def rates(self) -> tuple[float, float]:
        """Steps and images per second; 0 while no time has passed."""
        (t0, steps0, images0), (t1, steps1, images1) = self._samples[0], self._samples[-1]
        if t1 <= t0:
            return 0.0, 0.0
        return (steps1 - steps0) / (t1 - t0), (images1 - images0) / (t1 - t0)


class _Display:
    """A bar with a line of text under it on a terminal, plain lines elsewhere."""

    def __init__(self, stream: IO[str], plain_interval_s: float) -> None:
        self._stream = stream
        self._live: Any = None
        self._is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self.interval_s = LIVE_INTERVAL_S if self._is_terminal else plain_interval_s

    def open(self) -> None:
        if self._is_terminal:
            from rich.console import Console
            from rich.live import Live

            # No refresh thread: it would show, and so compute, at moments of its own choosing.
            self._live = Live(console=Console(file=self._stream), auto_refresh=False)
            self._live.start()

    def show(self, done: int, total: int | None, text: str) -> None:
        if self._live is None:
            print(text, file=self._stream, flush=True)
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid()
        if total:
            grid.add_row(ProgressBar(total=total, completed=done, width=60))
        grid.add_row(Text(text, no_wrap=True, overflow="ellipsis"))
        self._live.update(grid, refresh=True)

    def message(self, text: str) -> None:
        if self._live is None:
            print(text, file=self._stream, flush=True)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
