# SPDX-License-Identifier: Apache-2.0
"""Batches that list all rows of their blocks, and mark those that are seen, train as the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_tables import TableCpuRenderer
from one_thread import one_threaded
from street import drive, street_rows, street_views
from torch import Tensor

from gs_pinned import BlockStore
from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.settings import StepSettings
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import GEOMETRY
from gs_train.tide.engine import block_engine
from gs_train.tide.room import BatchRoom

N_ROWS, BATCH = 1200, 3
RATES = {
    "means": 0.03, "scales": 0.02, "quats": 0.01, "opacities": 0.05, "sh0": 0.02, "shN": 0.001,
}  # fmt: skip
BETAS, EPS = (0.9**BATCH, 0.999**BATCH), 1e-15
SETTINGS = StepSettings(
    1, RATES, BETAS, EPS, 0.2, opacity_reg=0.01, scale_reg=0.02, regularise_all=False
)


def _ignore(ids: Tensor, splats: object) -> None:
    pass


def create(path: Path) -> None:
    keys = torch.arange(N_ROWS, dtype=torch.int32)
    StoredRows.create(
        path, street_rows(N_ROWS, sh_degree=1), keys, block_rows=32, betas=BETAS, eps=EPS,
        ceilings=RATES,
    )  # fmt: skip


def run(path: Path, most_listed: int, room: BatchRoom | None) -> tuple[dict, list[float], list]:
    """What a store holds after some steps, by plane and key; losses; rows drawn and rows seen."""
    renderer, views = TableCpuRenderer(), street_views(focal=0.5)
    create(path)
    draw = torch.Generator().manual_seed(1)
    truths = [torch.randint(0, 256, (64, 96, 3), generator=draw).byte() for _ in views]
    losses, batches = [], list(drive(5, BATCH))
    with StoredRows.open(path, slots=30, host_blocks=5) as stored:
        engine = block_engine(stored, renderer, room=room, most_listed=most_listed)
        for step, batch in enumerate(batches):
            upcoming = [[views[i] for i in b] for b in batches[step + 1 : step + 3]]
            photographs = [(views[i], truths[i]) for i in batch]
            losses.append(float(engine.step(photographs, SETTINGS, _ignore, upcoming=upcoming)))
        engine.finish()
        stored.snapshot()
    with BlockStore.open(path, read_only=True) as store:
        planes = store.read(store.blocks)
    order = planes["key"][:, 0].argsort()
    counts = [engine.stats.visible, engine.stats.seen]
    return {name: array[order] for name, array in planes.items()}, losses, counts


@one_threaded
def test_listing_all_rows_of_blocks_changes_no_bit(tmp_path: Path) -> None:
    expected, losses, (n_drawn, n_seen) = run(tmp_path / "a", 0, None)
    for name, most_listed, room in (
        ("all", 1 << 30, None),
        ("small batches", 700, None),
        ("with room", 1 << 30, BatchRoom(400)),
    ):
        planes, again, (n_listed, n_marked) = run(tmp_path / name, most_listed, room)
        assert n_listed > n_drawn
        assert n_marked == n_seen
        assert again == losses
        for plane, values in expected.items():
            np.testing.assert_array_equal(planes[plane], values, f"{name}: {plane}")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_marks_are_the_rows_that_views_see(tmp_path: Path, device: str) -> None:
    """And each view lists at least those that it sees."""
    create(tmp_path / "s")
    renderer = make_renderer("cpu" if device == "cpu" else "raster", RenderOptions())
    views = [view.to(torch.device(device)) for view in street_views(focal=0.5)]
    with StoredRows.open(tmp_path / "s", slots=38, host_blocks=5, device=device) as rows:
        for first in (0, 21, 57):
            some = views[first : first + 3]
            exact = rows.look(some, renderer)
            rows.leave(exact)
            look = rows.look_within(some, renderer, None, most_listed=1 << 30)
            assert look is not None
            assert look.marks is not None
            assert torch.equal(look.keys[look.marks], exact.keys)
            geometry = {name: look.rows[name] for name in GEOMETRY}
            truth = cull(geometry, cameras_of(some), renderer)
            assert torch.equal(truth.ids.long(), look.marks.nonzero()[:, 0])
            assert torch.equal(truth.mask & look.mask[truth.ids.long()], truth.mask)
            bits = [(look.mask[:, 0] >> v) & 1 for v in range(len(some))]
            assert look.counts == tuple(int(bit.sum()) for bit in bits)
            rows.leave(look)


def test_a_look_that_would_list_too_many_rows_lists_those_that_are_seen(tmp_path: Path) -> None:
    create(tmp_path / "s")
    renderer, views = make_renderer("cpu", RenderOptions()), street_views(focal=0.5)[:3]
    with StoredRows.open(tmp_path / "s", slots=38, host_blocks=5) as rows:
        look = rows.look_within(views, renderer, None, most_listed=1 << 30)
        assert look is not None
        n_listed, n_rows = sum(look.counts), len(look.keys)
        rows.leave(look)
        for most_rows, most_listed, lists in (
            (None, n_listed, True),
            (None, n_listed - 1, False),
            (n_rows, n_listed, True),
            (n_rows - 1, n_listed, False),
        ):
            look = rows.look_within(views, renderer, most_rows, most_listed=most_listed)
            assert look is not None
            assert (look.marks is not None) == lists
            rows.leave(look)
