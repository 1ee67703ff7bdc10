# SPDX-License-Identifier: Apache-2.0
"""Rows in blocks that sleep are listed at every step of their sleep, whatever the rates do."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sleep_trajectories import values_of_all_sizes
from street import drive, street_rows, street_views, whole_street
from torch import Tensor

from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.partition import kd_partition
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.slot_rows import SlotRows
from gs_train.blocks.stored_adam import StoredAdam
from gs_train.blocks.stored_rows import Look, StoredRows
from gs_train.renderers import RenderOptions, Rows, View, make_renderer
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import GEOMETRY, GEOMETRY_WIDTH, NAMES

RATES = {
    "means": 0.03, "scales": 0.02, "quats": 0.01, "opacities": 0.05, "sh0": 0.02, "shN": 0.001,
}  # fmt: skip
BETAS, EPS = (0.9, 0.999), 1e-15
RENDERER = make_renderer("cpu", RenderOptions())
CPU = torch.device("cpu")


def stored(path: Path, rows: Rows, *, block_rows: int = 64, rates: dict[str, float] = RATES):
    """Rows in a store, all blocks of which fit the slots."""
    keys = torch.arange(len(rows["means"]), dtype=torch.int32)
    StoredRows.create(path, rows, keys, block_rows=block_rows, betas=BETAS, eps=EPS, ceilings=rates)
    return StoredRows.open(path, slots=-(-len(keys) // block_rows) + 1, host_blocks=4)


def gradients_of(look: Look, step: int) -> dict[str, Tensor]:
    """Small whole numbers that push a row into a direction of its own, most of the time."""
    pushes = {}
    for k, (name, values) in enumerate(look.rows.items()):
        mixed = look.keys.long()[:, None] * 7919 + torch.arange(values[:1].numel()) * 104729 + k
        steady = 2 * (mixed % 3 - 1)
        pushes[name] = (steady + (mixed * 31 + step * 613) % 3 - 1).float().view_as(values)
    return pushes


def nothing_of(look: Look) -> dict[str, Tensor]:
    return {name: torch.zeros_like(values) for name, values in look.rows.items()}


def all_of(rows: StoredRows) -> dict[str, Tensor]:
    """All rows after the last step, by key."""
    parts = list(rows.pieces())
    order = torch.cat([keys for keys, _ in parts]).argsort()
    return {name: torch.cat([part[name] for _, part in parts])[order] for name in NAMES}


def assert_exact(rows: StoredRows, look: Look, views: list[View]) -> None:
    """No row is missed and none is listed in vain, for each view."""
    truth = cull(
        {name: values for name, values in all_of(rows).items() if name in GEOMETRY},
        cameras_of(views),
        RENDERER,
    )
    order = look.keys.argsort()
    assert torch.equal(look.keys[order], truth.ids)
    assert torch.equal(look.mask[order], truth.mask)
    assert look.counts == tuple(truth.counts.tolist())


@pytest.mark.parametrize("n_steps", [40, pytest.param(200, marks=pytest.mark.long)])
def test_lists_are_exact_while_rates_restart(tmp_path: Path, n_steps: int) -> None:
    """Rates rise above those that the boxes were fitted for, by as much as was announced or not."""
    views = street_views()
    with stored(tmp_path / "s", street_rows(1200, sh_degree=1), block_rows=37) as rows:
        n_listed = 0
        for step, batch in enumerate(drive(n_steps, 2)):
            seen_by = [views[i] for i in batch]
            look = rows.look(seen_by, RENDERER)
            assert_exact(rows, look, seen_by)
            n_listed += look.n_candidates
            factor = 0.02 + 0.98 * (1 - step % 17 / 17) ** 2
            rates = {name: rate * factor for name, rate in RATES.items()}
            rows.update(look, gradients_of(look, step), rates, later=1.5 if step % 2 else 1.0)
        assert 0 < n_listed < 0.7 * n_steps * len(rows.boxes)


def test_a_row_that_sleeps_into_a_view_is_listed(tmp_path: Path) -> None:
    """Also where neither its last place nor any step but the last is in the view."""
    one = {name: values[:1].clone() for name, values in street_rows(64, sh_degree=1).items()}
    one["means"][0] = torch.tensor([-0.15, 0.0, 3.0])  # beside the view
    one["scales"][0] = math.log(1e-3)
    one["opacities"][0] = 3.0
    ahead = torch.tensor([[90.0, 0, 2], [0, 90, 2], [0, 0, 1]])
    narrow = View("ahead", torch.eye(4), ahead, 4, 4)
    wide = View("wide", torch.eye(4), torch.tensor([[2.0, 0, 2], [0, 2, 2], [0, 0, 1]]), 4, 4)
    rates = {**RATES, "means": 0.01}
    with stored(tmp_path / "s", one, rates=rates) as rows:
        look = rows.look([wide], RENDERER)
        assert len(look.keys) == 1
        push = nothing_of(look)
        push["means"][0, 0] = -1.0
        rows.update(look, push, rates)
        n_seen = []
        for _ in range(60):
            look = rows.look([narrow], RENDERER)
            assert look.n_candidates == 1
            n_seen.append(len(look.keys))
            rows.leave(look)
            sky = rows.look(street_views()[-1:], RENDERER)
            rows.update(sky, nothing_of(sky), rates)
        assert n_seen[0] == 0
        assert n_seen[-1] == 1


def test_boxes_hold_for_the_rates_to_come_before_these_are_known(tmp_path: Path) -> None:
    with stored(tmp_path / "s", street_rows(1200, sh_degree=1)) as rows:
        look = rows.look([whole_street()], RENDERER)
        rows.update(look, gradients_of(look, 0), RATES, later=4.0)
        early = {name: array.copy() for name, array in rows.boxes.state().items()}
        higher = {name: 4.0 * rate for name, rate in RATES.items()}
        for _ in range(20):
            sky = rows.look(street_views()[-1:], RENDERER)
            rows.update(sky, nothing_of(sky), higher)
            starts, partition = 0, list(rows.pieces())
            assert len(partition) == 1  # block after block
            means = partition[0][1]["means"].numpy()
            largest = partition[0][1]["scales"].amax(1).exp().numpy()
            for block, count in enumerate(rows.cache.counts(range(len(rows.boxes)))):
                own = slice(starts, starts := starts + int(count))
                assert (early["lower"][block] <= means[own]).all()
                assert (means[own] <= early["upper"][block]).all()
                assert (largest[own] <= early["scale"][block] * (1 + 4e-6)).all()


@pytest.mark.parametrize("seed", range(3))
def test_rows_with_any_moments_are_found_at_every_step_of_their_sleep(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, block_rows, betas = 600, 16, (0.9 ** (1 + seed), 0.999 ** (1 + seed))
    rate = float(10 ** draw.uniform(-3, 1))
    rows = {name: values[:n] for name, values in street_rows(1200).items() if name in GEOMETRY}
    keys = np.arange(n, dtype=np.int32)
    partition = kd_partition(rows["means"].numpy(), rows["scales"].numpy(), keys, block_rows)
    tables = {f"geometry{m}": torch.zeros(len(partition) * block_rows, 11) for m in MOMENTS}
    tables["last_step"] = torch.zeros(len(partition) * block_rows, 1, dtype=torch.int32)
    blocks = SlotRows(np.arange(len(partition), dtype=np.int32), partition.counts, block_rows, CPU)
    places = blocks.places()
    values, exp_avg, exp_avg_sq = (tables[f"geometry{m}"] for m in MOMENTS)
    order = torch.from_numpy(partition.rows)
    values[places] = torch.cat([rows[name][order].view(n, -1) for name in GEOMETRY], 1)
    exp_avg[:] = torch.from_numpy(draw.uniform(-3, 3, exp_avg.shape))
    exp_avg_sq[:] = 1.0
    some = places[::41]
    _, m, v = values_of_all_sizes(len(some) * GEOMETRY_WIDTH, draw)
    exp_avg[some] = torch.from_numpy(m).view(len(some), -1)
    exp_avg_sq[some] = torch.from_numpy(v).view(len(some), -1)
    means, scales = (SleepReach(betas, EPS, rate) for _ in range(2))
    boxes = BlockBoxes(len(partition))
    boxes.fit_in_slots(np.arange(len(partition)), blocks, tables, ReachTables(means, scales, CPU))
    adam = StoredAdam(GEOMETRY, 0, betas, EPS, {}, CPU)
    views = street_views(60)[::20]
    n_hidden = 0
    for _ in range(30):
        for reach in (means, scales):
            reach.record_step(rate)
        adam.begin(dict.fromkeys(GEOMETRY, rate))
        adam.end()
        truth = cull(adam.lookahead(tables, places), cameras_of(views), RENDERER)
        found = boxes.candidates(views, RENDERER.options, means, scales)
        for view in range(len(views)):
            seen = truth.view(view)
            needed = np.unique(places[seen.long()].numpy() // block_rows)
            assert np.isin(needed, np.asarray(found.view(view))).all()
        n_hidden += len(partition) - len(found.ids)
    assert n_hidden > 0 or rate > 1.0
