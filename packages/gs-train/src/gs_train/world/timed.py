# SPDX-License-Identifier: Apache-2.0
"""A world that notes how long a rank waits for the others, and how much it sends them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from gs_train.world.protocol import Ints, Pending, World

Result = TypeVar("Result")

_Pair = tuple[torch.cuda.Event, torch.cuda.Event]

_UNREAD = 64
"""Pairs of events, beyond which those that have passed are read and used again."""


class Waits:
    """What one rank waited for and sent.

    Attributes:
        device_s: seconds for which the compute stream waited for exchanges, and for sums: for their
            way, and for ranks that come later. On the CPU seconds of the host.
        host_s: seconds for which the main thread waited for integers of other ranks. The device
            may be busy meanwhile.
        sent_bytes: of exchanges, to other ranks.
    """

    def __init__(self) -> None:
        self.device_s = 0.0
        self.host_s = 0.0
        self.sent_bytes = 0
        self._stream: torch.cuda.Stream | None = None
        self._unread: deque[_Pair] = deque()
        self._free: list[_Pair] = []

    def on_device(self, call: Callable[[], Result], *, is_cuda: bool) -> Result:
        """The result of a call that makes the compute stream wait.

        Asynchrony: never waits itself; two events are recorded on the stream that was current at
            the first call.
        """
        if not is_cuda:
            started = time.perf_counter()
            result = call()
            self.device_s += time.perf_counter() - started
            return result
        if len(self._unread) >= _UNREAD:
            while self._unread and self._unread[0][1].query():
                self._read()
        if self._stream is None:  # asked once: to ask takes longer than to record
            self._stream = torch.cuda.current_stream()
        start, end = self._free.pop() if self._free else (_event(), _event())
        start.record(self._stream)
        result = call()
        end.record(self._stream)
        self._unread.append((start, end))
        return result

    def on_host(self, call: Callable[[], Result]) -> Result:
        """The result of a call that makes the host wait."""
        started = time.perf_counter()
        result = call()
        self.host_s += time.perf_counter() - started
        return result

    def settle(self) -> None:
        """Read all events; whoever calls has waited for the device."""
        while self._unread:
            self._read()

    def _read(self) -> None:
        start, end = self._unread.popleft()
        self.device_s += start.elapsed_time(end) / 1e3
        self._free.append((start, end))


class TimedWorld:
    """A `World` that does what another one does, and notes waits while `noting`.

    Args:
        world: does the work.
    """

    def __init__(self, world: World) -> None:
        self.rank, self.size, self.device = world.rank, world.size, world.device
        self._world = world
        self._waits: Waits | None = None

    @contextmanager
    def noting(self, waits: Waits) -> Iterator[None]:
        """While entered, waits are added to these."""
        self._waits = waits
        try:
            yield
        finally:
            self._waits = None

    def gather(self, values: npt.ArrayLike) -> Ints:
        if self._waits is None:
            return self._world.gather(values)
        return self._waits.on_host(lambda: self._world.gather(values))

    def sum(self, tensor: Tensor) -> Tensor:
        return self._on_device(lambda: self._world.sum(tensor))

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Pending[Tensor]:
        if self._waits is not None:
            away = sum(send_rows) - send_rows[self.rank]
            self._waits.sent_bytes += away * send.shape[1] * send.element_size()
        return _Noted(self, self._world.all_to_all(recv, send, recv_rows, send_rows))

    def agree(self, name: str, value: Any) -> None:
        self._world.agree(name, value)

    def barrier(self) -> None:
        self._world.barrier()

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return self._world.broadcast(value, root)

    def broadcast_tensor(self, tensor: Tensor, root: int = 0) -> Tensor:
        return self._world.broadcast_tensor(tensor, root)

    def _on_device(self, call: Callable[[], Result]) -> Result:
        if self._waits is None:
            return call()
        return self._waits.on_device(call, is_cuda=self.device.type == "cuda")


def noting(world: World, waits: Waits) -> AbstractContextManager[None]:
    """While entered, waits of a `TimedWorld` are noted; of any other world nothing is."""
    return world.noting(waits) if isinstance(world, TimedWorld) else nullcontext()


class _Noted(NamedTuple):
    """An exchange whose wait is noted."""

    world: TimedWorld
    posted: Pending[Tensor]

    def wait(self) -> Tensor:
        return self.world._on_device(self.posted.wait)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
