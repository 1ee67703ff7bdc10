# SPDX-License-Identifier: Apache-2.0
"""A world that notes how long a rank waits for the others, and how much it sends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from gs_train.world.protocol import Ints, Pending, World

Result = TypeVar("Result")


@dataclass
class Waits:
    """What one rank waited for and sent.

    Attributes:
        device_s: seconds for which the compute stream waited for exchanges, and for sums: for their
            way, and for ranks that come later. On the CPU seconds of the host.
        host_s: seconds for which the main thread waited for integers of other ranks. The device
            may be busy meanwhile.
        sent_bytes: of exchanges, to other ranks.
    """

    device_s: float = 0.0
    host_s: float = 0.0
    sent_bytes: int = 0
    _events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    @contextmanager
    def device(self, is_cuda: bool) -> Iterator[None]:
        """What is called inside makes the compute stream wait."""
        if not is_cuda:
            started = time.perf_counter()
            yield
            self.device_s += time.perf_counter() - started
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._events.append((start, end))

    @contextmanager
    def host(self) -> Iterator[None]:
        """What is called inside makes the host wait."""
        started = time.perf_counter()
        yield
        self.host_s += time.perf_counter() - started

    def settle(self) -> None:
        """Read the events, all of which have passed."""
        self.device_s += sum(start.elapsed_time(end) for start, end in self._events) / 1e3
        self._events.clear()


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
    def noting(self) -> Iterator[Waits]:
        """Waits of the calls inside; whoever leaves has waited for the device."""
        self._waits = waits = Waits()
        try:
            yield waits
        finally:
            self._waits = None
        waits.settle()

    def gather(self, values: npt.ArrayLike) -> Ints:
        return self._on_host(lambda: self._world.gather(values))

    def sum(self, tensor: Tensor) -> Tensor:
        return self._on_device(lambda: self._world.sum(tensor))

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Pending[Tensor]:
        if self._waits is not None:
            away = sum(send_rows) - send_rows[self.rank]
            self._waits.sent_bytes += away * send.shape[1] * send.element_size()
        posted = self._world.all_to_all(recv, send, recv_rows, send_rows)
        return _Noted(lambda: self._on_device(posted.wait))

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
        with self._waits.device(self.device.type == "cuda"):
            return call()

    def _on_host(self, call: Callable[[], Result]) -> Result:
        if self._waits is None:
            return call()
        with self._waits.host():
            return call()


@dataclass(frozen=True)
class _Noted:
    """A collective whose wait is noted."""

    wait: Callable[[], Any]
