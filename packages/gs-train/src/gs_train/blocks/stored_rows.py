# SPDX-License-Identifier: Apache-2.0
"""Rows of a scene in a store of blocks, of which a few are in memory: looked at, and trained."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_cull import Visibility
from gs_pinned import BlockCache, BlockStore, SnapshotTicket
from gs_train.blocks.block_lists import BlockLists
from gs_train.blocks.block_planes import planes_of
from gs_train.blocks.box_fits import BOXED
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.new_store import NewStore
from gs_train.blocks.partition import Ids, kd_partition
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.rows_in_turns import RowsInTurns
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.stored_adam import StoredAdam
from gs_train.blocks.stored_looks import (
    Look,
    StoredTables,
    list_in_slots,
    look_in_turns,
)
from gs_train.blocks.stored_state import from_bytes, scene_state, within
from gs_train.blocks.stored_steps import StoredSteps
from gs_train.errors import InputError
from gs_train.machine.side_thread import SideThread
from gs_train.machine.usable_cores import usable_cores
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES

__all__ = ["Look", "StoredRows"]


class StoredRows:
    """Rows with their moments in blocks on disk, in host memory, and in slots where these are used.

    `look` finds the rows that a batch sees, exactly, and brings them up to date beside their
    tables. `update` takes a step of these rows alone; all others sleep. What is stored follows from
    the gradients that a row got, whatever was in memory.

    Args:
        store: with a snapshot of such rows.
        slots: blocks that the tables have room for.
        host_blocks: blocks that host memory has room for.
        device: of the tables, and of what is looked at and updated.

    Attributes:
        step: steps taken so far.
        betas, eps: Adam's, of all steps.
        boxes: of the blocks.
        cache: of the blocks.
        block_rows: most rows of a block.
        row_bytes: of a row with its moments.
        in_turns: batches of more rows than there is room for.

    Raises:
        InputError: the store holds no such rows.
        ValueError, MemoryError: see :class:`gs_pinned.BlockCache`.

    Asynchrony: on CUDA all work is enqueued on the stream that was torch's current one when the
        object was made. A look waits for that stream, an update does not.
    Threads: one at a time.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        slots: int,
        host_blocks: int,
        device: torch.device | str = "cpu",
    ) -> None:
        state = from_bytes(store.state)
        store.forget_state()
        self._store = store
        k = int(state["k"])
        if [p.name for p in store.planes] != [p.name for p in planes_of(k)]:
            raise InputError(f"{store.path} must hold rows of a scene, got other planes")
        self._k, self.block_rows = k, store.block_rows
        self._open: Ids | None = None  # blocks of the look that is open
        self.device = torch.device(device)
        n = slots * store.block_rows
        tables = {
            p.name: torch.zeros((n, p.width), dtype=getattr(torch, p.dtype), device=self.device)
            for p in store.planes
        }
        self.row_bytes = sum(table.shape[1] * table.element_size() for table in tables.values())
        self.cache = BlockCache(store, tables, host_blocks=host_blocks)
        self.boxes = BlockBoxes(int(state["n_blocks"]))
        for name, array in within(state, "boxes").items():
            getattr(self.boxes, name)[:] = array
        betas, eps = (float(state["b1"]), float(state["b2"])), float(state["eps"])
        self.betas, self.eps = betas, eps
        self.reach = {
            name: SleepReach(betas, eps, float(own["ceiling"]), own["rates"].tolist())
            for name in BOXED
            for own in [within(state, f"reach/{name}")]
        }
        self._lists = BlockLists(self.boxes, self.reach, SideThread(self.device))
        self._groups = {
            name: StoredAdam(names, k, betas, eps, within(state, f"schedule/{name}"), self.device)
            for name, names in (("geometry", GEOMETRY), ("appearance", APPEARANCE))
        }
        counts, blocks = np.zeros(len(self.boxes), np.int64), np.array(store.blocks, np.int64)
        counts[blocks] = self.cache.counts(blocks)
        self._n_rows = int(counts.sum())
        self._stored = StoredTables(
            tables, self.cache, counts, self._groups, self.block_rows, self.device
        )
        reaches = ReachTables(self.reach["means"], self.reach["scales"], self.device)
        self._steps = StoredSteps(self._stored, self.boxes, reaches)
        self.in_turns = RowsInTurns(self._stored, self._steps)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        rows: Rows,
        keys: Tensor,
        *,
        block_rows: int,
        betas: tuple[float, float],
        eps: float,
        ceilings: Mapping[str, float],
    ) -> None:
        """Make a store of rows that have taken no step, with a snapshot.

        Args:
            path: an empty folder, or none yet.
            rows: all attributes of N rows, on the CPU.
            keys: (N,) int32, all different.
            block_rows: most rows of a block.
            betas, eps: Adam's, of all steps.
            ceilings: of ``means`` and ``scales``: no step has a larger rate.

        Raises:
            OSError, ValueError: see :meth:`gs_pinned.BlockStore.create`.
        """
        partition = kd_partition(
            rows["means"].numpy(),
            rows["scales"].numpy(),
            keys.numpy(),
            block_rows,
            threads=usable_cores(),
        )
        with NewStore(
            path,
            k=int(rows["shN"].shape[1]),
            n_blocks=len(partition),
            block_rows=block_rows,
            betas=betas,
            eps=eps,
            ceilings=ceilings,
        ) as new:
            new.add(0, partition, rows, keys)
            new.finish()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        slots: int,
        host_blocks: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Open the rows of a store at its last snapshot. Raises as :meth:`BlockStore.open`, too."""
        store = BlockStore.open(path)
        try:
            return cls(store, slots=slots, host_blocks=host_blocks, device=device)
        except BaseException:
            store.close()
            raise

    @property
    def store(self) -> BlockStore:
        """That the rows are in."""
        return self._store

    @property
    def appearance_width(self) -> int:
        """Floats of a row's harmonics."""
        return 3 + 3 * self._k

    @property
    def step(self) -> int:
        return self.reach["means"].step

    def __len__(self) -> int:
        return self._n_rows

    def close(self) -> None:
        """Wait for what is under way; what changed since the last snapshot is lost."""
        try:
            self._lists.end()
        finally:
            self.cache.close()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ looking

    def candidates(
        self, views: Sequence[View], renderer: Renderer, rects: NDArray[np.int64] | None = None
    ) -> Visibility:
        """The blocks that each view, or the part of it that ``rects`` say, may see."""
        return self._lists.candidates(views, renderer, rects=rects)

    def blocks_in(self, low: Sequence[float], high: Sequence[float]) -> Ids:
        """(n,) sorted, the blocks with means in the box from ``low`` to ``high``, and perhaps
        others."""
        self._lists.end()
        return self.boxes.within(low, high, self.reach["means"], self.reach["scales"])

    def expect(
        self,
        views: Sequence[View],
        renderer: Renderer,
        rates: Mapping[str, float] | None = None,
        then: Sequence[View] = (),
    ) -> None:
        """Find what the next batch may see, and begin to bring it; changes no result.

        Beside a step it may run on another thread, before `update`.

        Args:
            rates: by attribute, of the step of the look that is open; None: at most the ceilings.
            then: of the batch after that one, whose blocks are found beside the next batch.
        """
        self.cache.expect(self._lists.expect(views, renderer, self._open, rates, then).blocks)

    @torch.no_grad()
    def look(self, views: Sequence[View], renderer: Renderer) -> Look:
        """What a batch sees. Nothing that is stored changes.

        Blocks that do not fit the slots together come in turns, and `update` brings those again
        that it changes.

        Args:
            views: at least one.
            renderer: by whose rules.

        Raises:
            RuntimeError: an earlier step ended in the middle.
            OSError, StoreCorruptError: the drive errs, or a record is damaged.

        Memory: that of the U rows, and of the geometry of all rows of as many blocks as fit.
        """
        look = self.look_within(views, renderer, None)
        assert look is not None
        return look

    @torch.no_grad()
    def look_within(
        self,
        views: Sequence[View],
        renderer: Renderer,
        most_rows: int | None,
        *,
        most_listed: int = 0,
    ) -> Look | None:
        """`look`, where no more rows are seen than there is room for.

        Args:
            most_rows: that there is room for; None for any number.
            most_listed: rows times views that the look may list where it need not wait for the
                device then: all rows of the blocks, and marks of those that are seen. Changes no
                result of a step.

        Returns:
            None, and no look is open, where more rows are seen, or so many lie in the blocks that
            there may be no room to find out: see `in_turns`.
        """
        self._steps.need_whole()
        seen = self._lists.of(views, renderer, self._steps.changed)
        cameras = cameras_of(views)
        counts = self._stored.counts_of(seen, len(views)) if most_listed else ()
        has_room = most_rows is None or self._stored.count(seen.blocks) <= most_rows
        look: Look | None
        if 0 < sum(counts) <= most_listed and has_room and len(seen.blocks) <= self.cache.n_slots:
            look = list_in_slots(self._stored, seen, counts, cameras, renderer)
        else:
            look = look_in_turns(self._stored, seen.blocks, cameras, renderer, most_rows)
        self._open = None if look is None else seen.blocks
        return look

    def leave(self, look: Look) -> None:
        """End a look without a step."""
        self._open = None
        self.cache.release(look.used, changed=False)

    # ------------------------------------------------------------------ training

    @torch.no_grad()
    def update(
        self, look: Look, gradients: Rows, rates: Mapping[str, float], later: float = 1.0
    ) -> None:
        """Take a step of the rows of a look, which ends.

        Args:
            gradients: of the U rows, by attribute.
            rates: by attribute.
            later: rates to come are at most ``later`` times ``rates``.

        Raises:
            RuntimeError: an earlier step ended in the middle.
            OSError, StoreCorruptError: blocks that came in turns cannot be brought again. Some rows
                have taken the step then, and others have not.
        """
        self._lists.end()
        self._steps.begin(rates, later)
        if len(look.used):
            (part,) = look.parts
            self._steps.update_in_slots(part, gradients, look.marks)
            self.cache.release(look.used, changed=part.holds, step=self.step)
        else:
            self._update_in_turns(look, gradients)
        self._open = None
        self._steps.end()

    def _update_in_turns(self, look: Look, gradients: Rows) -> None:
        """Of blocks that are not in use any more."""
        first = 0
        for part in look.parts:
            some = slice(first, first + len(part.places))
            first = some.stop
            own = {name: gradients[name][some] for name in NAMES}
            self._steps.update(part.blocks[part.holds], part.places_in, own)

    # ------------------------------------------------------------------ all rows

    def snapshot(self, *, keep: int = 1) -> int:
        """Make a snapshot of rows and schedule, and wait. Returns its number."""
        return self.snapshot_async(keep=keep).wait()

    def snapshot_async(self, *, keep: int = 1) -> SnapshotTicket:
        """Begin to make a snapshot of the present step; training may go on. No look may be open.

        Raises:
            RuntimeError: a look is open, or an earlier step ended in the middle.
            Others: see :meth:`gs_pinned.BlockCache.snapshot_async`.
        """
        self._steps.need_whole()
        self._lists.end()
        schedules = {name: group.schedule.state_dict() for name, group in self._groups.items()}
        boxes = self.boxes.state()
        state = scene_state(self._k, self.betas, self.eps, boxes, self.reach, schedules)
        return self.cache.snapshot_async(state, keep=keep)

    @torch.no_grad()
    def pieces(
        self, blocks: Ids | None = None, *, at_once: int | None = None
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Rows after the last step.

        Args:
            blocks: (n,) different numbers; None: all.
            at_once: blocks at a time at most; None: as many as there are slots.

        Yields:
            (R,) int32 keys, and all attributes of these rows.
        """
        every = np.array(self._store.blocks, np.int64) if blocks is None else blocks
        for blocks in self._stored.turns(every, at_once):
            slots = self.cache.bring(blocks)
            try:
                places = self._stored.rows_of(blocks, slots).places()
                keys, rows = self._stored.keys(places), self._stored.values(places)
            finally:
                self.cache.release(blocks, changed=False)
            yield keys, rows
