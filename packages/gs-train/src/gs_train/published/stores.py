# SPDX-License-Identifier: Apache-2.0
"""Complete gradients from the device to the host optimizer."""

from __future__ import annotations

from collections import deque
from functools import cached_property

import numpy as np
from torch import Tensor

import gs_pinned
from gs_train.machine.lanes import Lanes
from gs_train.published.loads import CHUNK_BYTES
from gs_train.rows.attributes import host_columns
from gs_train.rows.host_rows import HostRows


class Stores:
    """Gradients leave densely through a ring; the worker updates their rows as they land."""

    def __init__(self, host: HostRows, lanes: Lanes, ring_bytes: int) -> None:
        self._host = host
        self._lanes = lanes
        self._ring_bytes = max(ring_bytes, 2 * CHUNK_BYTES)
        self._sent: list[int] = []
        self._updating: deque[tuple[int, gs_pinned.RingSlot]] = deque()

    @cached_property
    def _ring(self) -> gs_pinned.Ring:
        """Made when it is first needed: a run may never store a row."""
        return gs_pinned.Ring(self._ring_bytes)

    def send(self, gradients: Tensor, slots: Tensor, ids: np.ndarray, *, step: int) -> None:
        """Enqueue gradients on the store stream and their updates in the worker.

        Args:
            gradients: (C, W) buffer of the device.
            slots: (F,) where the rows are in it.
            ids: (F,) the same rows, on the host.
            step: the host optimizer's open step.

        Asynchrony: waits for an earlier update while the ring is full.
        """
        rows = max(1, CHUNK_BYTES // (self._host.width * 4))
        for start in range(0, len(ids), rows):
            slot = self._store(gradients, slots[start : start + rows])
            ticket = self._host.worker.submit(
                ids[start : start + rows],
                host_columns(slot.numpy()),
                step=step,
                ready=(slot.address, slot.value),
                checked=True,
            )
            self._sent.append(ticket)
            self._updating.append((ticket, slot))

    def updates(self) -> tuple[int, ...]:
        """Tickets of the updates sent since this was last asked."""
        sent, self._sent = self._sent, []
        return tuple(sent)

    def finish(self) -> None:
        """Wait until all gradients sent have become updates."""
        while self._updating:
            self._reap()

    def _store(self, gradients: Tensor, slots: Tensor) -> gs_pinned.RingSlot:
        while True:
            try:
                with self._lanes.on("store"):
                    return gs_pinned.store_compact(
                        gradients,
                        slots,
                        self._ring,
                        stream=self._lanes.stream("store"),
                        timeout_s=0.0,
                    )
            except TimeoutError:
                self._reap()

    def _reap(self) -> None:
        ticket, slot = self._updating.popleft()
        self._host.worker.wait(ticket)
        slot.release()
