# SPDX-License-Identifier: Apache-2.0
"""The rows of a store as a model: what runs, and all that look at runs, ask of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gs_pinned import BlockStore, SnapshotTicket
from gs_train.blocks.partition import Ids
from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.trace import Trace
from gs_train.renderers import Renderer, View
from gs_train.rows.attributes import SH_DEGREES
from gs_train.rows.keys import RowKeys
from gs_train.rows.shown import Point, ViewsOf
from gs_train.tide.foresight import Foresight
from gs_train.tide.passes import BlockPasses
from gs_train.tide.placement import BlockCounts, BlockPlacement
from gs_train.tide.some_blocks import SomeBlocks
from gs_train.tide.store_folder import SavedStore, identity_of
from gs_train.tide.trouble import store_trouble

_SAMPLE_BLOCKS = 64
"""Blocks of a scene that tell how far its rows are apart."""


@dataclass(frozen=True, eq=False)
class SeenRows:
    """A `RowsOfView`: copies of the rows that a view sees."""

    params: Mapping[str, Tensor]
    keys: RowKeys
    sh_degree: int

    @property
    def device(self) -> torch.device:
        """Where ids and values are."""
        return self.params["means"].device

    def snapshot(
        self, ids: slice | Tensor, *, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """See `RowsOfView.snapshot`."""
        target = self.device if device is None else torch.device(device)
        taken = {name: values[ids] for name, values in self.params.items()}
        return {name: values.to(target, copy=True) for name, values in taken.items()}


class SavingSnapshot:
    """A `SavingRows` by a snapshot of the store."""

    def __init__(
        self, ticket: SnapshotTicket, saved: SavedStore, store: BlockStore, trace: Trace | None
    ) -> None:
        self._ticket = ticket
        self._saved = saved
        self._store = store
        self._trace = trace

    @property
    def is_done(self) -> bool:
        """See `SavingRows.is_done`."""
        return self._ticket.is_done

    def wait(self) -> dict[str, Any]:
        """See `SavingRows.wait`."""
        with _span(self._trace), store_trouble(self._store.path):
            number = self._ticket.wait()
        return {"store": replace(self._saved, snapshot=number).to_plain()}


def _span(trace: Trace | None) -> AbstractContextManager[None]:
    return nullcontext() if trace is None else trace.host("snapshot")


class StoredModel:
    """Rows in blocks of a store: a `TrainedRows`, and a `ShownRows`.

    Their number does not change, so that they have none of the operations that do.

    Args:
        rows: in blocks.
        placements: of the engine that trains the rows; none: nothing does.
        counts: of the engine's batches.
        named: the folder as checkpoints name it; None: within the folder of the run.
        trace: of the engine; None: nothing trains the rows.

    Attributes:
        before_replacing: never called.
    """

    before_replacing: Callable[[], None]
    edits = 0

    def __init__(
        self,
        rows: StoredRows,
        placements: Sequence[BlockPlacement | BlockPasses] = (),
        counts: BlockCounts | None = None,
        *,
        named: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.rows = rows
        self._trace = trace
        self._store = rows.store
        sh_degree = SH_DEGREES[rows.appearance_width // 3 - 1]
        identity = identity_of(self._store.path) or ""
        self._saved = SavedStore(named, identity, 0, len(rows), sh_degree)
        self.expected: int | None = self.n_rows
        self._placements = placements
        self._counts = counts
        self._pauses: list[float] = []

    @property
    def device(self) -> torch.device:
        """Of the slots."""
        return self.rows.device

    @property
    def n_rows(self) -> int:
        """N."""
        return self._saved.n_rows

    @property
    def sh_degree(self) -> int:
        """See `ShownRows.sh_degree`."""
        return self._saved.sh_degree

    @property
    def keys(self) -> StoredModel:
        """What drawing reads ``values`` of."""
        return self

    @property
    def values(self) -> Tensor:
        """(U,) int32 keys of the rows of the batch that is drawn."""
        (keys,) = (one.keys for one in self._placements if one.keys is not None)
        return keys

    def within(self, view: View, renderer: Renderer) -> SeenRows:
        """See `ShownRows.within`: the rows that the view sees.

        Memory: as `StoredRows.look`.
        """
        with self.trouble():
            look = self.rows.look([view], renderer)
            self.rows.leave(look)
        return SeenRows(look.rows, RowKeys(look.keys, self._saved.n_rows), self.sh_degree)

    def chunks(self, chunk_rows: int) -> Iterator[dict[str, Tensor]]:
        """See `ShownRows.chunks`; block after block."""
        return SomeBlocks(self, self.rows, np.array(self._store.blocks, np.int64)).chunks(
            chunk_rows
        )

    def reaching(self, low: Point, high: Point) -> SomeBlocks:
        """See `ShownRows.reaching`: the rows of the blocks whose boxes reach into it."""
        return SomeBlocks(self, self.rows, self.rows.blocks_in(low, high))

    def some_means(self) -> Tensor:
        """See `ShownRows.some_means`: of blocks evenly over all."""
        with self.trouble():
            pieces = self.rows.pieces(self._some_blocks(_SAMPLE_BLOCKS), at_once=1)
            return torch.cat([rows["means"].cpu() for _, rows in pieces])

    def sample(self, n_rows: int) -> dict[str, Tensor]:
        """Copies of all attributes of about so many rows, on the device: of blocks evenly over all.

        Raises:
            InputError: the drive errs.
        """
        blocks = self._some_blocks(max(1, n_rows // self.rows.block_rows))
        with self.trouble():
            parts = [rows for _, rows in self.rows.pieces(blocks)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _some_blocks(self, most: int) -> Ids:
        every = np.array(self._store.blocks, np.int64)
        if len(every) <= most:
            return every
        return every[np.linspace(0, len(every) - 1, most).astype(np.int64)]

    def tensors(self) -> dict[str, Tensor]:
        """None: a checkpoint refers to a snapshot of the store."""
        return {}

    def foresee(self, views_of: ViewsOf, renderer: Renderer) -> None:
        """See `TrainedRows.foresee`."""
        assert self._counts is not None
        with self.trouble():
            self._counts.foresight = Foresight(self.rows, renderer, views_of)

    def begin_saving(self, kept: Collection[int]) -> SavingSnapshot:
        """See `TrainedRows.begin_saving`; ``kept`` are numbers of snapshots."""
        start = time.perf_counter()
        with _span(self._trace), self.trouble():
            for placement in self._placements:
                placement.finish()
            least = min(kept, default=None)
            n = 0 if least is None else sum(s >= least for s in self._store.snapshots)
            ticket = self.rows.snapshot_async(keep=n + 1)
        self._pauses.append(time.perf_counter() - start)
        return SavingSnapshot(ticket, self._saved, self._store, self._trace)

    def traffic(self) -> dict[str, float]:
        """See `TrainedRows.traffic`.

        Returns:
            Blocks that were in slots when they were wanted (``hit``), that came from host memory
            (``missed``), that were on the drive alone when they were wanted (``late``), and that
            went back to host memory (``evicted``); seconds that training waited for blocks of the
            drive; bytes of the drive; seconds that snapshots kept training waiting.
        """
        cache, store = self.rows.cache.stats, self._store.stats
        return {
            "blocks_hit": cache.hits,
            "blocks_missed": cache.loaded,
            "blocks_late": cache.late,
            "blocks_evicted": cache.evicted,
            "blocks_wait_s": cache.waited_s,
            "bytes_read": store.bytes_read,
            "bytes_written": store.bytes_written,
            "snapshot_pause_s": sum(self._pauses),
        }

    def trouble(self) -> AbstractContextManager[None]:
        """See `TrainedRows.trouble`."""
        return store_trouble(self._store.path, is_read_only=self._store.is_read_only)

    def close(self) -> None:
        """Wait for what is under way, and let other writers in."""
        self.rows.close()
