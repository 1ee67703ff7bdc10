# SPDX-License-Identifier: Apache-2.0
"""Rows from host memory to the device, brought up to date on the way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

import gs_pinned
from gs_order import Plan
from gs_order.ragged import Ragged
from gs_train.engine.columns import columns
from gs_train.engine.host_rows import HostRows
from gs_train.engine.lanes import Lanes

CHUNK_BYTES = 32 << 20
"""Rows are caught up and sent in such pieces, so that the link starts early (GS-Scale 4.2)."""


@dataclass
class _Chunk:
    """Rows ``start:stop`` of the load list of a microbatch, caught up in a ring slot."""

    microbatch: int
    start: int
    stop: int
    slot: gs_pinned.RingSlot | None = None
    ticket: int = -1


class Loads:
    """The loads of one batch at a time, in the order in which they are needed.

    With deferred semantics rows sleep in the table, so the worker computes their present values
    into a ring (``lookahead``) and the device reads them there in one dense run. With dense
    semantics the table is up to date and is read directly.
    """

    def __init__(self, host: HostRows, lanes: Lanes, ring_bytes: int) -> None:
        self._host = host
        self._lanes = lanes
        self._ring: gs_pinned.Ring | None = None
        self._ring_bytes = ring_bytes
        self._plan: Plan | None = None
        self._ids: Ragged | None = None
        self._waiting: deque[_Chunk] = deque()  # not given to the worker yet
        self._working: deque[_Chunk] = deque()
        self._passing: deque[tuple[torch.cuda.Event | None, gs_pinned.RingSlot]] = deque()
        self._counting = torch.zeros(0, dtype=torch.int32)

    @property
    def is_deferred(self) -> bool:
        return self._host.adam.semantics == "deferred"

    def begin(self, plan: Plan) -> None:
        """Start a batch: rows shall be as the last step begun leaves them.

        Deferred: of rows that this step updates, the updates must have been submitted.
        """
        self._plan = plan
        if not self.is_deferred:
            return
        self._ids = plan.to_host().wait().load
        rows = max(1, CHUNK_BYTES // (self._host.width * 4))
        for i, count in enumerate(plan.counts["load"].tolist()):
            for start in range(0, count, rows):
                self._waiting.append(_Chunk(i, start, min(start + rows, count)))
        self._submit()

    def bring(self, i: int, values: Tensor, before: Tensor | None) -> None:
        """Enqueue the rows of microbatch i on the load stream.

        Args:
            values: (slots, W) buffer of the device.
            before: the other buffer, where rows are kept in two that take turns.
        """
        assert self._plan is not None
        step = self._plan[i]
        n = int(self._plan.counts["load"][i])
        stream = self._lanes.stream("load")
        with self._lanes.on("load"):
            sources = step.retain_sources
            kept = values[:0] if before is None else before
            targets = step.slots_of("retain") if len(sources) else sources
            if not self.is_deferred:
                gs_pinned.gather_retained(
                    self._host.table, step.load, step.slots_of("load"),
                    kept, sources, targets, values, stream=stream, max_blocks=32,
                )  # fmt: skip
                return
            slots = step.slots_of("load")
            if len(sources):
                values.index_copy_(0, targets.long(), kept.index_select(0, sources.long()))
            while n:
                chunk = self._next(i)
                assert chunk.slot is not None
                gs_pinned.gather_retained(
                    chunk.slot.torch(), self._first(chunk.stop - chunk.start, slots.device),
                    slots[chunk.start : chunk.stop],
                    values[:0], sources[:0], sources[:0], values, stream=stream, max_blocks=32,
                )  # fmt: skip
                self._passing.append((self._lanes.mark("load"), chunk.slot))
                n -= chunk.stop - chunk.start
            self._submit()

    def drop(self) -> None:
        """Forget what was begun and not brought."""
        self._waiting.clear()
        while self._working:
            chunk = self._working.popleft()
            self._host.worker.wait(chunk.ticket)
            assert chunk.slot is not None
            chunk.slot.release()
        self._plan = None

    def _next(self, microbatch: int) -> _Chunk:
        """The next chunk, which belongs to this microbatch, once it has been caught up."""
        while not self._working:
            self._release(block=True)
            self._submit()
        chunk = self._working.popleft()
        assert chunk.microbatch == microbatch
        self._host.worker.wait(chunk.ticket)
        return chunk

    def _submit(self) -> None:
        """Give the worker as many chunks as the ring has room for."""
        if self._ring is None:
            self._ring = gs_pinned.Ring(max(self._ring_bytes, 2 * CHUNK_BYTES))
        self._release(block=False)
        while self._waiting:
            chunk = self._waiting[0]
            try:
                slot = self._ring.take(chunk.stop - chunk.start, self._host.table.layout, 0.0)
            except TimeoutError:
                return
            assert self._ids is not None
            chunk.slot = slot
            chunk.ticket = self._host.worker.lookahead(
                self._ids[chunk.microbatch][chunk.start : chunk.stop],
                out=list(columns(slot.torch()).values()),
                priority=1,
            )
            self._working.append(self._waiting.popleft())

    def _release(self, *, block: bool) -> None:
        """Hand back slots that the device has read; the oldest is waited for."""
        while self._passing:
            event, slot = self._passing[0]
            if event is not None and not event.query():
                if not block:
                    return
                event.synchronize()
            slot.release()
            self._passing.popleft()
            block = False

    def _first(self, n: int, device: torch.device) -> Tensor:
        if n > len(self._counting) or self._counting.device != device:
            self._counting = torch.arange(n, dtype=torch.int32, device=device)
        return self._counting[:n]
