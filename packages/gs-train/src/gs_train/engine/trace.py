# SPDX-License-Identifier: Apache-2.0
"""What ran when, on the device's streams, in the host's threads and in the optimizer's worker."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

import gs_adam
from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.machine.lanes import Lanes, Name

BATCH = "wait for photographs"
"""The span that begins each batch of a run."""

_TRACKS = ("host", "ahead", "compute", "cull", "load", "store", "worker")
_MOST_SPANS = 500_000  # of some hundred bytes each; more than Perfetto shows with ease
_MOST_PENDING = 10_000
_NOTHING = nullcontext()  # made once: some thirty spans a step are not recorded


@dataclass
class _Pending:
    """A span of a stream, known once its events have passed."""

    track: str
    name: str
    start: torch.cuda.Event
    end: torch.cuda.Event


class Trace:
    """Spans of a run, written as Chrome's trace format, which Perfetto reads too: the newest half a
    million, some thousand batches.

    Off, which is how it starts, every call does nothing and costs next to nothing.
    """

    def __init__(self, lanes: Lanes, worker: gs_adam.Worker | None = None) -> None:
        self._lanes = lanes
        self._worker = worker
        self._path: Path | None = None
        self._origin = 0.0
        self._base: torch.cuda.Event | None = None
        self._pending: list[_Pending] = []
        self._spans: deque[tuple[str, str, float, float]] = deque(maxlen=_MOST_SPANS)

    def start(self, path: Path) -> None:
        """Record from now on; waits for the device, to tie its clock to the host's."""
        self._path = path
        if self._lanes.stream("compute") is not None:
            torch.cuda.synchronize()
            self._base = torch.cuda.Event(enable_timing=True)
            self._base.record()
            torch.cuda.synchronize()
        self._origin = time.monotonic()
        if self._worker is not None:
            self._worker.record(True)

    def on(self, lane: Name, name: str) -> AbstractContextManager[None]:
        """What the calls inside enqueue on a stream; without streams, what they take."""
        if self._path is None:
            return _NOTHING
        stream = self._lanes.stream(lane)
        return self._here(name, lane) if stream is None else self._there(stream, name, lane)

    def host(self, name: str, *, track: str = "host") -> AbstractContextManager[None]:
        """What the calls inside take on this thread."""
        return _NOTHING if self._path is None else self._here(name, track)

    def both(self, name: str, lane: Name = "compute") -> AbstractContextManager[None]:
        """What the calls inside take on this thread, and what they enqueue on a stream."""
        return _NOTHING if self._path is None else self._both(name, lane)

    @contextmanager
    def _both(self, name: str, lane: Name) -> Iterator[None]:
        with self.host(name), self.on(lane, name):
            yield

    @contextmanager
    def _there(self, stream: torch.cuda.Stream, name: str, track: str) -> Iterator[None]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(stream)
        yield
        end.record(stream)
        self._pending.append(_Pending(track, name, start, end))

    @contextmanager
    def _here(self, name: str, track: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._spans.append((track, name, started - self._origin, time.monotonic() - started))

    @property
    def spans(self) -> tuple[tuple[str, str, float, float], ...]:
        """Track, name, start and length in seconds of what is known to have ended."""
        return tuple(self._spans)

    def write(self) -> None:
        """Write everything so far; the file is complete after each call. Waits for the device.

        Where it cannot be written any more, this says so and ends the trace: work goes on.
        """
        if self._path is None:
            return
        self._collect()
        events: list[dict[str, object]] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": k, "args": {"name": track}}
            for k, track in enumerate(_TRACKS)
        ]
        events += [
            {
                "name": name,
                "ph": "X",
                "pid": 0,
                "tid": _TRACKS.index(track),
                "ts": round(1e6 * start, 3),
                "dur": round(1e6 * seconds, 3),
            }
            for track, name, start, seconds in self._spans
        ]
        try:
            with replacing(self._path) as out:
                out.write(json.dumps({"traceEvents": events}).encode())
        except (InputError, OSError) as error:
            print(f"--trace ends, it cannot be written any more: {error}", file=sys.stderr)
            self._path = None
            if self._worker is not None:
                self._worker.record(False)

    def settle(self) -> None:
        """Between batches: what is not known yet, until its events have passed, stays little. Waits
        for the device now and then."""
        if self._path is not None and (self._base is None or len(self._pending) > _MOST_PENDING):
            self._collect()

    def _collect(self) -> None:
        """Note the spans of streams and of the worker. Waits for the device."""
        if self._base is not None:
            torch.cuda.synchronize()
            for span in self._pending:
                start = self._base.elapsed_time(span.start) / 1e3
                seconds = span.start.elapsed_time(span.end) / 1e3
                self._spans.append((span.track, span.name, start, seconds))
            self._pending.clear()
        for ran in self._worker.take_spans() if self._worker is not None else ():
            name = f"{'update' if ran.is_update else 'look ahead'} {ran.rows:,}"
            self._spans.append(("worker", name, ran.start - self._origin, ran.end - ran.start))
