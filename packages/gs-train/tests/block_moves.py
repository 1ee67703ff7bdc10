# SPDX-License-Identifier: Apache-2.0
"""Blocks and bytes that real stores move while all rows train, beside those that are forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import gs_order
from gs_train.blocks.stored_rows import StoredRows
from gs_train.renderers import RenderOptions, Rows, View, make_renderer
from gs_train.sizing.census import measure_workload
from gs_train.sizing.forecasts.block_bytes import BlockMemory, record_bytes
from gs_train.sizing.forecasts.block_speed import BlockTraffic, block_traffic
from gs_train.tide.foresight import Foresight

RATES = {
    "means": 1e-4, "scales": 1e-3, "quats": 1e-3, "opacities": 1e-3, "sh0": 1e-3, "shN": 1e-3,
}  # fmt: skip
EPOCHS = 3
"""Of which the second one counts: the first one fills memory, and behind the last one nothing is
known."""


@dataclass(frozen=True)
class Moved:
    """Of a mean step of the second epoch: blocks, and bytes of the drive."""

    used: float
    loaded: float
    read: float
    bytes_read: float
    bytes_written: float


def moves(
    folder: Path, rows: Rows, views: Sequence[View], sampler: gs_order.ViewSampler, m: BlockMemory
) -> tuple[BlockTraffic, float, Moved]:
    """What is forecast, the bytes that it reads, and what a store did.

    Args:
        folder: for the store.
        sampler: of ``EPOCHS`` epochs.
        m: blocks in memory.
    """
    n, renderer, draw = len(rows["means"]), make_renderer("cpu", RenderOptions()), torch.Generator()
    degree = {0: 0, 3: 1, 8: 2, 15: 3}[rows["shN"].shape[1]]
    work = measure_workload(
        rows, list(views), renderer, n_rows=n, sh_degree=degree, batch_size=sampler.batch_size,
        sampler=sampler,
    )  # fmt: skip
    foretold = block_traffic(work, m)
    n_epoch = len(views) // sampler.batch_size

    def views_of(step: int) -> list[View]:
        return [views[k] for k in sampler.batch(step)] if step < EPOCHS * n_epoch else []

    keys = torch.arange(n, dtype=torch.int32)
    StoredRows.create(
        folder, rows, keys, block_rows=m.block_rows, betas=(0.9, 0.999), eps=1e-15, ceilings=RATES
    )
    counts = []
    with StoredRows.open(folder, slots=m.slots, host_blocks=m.places) as stored:
        foresight = Foresight(stored, renderer, views_of)
        n_used = 0
        for step in range(EPOCHS * n_epoch):
            look = stored.look(views_of(step), renderer)
            n_used += len(stored.candidates(views_of(step), renderer).ids)
            if following := views_of(step + 1):
                stored.expect(following, renderer, RATES)
            noise = {k: torch.randn(v.shape, generator=draw) for k, v in look.rows.items()}
            stored.update(look, noise, RATES)
            foresight.after_update()
            cache, store = stored.cache.stats, stored.store.stats
            moved = cache.loaded, cache.read, store.bytes_read, store.bytes_written
            counts.append((n_used, *moved))
    first, last = (np.array(counts[k * n_epoch - 1], float) for k in (1, 2))
    real = Moved(*((last - first) / n_epoch).tolist())
    return foretold, foretold.read * record_bytes(work, m.block_rows), real
