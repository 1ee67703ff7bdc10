# SPDX-License-Identifier: Apache-2.0
"""Lists through boxes of sleeping blocks are those of all rows, and training on them is Adam's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sleep_trajectories import values_of_all_sizes
from street import drive, street_rows, street_views, whole_street
from torch import Tensor

from gs_adam import HostAdam
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.sleeping_geometry import SleepingGeometry
from gs_train.renderers import RenderOptions, Rows, View, make_renderer
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import GEOMETRY, GEOMETRY_WIDTH

N_ROWS = 2000
N_STEPS = 200
RATES = {"means": 0.03, "scales": 0.02, "quats": 0.01, "opacities": 0.05}
WIDTHS = [3, 3, 4, 1]
EPS = 1e-15

Factor = Callable[[int], float]
"""Of all rates, by step from 0 on."""

DECAYING: Factor = lambda step: 0.01 ** (step / N_STEPS)  # noqa: E731
RESTARTING: Factor = lambda step: 0.02 + 0.98 * (1 - step % 60 / 60) ** 2  # noqa: E731


class AllRows:
    """All rows in the order of keys: deferred Adam, and torch's dense Adam beside it."""

    def __init__(self, rows: Rows, betas: tuple[float, float]) -> None:
        values = [rows[name].reshape(len(rows["means"]), -1) for name in GEOMETRY]

        def groups(dtype: torch.dtype) -> list[dict[str, object]]:
            return [{"params": [torch.nn.Parameter(v.to(dtype).clone())]} for v in values]

        self.deferred = HostAdam(groups(torch.float32), betas=betas, eps=EPS, threads=1)
        self.dense = torch.optim.Adam(groups(torch.float64), betas=betas, eps=EPS)

    def present(self) -> dict[str, Tensor]:
        """Values of all rows after the last step."""
        values = self.deferred.lookahead(None)
        parts = dict(zip(GEOMETRY, values, strict=True))
        return {**parts, "opacities": parts["opacities"].reshape(-1)}

    def update(self, ids: Tensor, gradients: Tensor, rates: dict[str, float]) -> None:
        for optimizer in (self.deferred, self.dense):
            for group, name in zip(optimizer.param_groups, GEOMETRY, strict=True):
                group["lr"] = rates[name]
        parts = gradients.split(WIDTHS, 1)
        self.deferred.step(ids, [part.contiguous() for part in parts])
        for group, part in zip(self.dense.param_groups, parts, strict=True):
            (param,) = group["params"]
            param.grad = torch.zeros_like(param)
            param.grad[ids] = part.double()
        self.dense.step()

    def stored(self) -> list[Tensor]:
        """Values and moments as they are stored, and the last step of each row."""
        params = [group["params"][0] for group in self.deferred.param_groups]
        states = [self.deferred.state[param] for param in params]
        tables = [[param.detach() for param in params]]
        tables += [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        last_step = self.deferred.state_dict()["gs_adam"]["last_step"]
        return [*(torch.cat(parts, 1) for parts in tables), last_step]


def gradients_of(keys: Tensor, step: int) -> Tensor:
    """(R, 11) small whole numbers that push a row into a direction of its own, most of the time."""
    mixed = keys.long()[:, None] * 7919 + torch.arange(GEOMETRY_WIDTH) * 104729
    steady = 2 * (mixed % 3 - 1)
    return (steady + (mixed * 31 + step * 613) % 3 - 1).float()


def shuffled_street(seed: int = 3) -> tuple[Rows, Tensor]:
    """Rows of a street in the order of their keys, and keys."""
    rows = {name: values for name, values in street_rows(N_ROWS).items() if name in GEOMETRY}
    keys = torch.randperm(10 * N_ROWS, generator=torch.Generator().manual_seed(seed))[:N_ROWS]
    return rows, keys.sort().values.int()


def assert_within(
    boxes: BlockBoxes, slack: np.ndarray, blocks: SleepingGeometry, now: dict[str, Tensor]
) -> None:
    """The present values of all rows, by place, are in the boxes of their blocks."""
    block = np.repeat(np.arange(len(boxes)), blocks.partition.counts)
    means = now["means"].numpy()
    assert (boxes.lower[block] - slack[block, :1] <= means).all()
    assert (means <= boxes.upper[block] + slack[block, :1]).all()
    largest = now["scales"].amax(1).exp().numpy()
    assert (largest <= boxes.scale[block] * np.exp(slack[block, 1]) * (1 + 4e-6)).all()


@pytest.mark.parametrize(
    ("block_rows", "batch_size", "factor"),
    [
        pytest.param(64, 4, DECAYING, id="64 rows, decaying"),
        pytest.param(37, 1, RESTARTING, id="37 rows, restarts"),
        pytest.param(1024, 4, RESTARTING, id="1024 rows, restarts", marks=pytest.mark.long),
    ],
)
def test_exact_lists_through_boxes_train_as_adam_on_all_rows(
    block_rows: int, batch_size: int, factor: Factor
) -> None:
    rows, keys = shuffled_street()
    betas = 0.9**batch_size, 0.999**batch_size
    views, renderer = street_views(), make_renderer("cpu", RenderOptions())
    alone = AllRows(rows, betas)
    order = torch.randperm(N_ROWS, generator=torch.Generator().manual_seed(1))
    blocks = SleepingGeometry(
        {name: values[order] for name, values in rows.items()},
        keys[order],
        block_rows=block_rows,
        betas=betas,
        eps=EPS,
        ceilings=RATES,
    )
    of_place = torch.searchsorted(keys, blocks.keys)
    n_listed = n_seen = 0
    for step, batch in enumerate(drive(N_STEPS, batch_size)):
        seen_by = [views[i] for i in batch]
        now = alone.present()
        slack = blocks.boxes.slack(blocks.reach["means"], blocks.reach["scales"])
        in_place = {name: values[of_place] for name, values in now.items()}
        assert_within(blocks.boxes, slack, blocks, in_place)
        truth = cull(now, cameras_of(seen_by), renderer)
        sight = blocks.look(seen_by, renderer)
        # 0 missed, 0 extra, for each view.
        ids = of_place[sight.places]
        assert torch.equal(ids.sort().values, truth.ids.long())
        assert torch.equal(sight.visible.counts, truth.counts)
        in_order = ids.argsort()
        assert torch.equal(sight.visible.mask[in_order], truth.mask)
        for name, values in sight.geometry.items():
            assert torch.equal(values[in_order], now[name][truth.ids.long()])
        n_listed, n_seen = n_listed + len(sight.candidates), n_seen + len(truth)
        rates = {name: rate * factor(step) for name, rate in RATES.items()}
        alone.update(truth.ids, gradients_of(keys[truth.ids.long()], step), rates)
        blocks.update(sight.places, gradients_of(blocks.keys[sight.places], step), rates)
    assert 0 < n_listed < 0.7 * N_STEPS * len(blocks.partition) or block_rows == 1024
    assert n_seen > 5 * N_STEPS
    # The same bits, asleep and awake.
    for ours, theirs in zip(
        [blocks.table, blocks.exp_avg, blocks.exp_avg_sq, blocks.last_step], alone.stored()
    ):
        assert torch.equal(ours, theirs[of_place])
    assert len(blocks.last_step.unique()) > 50
    # And what dense Adam makes of the same gradients.
    present = blocks.lookahead(torch.arange(N_ROWS))
    for group, name in zip(alone.dense.param_groups, GEOMETRY, strict=True):
        dense = group["params"][0].detach()[of_place].view_as(present[name])
        bound = 1e-5 * dense.abs().clamp_min(RATES[name])
        assert ((present[name].double() - dense).abs() <= bound).all(), name


def test_a_row_that_sleeps_into_a_view_is_listed() -> None:
    """Also where neither its last place nor any step but the last is in the view."""
    rows, keys = shuffled_street()
    first = {name: values[:1].clone() for name, values in rows.items()}
    first["means"][0] = torch.tensor([0.0, 0.0, 3.0])
    first["scales"][0] = math.log(1e-3)
    first["opacities"][0] = 3.0
    view = View("ahead", torch.eye(4), torch.tensor([[90.0, 0, 2], [0, 90, 2], [0, 0, 1]]), 4, 4)
    blocks = SleepingGeometry(
        first,
        keys[:1],
        block_rows=32,
        betas=(0.9, 0.999),
        eps=EPS,
        ceilings={**RATES, "means": 0.01},
    )
    renderer = make_renderer("cpu", RenderOptions())
    push = torch.zeros(1, GEOMETRY_WIDTH)
    seen = []
    blocks.table[0, 0] = -0.15  # beside the view
    blocks.refit(np.array([0]))
    for step in range(60):
        push[0, 0] = -1.0
        places = torch.arange(1) if step == 0 else torch.arange(0)
        blocks.update(places, push[: len(places)], {**RATES, "means": 0.01})
        sight = blocks.look([view], renderer)
        assert len(sight.candidates) == 1
        seen.append(len(sight.places))
    assert seen[0] == 0
    assert seen[-1] == 1


def test_boxes_hold_for_the_rates_to_come_before_these_are_known() -> None:
    rows, keys = shuffled_street()
    blocks = SleepingGeometry(
        rows, keys, block_rows=64, betas=(0.9, 0.999), eps=EPS, ceilings=RATES
    )
    everything = torch.arange(N_ROWS)
    blocks.update(everything, gradients_of(blocks.keys, 0), RATES, later=4.0)
    boxes = blocks.boxes
    early = BlockBoxes(len(boxes))
    early.lower[:], early.upper[:], early.scale[:] = boxes.lower, boxes.upper, boxes.scale
    higher = {name: 4.0 * rate for name, rate in RATES.items()}
    for _ in range(20):
        blocks.update(torch.arange(0), torch.zeros(0, GEOMETRY_WIDTH), higher)
        assert_within(early, np.zeros((len(early), 2)), blocks, blocks.lookahead(everything))


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_any_moments_are_found_at_every_step_of_their_sleep(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, betas = 600, (0.9 ** (1 + seed), 0.999 ** (1 + seed))
    rows = {name: values[:n] for name, values in shuffled_street()[0].items()}
    rate = float(10 ** draw.uniform(-3, 1))
    ceilings = dict.fromkeys(GEOMETRY, rate)
    blocks = SleepingGeometry(
        rows, torch.arange(n).int(), block_rows=16, betas=betas, eps=EPS, ceilings=ceilings
    )
    blocks.exp_avg[:] = torch.from_numpy(draw.uniform(-3, 3, (n, GEOMETRY_WIDTH)))
    blocks.exp_avg_sq[:] = 1.0
    some = torch.arange(0, n, 41)
    _, m, v = values_of_all_sizes(len(some) * GEOMETRY_WIDTH, draw)
    blocks.exp_avg[some] = torch.from_numpy(m).view(len(some), -1)
    blocks.exp_avg_sq[some] = torch.from_numpy(v).view(len(some), -1)
    blocks.refit(np.arange(len(blocks.partition)))
    views, renderer = street_views(60)[::20], make_renderer("cpu", RenderOptions())
    nobody = torch.arange(0)
    n_hidden = 0
    for _ in range(30):
        blocks.update(nobody, torch.zeros(0, GEOMETRY_WIDTH), ceilings)
        now = blocks.lookahead(torch.arange(n))
        truth = cull(now, cameras_of(views), renderer)
        sight = blocks.look(views, renderer)
        assert torch.equal(sight.places, truth.ids.long())
        assert torch.equal(sight.visible.mask, truth.mask)
        n_hidden += len(blocks.partition) - len(sight.candidates)
    assert n_hidden > 0 or rate > 1.0


def test_looking_changes_nothing() -> None:
    rows, keys = shuffled_street()
    blocks = SleepingGeometry(
        rows, keys, block_rows=64, betas=(0.9, 0.999), eps=EPS, ceilings=RATES
    )
    views, renderer = street_views(), make_renderer("cpu", RenderOptions())
    for step in range(5):
        sight = blocks.look(views[step : step + 2], renderer)
        grads = gradients_of(blocks.keys[sight.places], step)
        blocks.update(sight.places, grads, RATES)
    before = [t.clone() for t in (blocks.table, blocks.exp_avg, blocks.exp_avg_sq)]
    marks = blocks.last_step.clone()
    everything = blocks.look([whole_street()], renderer)
    assert len(everything.candidates) == len(blocks.partition)
    for ours, old in zip((blocks.table, blocks.exp_avg, blocks.exp_avg_sq), before):
        assert torch.equal(ours, old)
    assert torch.equal(blocks.last_step, marks)


def test_a_view_of_nothing_lists_no_row() -> None:
    rows, keys = shuffled_street()
    blocks = SleepingGeometry(
        rows, keys, block_rows=64, betas=(0.9, 0.999), eps=EPS, ceilings=RATES
    )
    sight = blocks.look(street_views()[-1:], make_renderer("cpu", RenderOptions()))
    assert len(sight.candidates) == len(sight.places) == 0
