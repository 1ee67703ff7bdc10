# SPDX-License-Identifier: Apache-2.0
"""A cache that knows what comes reads less, and leaves the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from street import street_rows, street_views

from gs_pinned import BlockStore, CacheStats
from gs_train.blocks.stored_rows import StoredRows
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.tide.foresight import Foresight

N_ROWS, N_STEPS, BLOCK_ROWS = 1500, 60, 16
RATES = dict.fromkeys(NAMES, 0.01)
VIEWS = street_views()


def views_of(step: int) -> Sequence[View]:
    """Two views, of all at random."""
    if step >= N_STEPS:
        return []
    chosen = np.random.default_rng(step).permutation(len(VIEWS) - 1)[:2]
    return [VIEWS[i] for i in chosen.tolist()]


def train(
    path: Path, host_blocks: int, n_known: int | None = None, n_fetched: int = 0
) -> tuple[CacheStats, dict[str, np.ndarray]]:
    StoredRows.create(
        path,
        street_rows(N_ROWS, sh_degree=0),
        torch.arange(N_ROWS, dtype=torch.int32),
        block_rows=BLOCK_ROWS,
        betas=(0.9, 0.999),
        eps=1e-15,
        ceilings=RATES,
    )
    renderer = make_renderer("cpu", RenderOptions())
    with StoredRows.open(path, slots=25, host_blocks=host_blocks) as rows:
        foresight = None
        if n_known is not None:
            foresight = Foresight(rows, renderer, views_of, n_known=n_known, n_fetched=n_fetched)
        for step in range(N_STEPS):
            look = rows.look(views_of(step), renderer)
            rows.update(look, {name: torch.ones_like(v) for name, v in look.rows.items()}, RATES)
            if foresight is not None:
                foresight.after_update()
        if foresight is not None:
            foresight.after_update()  # behind the end
        stats = rows.cache.stats
        rows.snapshot()
    with BlockStore.open(path, read_only=True) as store:
        return stats, store.read(store.blocks)


def test_known_uses_save_reads_and_change_no_bit(tmp_path: Path) -> None:
    blind, expected = train(tmp_path / "blind", 25)
    for n_known in (7, 100):
        seeing, found = train(tmp_path / f"{n_known}", 25, n_known)
        assert seeing.read < 0.85 * blind.read
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, name)
    _, found = train(tmp_path / "ahead", 60, 100, n_fetched=1)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, name)
