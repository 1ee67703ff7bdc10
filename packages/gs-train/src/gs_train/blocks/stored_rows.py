# SPDX-License-Identifier: Apache-2.0
"""Rows of a scene in a store of blocks, of which a few are in memory: looked at, and trained."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_cull import Visibility
from gs_pinned import BlockCache, BlockStore, SnapshotTicket
from gs_train.blocks.block_planes import MOMENTS, planes_of, write_rows
from gs_train.blocks.boxes import BlockBoxes, SleepingValues
from gs_train.blocks.partition import Ids, kd_partition
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.stored_adam import StoredAdam
from gs_train.blocks.stored_state import from_bytes, to_bytes, within
from gs_train.errors import InputError
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES

_BOXED = {"means": slice(0, 3), "scales": slice(3, 6)}
"""The attributes that boxes of blocks hold, and their columns of geometry."""


@dataclass(frozen=True, eq=False)
class _Part:
    """What a batch sees of as many blocks as fit the slots together.

    Attributes:
        blocks: (n,) sorted.
        holds: (n,) which of these hold rows that are seen.
        rows: (R,) int64 sorted, of the rows seen: which of the ``blocks``, times ``block_rows``,
            and the row within it.
    """

    blocks: Ids
    holds: NDArray[np.bool_]
    rows: Tensor


class _Early(NamedTuple):
    """Blocks that a batch to come may see, found before the present step has ended.

    Attributes:
        views: of the batch.
        blocks: (n,) sorted; without those that the step changes.
        ceilings: of the rates, by attribute, that the list was made for.
    """

    views: tuple[View, ...]
    blocks: Ids
    ceilings: dict[str, float]


@dataclass(frozen=True, eq=False)
class Look:
    """What a batch sees, until `StoredRows.update` or `StoredRows.leave`.

    Attributes:
        n_candidates: blocks that some view may see.
        keys: (U,) int32 of the rows that some view sees, block after block.
        mask: (U, ceil(V / 32)) int32: bit v says that view v sees the row.
        counts: (V,) rows of each view.
        rows: all attributes of the U rows, after the last step.
    """

    n_candidates: int
    keys: Tensor
    mask: Tensor
    counts: tuple[int, ...]
    rows: dict[str, Tensor]
    _parts: list[_Part]
    _used: Ids  # blocks that are in use


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
        self._store = store
        k = int(state["k"])
        if [p.name for p in store.planes] != [p.name for p in planes_of(k)]:
            raise InputError(f"{store.path} must hold rows of a scene, got other planes")
        self._k, self.block_rows = k, store.block_rows
        self._is_whole = True
        self._early: _Early | None = None
        self._changed = np.zeros(0, np.int64)  # blocks of the last step
        self.device = torch.device(device)
        n = slots * store.block_rows
        self._tables = {
            p.name: torch.zeros((n, p.width), dtype=getattr(torch, p.dtype), device=self.device)
            for p in store.planes
        }
        self.row_bytes = sum(
            table.shape[1] * table.element_size() for table in self._tables.values()
        )
        self.cache = BlockCache(store, self._tables, host_blocks=host_blocks)
        self._n_rows = int(self.cache.counts(store.blocks).sum())
        self.boxes = BlockBoxes(int(state["n_blocks"]))
        for name, array in within(state, "boxes").items():
            getattr(self.boxes, name)[:] = array
        betas, eps = (float(state["b1"]), float(state["b2"])), float(state["eps"])
        self.betas, self.eps = betas, eps
        self.reach = {
            name: SleepReach(betas, eps, float(own["ceiling"]), own["rates"].tolist())
            for name in _BOXED
            for own in [within(state, f"reach/{name}")]
        }
        self._groups = {
            name: StoredAdam(names, k, betas, eps, within(state, f"schedule/{name}"), self.device)
            for name, names in (("geometry", GEOMETRY), ("appearance", APPEARANCE))
        }

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
            rows["means"].numpy(), rows["scales"].numpy(), keys.numpy(), block_rows
        )
        order = torch.from_numpy(partition.rows)
        boxes = BlockBoxes(len(partition))
        reach = {name: SleepReach(betas, eps, ceilings[name]) for name in _BOXED}
        still, never = torch.zeros(len(keys), 3), torch.zeros(len(keys), dtype=torch.int32)
        values = {
            name: SleepingValues(rows[name][order], still, still, never, reach[name])
            for name in _BOXED
        }
        everything = np.arange(len(partition))
        boxes.fit(everything, partition.counts, means=values["means"], scales=values["scales"])
        with write_rows(path, rows, keys, partition, block_rows) as store:
            k = int(rows["shN"].shape[1])
            store.snapshot(_state(k, betas, eps, boxes, reach, {}))

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
        self.cache.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ looking

    def candidates(self, views: Sequence[View], renderer: Renderer) -> Visibility:
        """The blocks that each view may see."""
        return self.boxes.candidates(
            views, renderer.options, self.reach["means"], self.reach["scales"]
        )

    def expect(self, views: Sequence[View], renderer: Renderer) -> None:
        """Find what the next batch may see, and begin to bring it; changes no result.

        Beside a step it may run on another thread, before `update`.
        """
        ceilings = {name: reach.ceiling for name, reach in self.reach.items()}
        blocks = self.candidates(views, renderer).ids.astype(np.int64)
        self._early = _Early(tuple(views), blocks, ceilings)
        self.cache.expect(blocks)

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
        self._need_whole()
        blocks = self._blocks_of(views, renderer)
        turns = self._turns(blocks) or [blocks]
        used = turns[0] if len(turns) == 1 else blocks[:0]
        found = []
        for some in turns:
            slots = self.cache.bring(some)
            try:
                found.append(self._look_at(some, slots, views, renderer))
            except BaseException:
                self.cache.release(some, changed=False)
                raise
            if not len(used):
                self.cache.release(some, changed=False)
        parts, keys, masks, counts, rows = zip(*found, strict=True)
        return Look(
            n_candidates=len(blocks),
            keys=torch.cat(keys),
            mask=torch.cat(masks),
            counts=tuple(np.sum(counts, 0).tolist()),
            rows={name: torch.cat([part[name] for part in rows]) for name in NAMES},
            _parts=list(parts),
            _used=used,
        )

    def _blocks_of(self, views: Sequence[View], renderer: Renderer) -> Ids:
        """(n,) sorted: the blocks that some view may see, and perhaps others.

        Where these were expected, nothing is waited for: boxes that have changed since are those of
        the last step's blocks, all of which are taken.
        """
        early, self._early = self._early, None
        if early is not None and list(map(id, early.views)) == list(map(id, views)):
            held = all(
                max(reach.ceiling, reach.last_rate) <= early.ceilings[name]
                for name, reach in self.reach.items()
            )
            if held:
                return np.union1d(early.blocks, self._changed)
        return self.candidates(views, renderer).ids.astype(np.int64)

    def _look_at(
        self, blocks: Ids, slots: NDArray[np.int32], views: Sequence[View], renderer: Renderer
    ) -> tuple[_Part, Tensor, Tensor, NDArray[np.int64], dict[str, Tensor]]:
        """Keys, mask, counts and attributes of what the views see of blocks in slots."""
        every = self._every_row(self.cache.counts(blocks))
        places = self._places(slots, every)
        geometry = self._groups["geometry"].lookahead(self._tables, places)
        visible = cull(geometry, cameras_of(views), renderer)
        seen = visible.ids.long()
        where = places[seen]
        rows = {name: values[seen] for name, values in geometry.items()}
        rows |= self._groups["appearance"].lookahead(self._tables, where)
        n_seen = np.array(visible.counts.tolist(), np.int64)
        part = self._part(blocks, every[seen])
        return part, self._tables["key"][where, 0], visible.mask, n_seen, rows

    def _part(self, blocks: Ids, rows: Tensor) -> _Part:
        holds = torch.zeros(len(blocks), dtype=torch.bool, device=self.device)
        holds[rows // self.block_rows] = True
        return _Part(blocks, holds.cpu().numpy(), rows)

    def leave(self, look: Look) -> None:
        """End a look without a step."""
        self.cache.release(look._used, changed=False)

    def _turns(self, blocks: Ids, at_once: int | None = None) -> list[Ids]:
        """Blocks, as many at a time as there are slots, or fewer."""
        n = min(self.cache.n_slots, at_once or self.cache.n_slots)
        return [blocks[first : first + n] for first in range(0, len(blocks), n)]

    def _every_row(self, counts: Ids) -> Tensor:
        """(R,) int64 all rows of some blocks, as in `_Part.rows`."""
        before = np.cumsum(counts) - counts
        firsts = np.arange(len(counts)) * self.block_rows - before
        n = int(counts.sum())
        repeated = torch.repeat_interleave(
            *(torch.from_numpy(array).to(self.device) for array in (firsts, counts)), output_size=n
        )
        return repeated + torch.arange(n, device=self.device)

    def _places(self, slots: NDArray[np.int32], rows: Tensor) -> Tensor:
        """(R,) int64 places in the tables of rows, as in `_Part.rows`, of blocks in slots."""
        firsts = (slots.astype(np.int64) - np.arange(len(slots))) * self.block_rows
        return rows + torch.from_numpy(firsts).to(self.device)[rows // self.block_rows]

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
        self._need_whole()
        self._is_whole = False
        for name, reach in self.reach.items():
            reach.set_ceiling(max(rates[name], reach.ceiling))
            reach.record_step(rates[name])
            reach.set_ceiling(rates[name] * later)
        for group in self._groups.values():
            group.begin(rates)
        first = 0
        for part in look._parts:
            some = slice(first, first + len(part.rows))
            first = some.stop
            self._update(part, {name: gradients[name][some] for name in NAMES})
        for group in self._groups.values():
            group.end()
        self.leave(look)
        self._changed = np.concatenate([part.blocks[part.holds] for part in look._parts])
        self._is_whole = True

    def _update(self, part: _Part, gradients: Rows) -> None:
        """Take the step of the rows of some blocks, and fit their boxes."""
        blocks = part.blocks[part.holds]
        if not len(blocks):
            return
        slots = self.cache.bring(blocks)
        home = np.zeros(len(part.blocks), np.int32)
        home[part.holds] = slots
        where = self._places(home, part.rows)
        for group in self._groups.values():
            group.update(self._tables, where, gradients)
        self._tables["last_step"][where] = self.step
        self._refit(blocks, slots)
        self.cache.release(blocks, step=self.step)

    def _refit(self, blocks: Ids, slots: NDArray[np.int32]) -> None:
        """Fit the boxes of blocks in slots to their rows as they are stored."""
        counts = self.cache.counts(blocks)
        places = self._places(slots, self._every_row(counts))
        means, scales = (self._sleeping(name, places) for name in _BOXED)
        self.boxes.fit(blocks, counts, means=means, scales=scales)

    def _need_whole(self) -> None:
        if not self._is_whole:
            raise RuntimeError(
                "an earlier step ended in the middle, some of its rows updated and others not: go "
                "on from the last snapshot"
            )

    def _sleeping(self, name: str, places: Tensor) -> SleepingValues:
        values, exp_avg, exp_avg_sq = (
            self._tables[f"geometry{moment}"][places, _BOXED[name]] for moment in MOMENTS
        )
        last_step = self._tables["last_step"][places, 0]
        return SleepingValues(values, exp_avg, exp_avg_sq, last_step, self.reach[name])

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
        self._need_whole()
        schedules = {name: group.schedule.state_dict() for name, group in self._groups.items()}
        state = _state(self._k, self.betas, self.eps, self.boxes, self.reach, schedules)
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
        for blocks in self._turns(every, at_once):
            counts = self.cache.counts(blocks)
            slots = self.cache.bring(blocks)
            try:
                places = self._places(slots, self._every_row(counts))
                rows: dict[str, Tensor] = {}
                for group in self._groups.values():
                    rows |= group.lookahead(self._tables, places)
                keys = self._tables["key"][places, 0]
            finally:
                self.cache.release(blocks, changed=False)
            yield keys, rows


def _state(
    k: int,
    betas: tuple[float, float],
    eps: float,
    boxes: BlockBoxes,
    reach: Mapping[str, SleepReach],
    schedules: Mapping[str, Any],
) -> bytes:
    """What a snapshot holds beside the rows."""
    return to_bytes(
        {
            "k": k,
            "b1": betas[0],
            "b2": betas[1],
            "eps": eps,
            "n_blocks": len(boxes),
            "boxes": boxes.state(),
            "reach": {
                name: {"ceiling": one.ceiling, "rates": one.rates} for name, one in reach.items()
            },
            "schedule": schedules,
        }
    )
