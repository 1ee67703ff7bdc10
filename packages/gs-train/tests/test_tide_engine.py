# SPDX-License-Identifier: Apache-2.0
"""Training with rows in blocks is training with rows in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cpu_tables import TableCpuRenderer
from one_thread import one_threaded
from street import drive, street_rows, street_views
from torch import Tensor

from gs_train.backends import make_backend
from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.settings import StepSettings
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.tide.engine import block_engine

N_ROWS, BATCH = 1200, 2
RATES = {
    "means": 0.03, "scales": 0.02, "quats": 0.01, "opacities": 0.05, "sh0": 0.02, "shN": 0.001,
}  # fmt: skip
BETAS, EPS = (0.9**BATCH, 0.999**BATCH), 1e-15
SETTINGS = StepSettings(1, RATES, BETAS, EPS, 0.2)


def _ignore(ids: Tensor, splats: object) -> None:
    pass


def _renderer(kind: str) -> Renderer:
    if kind == "tables":
        return TableCpuRenderer()
    return make_renderer("cpu" if kind == "copies" else "raster", RenderOptions())


@pytest.mark.parametrize(
    ("kind", "slots", "most_listed"),
    [
        ("copies", 16, 0),
        ("tables", 16, 0),
        ("tables", 2, 0),
        ("tables", 16, 1 << 20),
        pytest.param("raster", 16, 0, marks=pytest.mark.gpu),
        pytest.param("raster", 16, 1 << 20, marks=pytest.mark.gpu),
        pytest.param("raster", 2, 1 << 20, marks=pytest.mark.gpu),
    ],
)
@one_threaded
def test_a_run_in_blocks_is_that_on_the_device(
    tmp_path: Path, kind: str, slots: int, most_listed: int
) -> None:
    renderer = _renderer(kind)
    rows = street_rows(N_ROWS, sh_degree=1)
    views = [view.to(renderer.device) for view in street_views()]
    keys = torch.arange(N_ROWS, dtype=torch.int32)
    StoredRows.create(
        tmp_path / "s", rows, keys, block_rows=32, betas=BETAS, eps=EPS, ceilings=RATES
    )
    draw = torch.Generator().manual_seed(1)
    truths = [
        torch.randint(0, 256, (view.height, view.width, 3), generator=draw, dtype=torch.uint8).to(
            renderer.device
        )
        for view in views
    ]
    batches = list(drive(12, BATCH))
    theirs = make_backend(
        PRESETS["none"], rows, None, renderer=_renderer(kind), semantics="dense", mem_limit=1.0
    )
    with StoredRows.open(
        tmp_path / "s", slots=slots, host_blocks=5, device=renderer.device
    ) as stored:
        ours = block_engine(stored, renderer, most_listed=most_listed)
        for step, batch in enumerate(batches):
            photographs = [(views[i], truths[i]) for i in batch]
            upcoming = [[views[i] for i in b] for b in batches[step + 1 : step + 3]]
            losses = [
                engine.step(photographs, SETTINGS, _ignore, upcoming=upcoming)
                for engine in (ours, theirs)
            ]
            assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-5)
        ours.finish()
        theirs.finish()
        found = dict.fromkeys(NAMES, torch.empty(0))
        parts = list(stored.pieces())
        order = torch.cat([k for k, _ in parts]).argsort()
        found = {name: torch.cat([r[name] for _, r in parts])[order] for name in NAMES}
        assert stored.cache.stats.read > 0
    there = theirs.model.snapshot(slice(None))
    for name in NAMES:
        a, b = found[name].double().cpu(), there[name].double().cpu()
        excess = (a - b).abs() / b.abs().clamp_min(RATES[name])
        assert excess.max() <= 1e-5, name
