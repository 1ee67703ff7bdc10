# SPDX-License-Identifier: Apache-2.0
"""What batches see of rows in blocks that are in slots."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_pinned import BlockCache
from gs_train.blocks.block_lists import BlocksSeen
from gs_train.blocks.box_kernels import count_rows
from gs_train.blocks.partition import Ids
from gs_train.blocks.slot_rows import ListedRows, SlotRows
from gs_train.blocks.stored_adam import StoredAdam
from gs_train.machine.host_copies import HostCopy, to_device
from gs_train.renderers import Renderer
from gs_train.renderers.culling import Cameras, cull, mark
from gs_train.rows.attributes import NAMES

_MOST_CANDIDATES = 8
"""Rows of candidates for each row that there is room for. Geometry takes a tenth of what a batch
takes of a row."""


@dataclass(frozen=True, eq=False)
class SeenPart:
    """What a batch sees of as many blocks as fit the slots together.

    Attributes:
        blocks: (n,) sorted.
        slots: (n,) int32 of these, when they were looked at.
        rows: all rows of the blocks in these slots.
        places: (R,) int64 in the tables then, block after block: of the rows that are seen; of all
            rows where they are listed.
        seen_by_block: (n,) int32, how many rows of each block are seen.
        listed: all rows of the blocks; None: those that are not seen are left out.
    """

    blocks: Ids
    slots: NDArray[np.int32]
    rows: SlotRows
    places: Tensor
    seen_by_block: HostCopy
    listed: ListedRows | None = None

    @functools.cached_property
    def holds(self) -> NDArray[np.bool_]:
        """(n,) which of the blocks hold rows that are seen."""
        some: NDArray[np.bool_] = self.seen_by_block.numpy() != 0
        return some

    def places_in(self, slots: NDArray[np.int32], block_rows: int) -> Tensor:
        """(R,) places of the rows once their blocks are in these slots.

        Args:
            slots: of the blocks that hold rows.
        """
        before = self.slots[self.holds]
        if np.array_equal(before, slots):
            return self.places
        shift = np.zeros(int(self.slots.max(initial=0)) + 1, np.int64)
        shift[before] = (slots.astype(np.int64) - before) * block_rows
        return self.places + to_device(shift, self.places.device)[self.places // block_rows]


@dataclass(frozen=True, eq=False)
class Look:
    """What a batch sees, until `StoredRows.update` or `StoredRows.leave`.

    Attributes:
        n_candidates: blocks that some view may see.
        ids: (U,) int32, 0 to U - 1.
        keys: (U,) int32 of the rows that some view sees, block after block.
        mask: (U, ceil(V / 32)) int32: bit v says that view v sees the row.
        counts: (V,) rows of each view.
        rows: all attributes of the U rows, after the last step.
        parts: of the blocks.
        used: blocks that are in use.
        marks: (U,) bool: the rows that some view sees, where the look lists all rows of the blocks
            that a view may see; None: the look lists no others.
    """

    n_candidates: int
    ids: Tensor
    keys: Tensor
    mask: Tensor
    counts: tuple[int, ...]
    rows: dict[str, Tensor]
    parts: list[SeenPart] = field(repr=False)
    used: Ids = field(repr=False)
    marks: Tensor | None = field(default=None, repr=False)

    @property
    def n_seen(self) -> int:
        """How many rows some view sees. Waits for the device where the look has marks."""
        if self.marks is None:
            return len(self.keys)
        return sum(int(part.seen_by_block.numpy().sum()) for part in self.parts)


class StoredTables:
    """The tables that slots of a cache are in, and the schedules of their rows.

    Args:
        tables: by plane.
        cache: of blocks in these.
        counts: (blocks,) rows of each.
        groups: Adam of ``geometry`` and ``appearance``.
        block_rows: most rows of a block.
        device: of the tables.
    """

    def __init__(
        self,
        tables: Mapping[str, Tensor],
        cache: BlockCache,
        counts: Ids,
        groups: Mapping[str, StoredAdam],
        block_rows: int,
        device: torch.device,
    ) -> None:
        self.tables = tables
        self.cache = cache
        self.groups = groups
        self.block_rows = block_rows
        self.device = device
        self._counts = counts

    def count(self, blocks: Ids) -> int:
        """Rows of blocks, added up."""
        return int(self._counts[blocks].sum())

    def counts_of(self, seen: BlocksSeen, n_views: int) -> tuple[int, ...]:
        """(V,) rows in the blocks of each view, added up."""
        counts: list[int] = count_rows(self._counts, seen.blocks, seen.mask, n_views).tolist()
        return tuple(counts)

    def rows_of(
        self,
        blocks: Ids,
        slots: NDArray[np.int32],
        masks: NDArray[np.uint32] | None = None,
    ) -> SlotRows:
        """All rows of blocks in slots, see `SlotRows`."""
        return SlotRows(slots, self._counts[blocks], self.block_rows, self.device, masks)

    def turns(self, blocks: Ids, most: int | None = None) -> list[Ids]:
        """Blocks, as many at a time as there are slots, and at most ``most``."""
        n = min(self.cache.n_slots, most or self.cache.n_slots)
        return [blocks[first : first + n] for first in range(0, len(blocks), n)]

    def values(self, places: Tensor) -> dict[str, Tensor]:
        """All attributes of rows after the last step, caught up out of place."""
        rows: dict[str, Tensor] = {}
        for group in self.groups.values():
            rows |= group.lookahead(self.tables, places)
        return rows

    def keys(self, places: Tensor) -> Tensor:
        """(R,) int32."""
        return self.tables["key"].view(-1).index_select(0, places)


def look_in_turns(
    stored: StoredTables,
    blocks: Ids,
    cameras: Cameras,
    renderer: Renderer,
    most_rows: int | None = None,
) -> Look | None:
    """What some cameras see of blocks, which come in turns where they do not fit the slots.

    Where they fit, those are in use afterwards.

    Args:
        most_rows: that there is room for; None: for any number.

    Returns:
        None, and no block is in use, where more rows are seen, or so many are in the blocks that
        room for their geometry alone is in doubt.

    Cost: one wait a turn, for the number of rows.
    """
    n_left = math.inf if most_rows is None else most_rows
    if stored.count(blocks) > _MOST_CANDIDATES * n_left:
        return None
    turns = stored.turns(blocks) or [blocks]
    used = turns[0] if len(turns) == 1 else blocks[:0]
    parts, found, counts = [], [], np.zeros(len(cameras), np.int64)
    for some in turns:
        slots = stored.cache.bring(some)
        fits = False
        try:
            part, mask, n_seen = seen_in_slots(stored, some, slots, cameras, renderer)
            n_left -= len(part.places)
            fits = n_left >= 0
            if fits:
                keys, rows = stored.keys(part.places), stored.values(part.places)
                counts += n_seen()
        except BaseException:
            stored.cache.release(some, changed=False)
            raise
        if not (fits and len(used)):
            stored.cache.release(some, changed=False)
        if not fits:
            return None
        parts.append(part)
        found.append({"keys": keys, "mask": mask, **rows})
    joined = {name: _joined([one[name] for one in found]) for name in ("keys", "mask", *NAMES)}
    keys = joined.pop("keys")
    return Look(
        n_candidates=len(blocks),
        ids=torch.arange(len(keys), dtype=torch.int32, device=keys.device),
        keys=keys,
        mask=joined.pop("mask"),
        counts=tuple(counts.tolist()),
        rows=joined,
        parts=parts,
        used=used,
    )


def seen_in_slots(
    stored: StoredTables,
    blocks: Ids,
    slots: NDArray[np.int32],
    cameras: Cameras,
    renderer: Renderer,
    rects: NDArray[np.int64] | None = None,
) -> tuple[SeenPart, Tensor, Callable[[], NDArray[np.int64]]]:
    """Of blocks in slots: the rows that are seen, their mask, and what waits for each camera's
    number of rows."""
    own = stored.rows_of(blocks, slots)
    everything = own.places()
    geometry = stored.groups["geometry"].lookahead(stored.tables, everything)
    visible = cull(geometry, cameras, renderer, rects=rects)
    counts = HostCopy(visible.counts)
    places = everything.index_select(0, visible.ids)
    by_slot = torch.zeros(stored.cache.n_slots, dtype=torch.int32, device=stored.device)
    by_slot.index_add_(0, places // stored.block_rows, by_slot.new_ones(1).expand(len(places)))
    part = SeenPart(blocks, slots, own, places, HostCopy(by_slot.index_select(0, own.layout[0])))
    return part, visible.mask, lambda: counts.numpy().astype(np.int64)


def list_in_slots(
    stored: StoredTables,
    seen: BlocksSeen,
    counts: tuple[int, ...],
    cameras: Cameras,
    renderer: Renderer,
) -> Look:
    """All rows of blocks that views may see, and marks of those that they see.

    The blocks fit the slots together, and are in use afterwards.

    Args:
        counts: (V,) rows in the blocks of each view, added up.

    Cost: no wait.
    """
    blocks = seen.blocks
    slots = stored.cache.bring(blocks)
    try:
        own = stored.rows_of(blocks, slots, seen.mask)
        listed = own.listed(stored.tables)
        rows = stored.values(listed.places)
        marks = mark(rows, cameras, listed.ids, listed.mask, renderer)
        part = SeenPart(blocks, slots, own, listed.places, HostCopy(own.count(marks)), listed)
    except BaseException:
        stored.cache.release(blocks, changed=False)
        raise
    return Look(
        n_candidates=len(blocks),
        ids=listed.ids,
        keys=listed.keys,
        mask=listed.mask,
        counts=counts,
        rows=rows,
        parts=[part],
        used=blocks,
        marks=marks,
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
