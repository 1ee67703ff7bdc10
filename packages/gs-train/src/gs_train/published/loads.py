# SPDX-License-Identifier: Apache-2.0
"""Rows from host memory to the device, up to date when they arrive."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gs_pinned
from gs_order import Plan, Step
from gs_train.machine.lanes import Lanes
from gs_train.rows.attributes import host_columns
from gs_train.rows.host_rows import HostRows

CHUNK_BYTES = 32 << 20
"""Rows are caught up and sent in such pieces, so that the link starts early (GS-Scale 4.2)."""


@dataclass(frozen=True)
class _Parted:
    """Lists of rows, each in two sorted parts.

    Attributes:
        ids: (L,) sorted within each part, the first parts in front; on the device.
        slots: (L,) of the same rows; on the device.
        on_host: the ids on the host.
        offsets: (B + 1,) where each list begins; on the host.
        n_first: (B,) lengths of the first parts; on the host.
    """

    ids: Tensor
    slots: Tensor
    on_host: np.ndarray
    offsets: np.ndarray
    n_first: np.ndarray

    @classmethod
    def of(cls, plan: Plan, touched: Tensor | None) -> _Parted:
        """The load lists of a plan: rows that sleep, then those that the step before has updated.
        Synchronises once.

        Args:
            touched: (U,) sorted rows that the step before updates; None: none.
        """
        lists = plan.ids["load"]
        slots = (plan.positions if plan.slots is None else plan.slots)["load"].values
        rows = lists.values
        awake = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        if touched is not None and len(touched):
            place = torch.searchsorted(touched, rows).clamp_(max=len(touched) - 1)
            awake = touched[place] == rows
        offsets = np.asarray(lists.offsets)
        ends = torch.from_numpy(offsets[1:].copy()).to(rows.device, non_blocking=True)
        list_of = torch.bucketize(torch.arange(len(rows), device=rows.device), ends, right=True)
        order = torch.sort(2 * list_of + awake.long(), stable=True).indices
        counts = torch.zeros(len(ends), dtype=torch.int64, device=rows.device)
        counts.index_add_(0, list_of, (~awake).long())
        # Both before the wait: other streams read them without another one.
        ids, slots = rows[order], slots[order]
        on_host, n_first = _to_host(ids, counts)
        return cls(ids, slots, on_host.numpy(), offsets, n_first.numpy())

    def bounds(self, i: int) -> tuple[int, int, int]:
        """Where list i begins, where its second part begins, and where it ends."""
        first, last = int(self.offsets[i]), int(self.offsets[i + 1])
        return first, first + int(self.n_first[i]), last


@dataclass(frozen=True)
class _Chunk:
    """Some rows of a microbatch's load list that are caught up together."""

    microbatch: int
    ids: np.ndarray
    slots: Tensor  # of the device buffer


class Loads:
    """The loads of one batch at a time, in the order in which they are needed.

    With deferred semantics most rows sleep in the table: the worker computes their present values
    into a ring (``lookahead``) and the device reads them there in one dense run. Rows that the
    step before has updated are awake, and are read from the table once that update is done. With
    dense semantics all rows are.
    """

    def __init__(self, host: HostRows, lanes: Lanes, ring_bytes: int) -> None:
        self._host = host
        self._lanes = lanes
        self._ring_bytes = max(ring_bytes, 2 * CHUNK_BYTES)
        self._lists: _Parted | None = None
        self._as_of: Any = None  # of the batch: the ring may have no room before the next step
        self._updates: tuple[int, ...] = ()
        self._waiting: deque[_Chunk] = deque()  # not given to the worker yet
        self._working: deque[tuple[_Chunk, gs_pinned.RingSlot, int]] = deque()  # with tickets
        self._passing: deque[tuple[torch.cuda.Event | None, gs_pinned.RingSlot]] = deque()
        self._counting = torch.zeros(0, dtype=torch.int32)

    @cached_property
    def _ring(self) -> gs_pinned.Ring:
        """Made when it is first needed: a run may never load a row."""
        return gs_pinned.Ring(self._ring_bytes)

    @property
    def n_asleep(self) -> int:
        """Rows of the batch begun that are caught up on their way."""
        return 0 if self._lists is None else int(self._lists.n_first.sum())

    def begin(self, plan: Plan, touched: Tensor | None, updates: tuple[int, ...]) -> None:
        """Start a batch: rows shall be as the last step begun leaves them.

        Args:
            plan: of the batch.
            touched: (U,) sorted rows that the last step updates; None: not known.
            updates: tickets of that step's updates.
        """
        self.wait_for(self._updates)  # what sleeps now may be among their rows
        self._updates = updates
        if self._host.adam.semantics != "deferred":
            return
        self._lists, self._as_of = _Parted.of(plan, touched), self._host.adam.now()
        rows = max(1, CHUNK_BYTES // (self._host.width * 4))
        for i in range(len(plan)):
            first, awake, _ = self._lists.bounds(i)
            for start in range(first, awake, rows):
                part = slice(start, min(start + rows, awake))
                chunk = _Chunk(i, self._lists.on_host[part], self._lists.slots[part])
                self._waiting.append(chunk)
        self._submit()

    def bring(self, step: Step, values: Tensor, before: Tensor | None) -> None:
        """Enqueue the rows of a microbatch, step of the plan, on the load stream.

        Args:
            values: (slots, W) buffer of the device.
            before: the other buffer, where rows are kept in two that take turns.
        """
        with self._lanes.on("load"):
            sources = step.retain_sources
            targets = step.slots_of("retain") if len(sources) else sources
            kept = values[:0] if before is None else before, sources, targets
            if self._lists is None:
                self.wait_for(self._updates)
                self._gather(step.load, step.slots_of("load"), values, kept)
                return
            first, awake, last = self._lists.bounds(step.index)
            n = awake - first
            while n:
                chunk, slot = self._next(step.index)
                order = self._counted(len(chunk.ids), values.device)
                self._gather(order, chunk.slots, values, None, slot.torch())
                self._passing.append((self._lanes.mark("load"), slot))
                n -= len(chunk.ids)
            self.wait_for(self._updates)
            part = slice(awake, last)
            self._gather(self._lists.ids[part], self._lists.slots[part], values, kept)
            self._submit()

    def _gather(
        self,
        ids: Tensor,
        slots: Tensor,
        values: Tensor,
        kept: tuple[Tensor, Tensor, Tensor] | None,
        source: Tensor | None = None,
    ) -> None:
        """Rows of the table, or of ``source`` in host memory, and rows kept in another buffer."""
        nothing = slots[:0]
        gs_pinned.gather_retained(
            self._host.table if source is None else source,
            ids, slots, *(kept or (values[:0], nothing, nothing)), values,
            stream=self._lanes.stream("load"),
        )  # fmt: skip

    def drop(self) -> None:
        """Forget what was begun and not brought."""
        self._waiting.clear()
        while self._working:
            _, slot, ticket = self._working.popleft()
            self._host.worker.wait(ticket)
            slot.release()
        self._lists = None

    def wait_for(self, tickets: tuple[int, ...]) -> None:
        """Wait for updates."""
        for ticket in tickets:
            self._host.worker.wait(ticket)

    def _next(self, microbatch: int) -> tuple[_Chunk, gs_pinned.RingSlot]:
        """The next chunk, which belongs to this microbatch, and where it has been caught up."""
        while not self._working:
            self._release(block=True)
            self._submit()
        chunk, slot, ticket = self._working.popleft()
        assert chunk.microbatch == microbatch
        self._host.worker.wait(ticket)
        return chunk, slot

    def _submit(self) -> None:
        """Give the worker as many chunks as the ring has room for."""
        self._release(block=False)
        while self._waiting:
            chunk = self._waiting[0]
            try:
                slot = self._ring.take(len(chunk.ids), self._host.table.layout, 0.0)
            except TimeoutError:
                return
            # Apart: no step since the one before last touches rows that sleep.
            ticket = self._host.worker.lookahead(
                chunk.ids,
                out=host_columns(slot.numpy()),
                priority=1,
                checked=True,
                apart=True,
                as_of=self._as_of,
            )
            self._working.append((self._waiting.popleft(), slot, ticket))

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

    def _counted(self, n: int, device: torch.device) -> Tensor:
        if n > len(self._counting) or self._counting.device != device:
            self._counting = torch.arange(n, dtype=torch.int32, device=device)
        return self._counting[:n]


def _to_host(*tensors: Tensor) -> list[Tensor]:
    """Copies in host memory, behind one wait."""
    if not tensors[0].is_cuda:
        return list(tensors)
    copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
    for copy, tensor in zip(copies, tensors):
        copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
