# SPDX-License-Identifier: Apache-2.0
"""Waits for the drive are spans of the trace and seconds of the traffic; without a wait is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from street import drive, street_rows, street_views

from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.settings import StepSettings
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.tide.engine import WAIT, block_engine

N_ROWS, BLOCK_ROWS, N_BLOCKS = 1200, 32, 38
RATES, BETAS, EPS = dict.fromkeys(NAMES, 0.01), (0.9, 0.999), 1e-15


@pytest.mark.parametrize(("slots", "waits"), [(16, True), (N_BLOCKS, False)])
def test_waits_for_blocks_are_spans_and_seconds(tmp_path: Path, slots: int, waits: bool) -> None:
    """Once every block has been looked at, so that as many are in memory as fit."""
    StoredRows.create(
        tmp_path / "store",
        street_rows(N_ROWS, sh_degree=1),
        torch.arange(N_ROWS, dtype=torch.int32),
        block_rows=BLOCK_ROWS,
        betas=BETAS,
        eps=EPS,
        ceilings=RATES,
    )
    views, renderer = street_views(focal=0.5), make_renderer("cpu", RenderOptions())
    truth = torch.zeros((views[0].height, views[0].width, 3), dtype=torch.uint8)
    with StoredRows.open(tmp_path / "store", slots=slots, host_blocks=5) as rows:
        for _ in rows.pieces():  # every block, in as many turns as there must be
            pass
        engine = block_engine(rows, renderer)
        before = engine.model.traffic()["blocks_wait_s"]
        assert before > 0
        engine.trace.start(tmp_path / "trace.json")
        for batch in drive(4, 2):
            engine.step(
                [(views[i], truth) for i in batch],
                StepSettings(1, RATES, BETAS, EPS, 0.2),
                lambda ids, splats: None,
            )
        engine.finish()
        waited = engine.model.traffic()["blocks_wait_s"] - before
        spans = [name for _, name, *_ in engine.trace.spans if name == WAIT]
        assert (bool(spans), waited > 0) == (waits, waits)
        engine.model.begin_saving([]).wait()
        assert [name for _, name, *_ in engine.trace.spans].count("snapshot") == 2
