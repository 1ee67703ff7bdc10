# SPDX-License-Identifier: Apache-2.0
"""Rows from host memory to the device, brought up to date on the way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import gs_pinned
from gs_order import Plan
from gs_train.engine.columns import columns
from gs_train.engine.host_rows import HostRows
from gs_train.engine.lanes import Lanes
from gs_train.engine.need import contains

CHUNK_BYTES = 32 << 20
"""Rows are caught up and sent in such pieces, so that the link starts early (GS-Scale 4.2)."""

_BLOCKS = 32  # of gathers: what the link takes while gradients leave


@dataclass
class _Chunk:
    """Some rows of a microbatch's load list, caught up in a ring slot."""

    microbatch: int
    ids: np.ndarray
    slots: Tensor  # of the device buffer
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
        self._ring_bytes = max(ring_bytes, 2 * CHUNK_BYTES)
        self._plan: Plan | None = None
        self._is_first_begun = False
        self._waiting: deque[_Chunk] = deque()  # not given to the worker yet
        self._working: deque[_Chunk] = deque()
        self._passing: deque[tuple[torch.cuda.Event | None, gs_pinned.RingSlot]] = deque()
        self._counting = torch.zeros(0, dtype=torch.int32)

    @property
    def is_deferred(self) -> bool:
        """Whether rows sleep."""
        return self._host.adam.semantics == "deferred"

    def announce(self, plan: Plan, touched: Tensor) -> None:
        """Catch up what the next batch needs first and the present one does not touch.

        Args:
            plan: of the next batch; `begin` follows when the present one's updates are submitted.
            touched: (U,) sorted rows of the present batch.
        """
        if not self.is_deferred:
            return
        first = plan[0]
        later = contains(touched, first.load)
        order = torch.sort(later.byte(), stable=True).indices
        ids = first.load[order].cpu().numpy()
        slots = first.slots_of("load")[order]
        n_fresh = len(ids) - int(later.sum())
        self._append(0, ids[:n_fresh], slots[:n_fresh])
        self._submit()
        self._append(0, ids[n_fresh:], slots[n_fresh:])
        self._is_first_begun = True

    def begin(self, plan: Plan) -> None:
        """Start a batch: rows shall be as the last step begun leaves them.

        Deferred: of rows that this step updates, the updates must have been submitted.
        """
        self._plan = plan
        if not self.is_deferred:
            return
        ids = plan.to_host().wait().load
        for i in range(int(self._is_first_begun), len(plan)):
            self._append(i, ids[i], plan[i].slots_of("load"))
        self._is_first_begun = False
        self._submit()

    def bring(self, i: int, values: Tensor, before: Tensor | None) -> None:
        """Enqueue the rows of microbatch i on the load stream.

        Args:
            values: (slots, W) buffer of the device.
            before: the other buffer, where rows are kept in two that take turns.
        """
        assert self._plan is not None
        step = self._plan[i]
        stream = self._lanes.stream("load")
        with self._lanes.on("load"):
            sources = step.retain_sources
            targets = step.slots_of("retain") if len(sources) else sources
            kept = values[:0] if before is None else before
            if not self.is_deferred:
                gs_pinned.gather_retained(
                    self._host.table, step.load, step.slots_of("load"),
                    kept, sources, targets, values, stream=stream, max_blocks=_BLOCKS,
                )  # fmt: skip
                return
            if len(sources):
                values.index_copy_(0, targets.long(), kept.index_select(0, sources.long()))
            n = int(self._plan.counts["load"][i])
            while n:
                chunk = self._next(i)
                assert chunk.slot is not None
                nothing = chunk.slots[:0]
                gs_pinned.gather_retained(
                    chunk.slot.torch(), self._first(len(chunk.ids), values.device), chunk.slots,
                    values[:0], nothing, nothing, values, stream=stream, max_blocks=_BLOCKS,
                )  # fmt: skip
                self._passing.append((self._lanes.mark("load"), chunk.slot))
                n -= len(chunk.ids)
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
        self._is_first_begun = False

    def _append(self, microbatch: int, ids: np.ndarray, slots: Tensor) -> None:
        rows = max(1, CHUNK_BYTES // (self._host.width * 4))
        for start in range(0, len(ids), rows):
            part = slice(start, start + rows)
            self._waiting.append(_Chunk(microbatch, ids[part], slots[part]))

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
            self._ring = gs_pinned.Ring(self._ring_bytes)
        self._release(block=False)
        while self._waiting:
            chunk = self._waiting[0]
            try:
                slot = self._ring.take(len(chunk.ids), self._host.table.layout, 0.0)
            except TimeoutError:
                return
            chunk.slot = slot
            chunk.ticket = self._host.worker.lookahead(
                chunk.ids, out=list(columns(slot.torch()).values()), priority=1
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
