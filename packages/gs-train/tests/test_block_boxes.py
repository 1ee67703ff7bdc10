# SPDX-License-Identifier: Apache-2.0
"""Boxes of blocks: what they hold, what widens them, and rows that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rounded import float32_above

from gs_train.blocks.boxes import BlockBoxes, Moving, SleepingValues
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.renderers.culling import cameras_of, cull

BETAS, EPS = (0.9, 0.999), 1e-15


def view_ahead() -> View:
    """From the origin along z, 45 degrees to each side."""
    K = torch.tensor([[32.0, 0.0, 32.0], [0.0, 32.0, 32.0], [0.0, 0.0, 1.0]])
    return View("ahead", torch.eye(4), K, 64, 64)


class Rows:
    """Some rows of blocks of one row, with unit moments of the second kind."""

    def __init__(self, means: list[list[float]], *, rate: float = 0.01) -> None:
        n = len(means)
        self.means = torch.tensor(means)
        self.scales = torch.full((n, 3), -3.0)
        self.pushes = torch.zeros(2, n, 3)  # first moments of means and scales
        self.rates = [SleepReach(BETAS, EPS, rate) for _ in range(2)]
        self.last_step = torch.zeros(n, dtype=torch.int32)

    def boxes(self, until: int | None = None) -> BlockBoxes:
        n = len(self.means)
        boxes = BlockBoxes(n)
        ones = torch.ones(n, 3)
        means = SleepingValues(self.means, self.pushes[0], ones, self.last_step, self.rates[0])
        scales = SleepingValues(self.scales, self.pushes[1], ones, self.last_step, self.rates[1])
        boxes.fit(np.arange(n), np.ones(n, np.int64), means=means, scales=scales, until=until)
        return boxes

    def seen(self, boxes: BlockBoxes) -> list[int]:
        found = boxes.candidates([view_ahead()], RenderOptions(), *self.rates)
        return [int(block) for block in found.ids]


def test_blocks_without_rows_are_never_seen() -> None:
    rows = Rows([[0.0, 0.0, 5.0]])
    assert rows.seen(BlockBoxes(3)) == []
    assert rows.seen(rows.boxes()) == [0]


def test_a_crop_lists_the_blocks_of_its_own_pixels() -> None:
    rows = Rows([[-3.0, 0.0, 5.0], [0.0, 0.0, 5.0], [3.0, 0.0, 5.0]])
    left = np.array([[0, 0, 20, 64]])
    found = rows.boxes().candidates([view_ahead()], RenderOptions(), *rows.rates, rects=left)
    assert found.ids.tolist() == [0]


def test_a_box_reaches_from_the_stored_value_to_the_destination() -> None:
    rows = Rows([[1.0, 2.0, 5.0]])
    rows.pushes[0] = torch.tensor([1.0, -1.0, 0.0])
    boxes = rows.boxes()
    far = rows.rates[0].correction_sums(np.zeros(1, np.int64))[0] * 0.01
    assert boxes.upper[0].tolist()[0] == 1.0
    assert boxes.lower[0].tolist()[1] == 2.0
    assert boxes.lower[0, 2] == boxes.upper[0, 2] == 5.0
    assert boxes.lower[0, 0] == pytest.approx(1.0 - far, abs=1e-4)
    assert boxes.upper[0, 1] == pytest.approx(2.0 + far, abs=1e-4)


def test_scales_that_grow_asleep_make_a_block_seen() -> None:
    rows = Rows([[20.0, 0.0, 5.0]], rate=5.0)
    assert rows.seen(rows.boxes()) == []
    rows.pushes[1] = -1.0
    assert rows.seen(rows.boxes()) == [0]
    rows.pushes[1] = 1.0
    assert rows.seen(rows.boxes()) == []


def test_a_fit_for_some_steps_is_smaller() -> None:
    rows = Rows([[0.0, 0.0, -1.0]], rate=0.1)  # behind the camera, on the way to the front
    rows.pushes[0, 0, 2] = -10.0
    assert rows.seen(rows.boxes(until=2)) == []
    assert rows.seen(rows.boxes()) == [0]


def test_rates_above_the_ceiling_of_the_fit_widen_the_box() -> None:
    rows = Rows([[0.0, 0.0, -1.0]], rate=1e-3)
    rows.pushes[0, 0, 2] = -10.0
    boxes = rows.boxes()
    assert rows.seen(boxes) == []
    rows.rates[0].set_ceiling(1.0)
    assert rows.seen(boxes) == [0]
    # Also once such a step is over.
    rows.rates[0].record_step(1.0)
    rows.rates[0].set_ceiling(1e-3)
    assert rows.seen(boxes) == [0]


def last_places_seen(view: View, n: int, draw: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Means on the border of what a view sees, found by halving, and their log scales."""
    renderer = make_renderer("cpu", RenderOptions())
    scales = torch.from_numpy(draw.uniform(-7, -1, (n, 3)).astype(np.float32))
    to_world = view.viewmat.double().inverse()[:3]
    inside = to_world @ torch.tensor([0.0, 0.0, 3.0, 1.0]).double()
    # To all sides, and through the near plane, where the test of a block is the test of a row.
    away = torch.from_numpy(draw.normal(size=(n, 3))) * 20.0
    away[::2] = to_world[:, :3] @ torch.tensor([0.0, 0.0, -6.0]).double()
    near, far = torch.zeros(n, 1).double(), torch.ones(n, 1).double()
    for _ in range(60):
        middle = (near + far) / 2
        rows = {
            "means": (inside + middle * away).float(),
            "scales": scales,
            "quats": torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(n, 1),
            "opacities": torch.full((n,), 9.0),
        }
        seen = torch.zeros(n, 1, dtype=torch.bool)
        seen[cull(rows, cameras_of([view]), renderer).ids.long()] = True
        near, far = torch.where(seen, middle, near), torch.where(seen, far, middle)
    return (inside + near * away).float().numpy(), scales.numpy()


@pytest.mark.parametrize("distance", [0.0, 1e3, 1e6])
def test_the_last_place_that_a_view_sees_is_listed_with_and_without_slack(distance: float) -> None:
    draw, n = np.random.default_rng(0), 300
    turned = np.linalg.qr(draw.normal(size=(3, 3)))[0]
    pose = torch.eye(4)
    pose[:3, :3] = torch.from_numpy(turned * np.sign(np.linalg.det(turned)))
    pose[:3, 3] = torch.from_numpy(draw.normal(size=3) * distance)
    view = View("turned", pose, view_ahead().K, 64, 64)
    means, scales = last_places_seen(view, n, draw)
    boxes, reach = BlockBoxes(n), SleepReach(BETAS, EPS, 1.0)
    boxes.scale[:], boxes.ceilings[:] = np.exp(scales.astype(np.float64)).max(1), 1.0
    boxes.lower[:] = boxes.upper[:] = means
    found = boxes.candidates([view], RenderOptions(), reach, reach)
    assert len(found.ids) == n
    # Fitted elsewhere: a rate twice as high brings every row to its last place.
    moved = np.abs(means) * draw.uniform(0, 1e-3, (n, 1)) + 1e-3
    fitted = (means + moved * draw.choice([-1, 1], (n, 3))).astype(np.float32)
    boxes.lower[:] = boxes.upper[:] = fitted
    apart = np.abs(fitted.astype(np.float64) - means).max(1)
    boxes.longest[:, 0] = float32_above(torch.from_numpy(apart)).numpy()
    reach.set_ceiling(2.0)
    found = boxes.candidates([view], RenderOptions(), reach, reach)
    assert len(found.ids) == n


@pytest.mark.parametrize("factor", [1.001, 3.0, 100.0])
def test_slack_is_what_a_fit_at_the_higher_ceiling_would_add(factor: float) -> None:
    draw = np.random.default_rng(0)
    rows = Rows([[0.0, 0.0, 5.0]] * 50)
    rows.pushes[:] = torch.from_numpy(draw.normal(size=(2, 50, 3)))
    before = rows.boxes()
    for reach in rows.rates:
        reach.set_ceiling(factor * reach.ceiling)
    slack, after = before.slack(*rows.rates), rows.boxes()
    added = np.maximum(before.lower - after.lower, after.upper - before.upper).max(1)
    last_bits = 1e-6  # of ends and scales, which are rounded to float32
    assert (added <= slack[:, 0] + last_bits).all()
    assert (slack[:, 0] <= 1.05 * added + last_bits).all()
    added = np.log(after.scale) - np.log(before.scale)
    assert (added <= slack[:, 1] + last_bits).all()
    assert (slack[:, 1] <= 1.05 * added + last_bits).all()
    assert (slack[:, 1] > 0.0).any()


def test_a_box_fitted_without_any_rate_is_everywhere_once_there_is_one() -> None:
    rows = Rows([[0.0, 0.0, -100.0], [0.0, 0.0, -100.0]], rate=0.0)
    rows.pushes[0, 0] = 1.0
    boxes = rows.boxes()
    assert rows.seen(boxes) == []
    rows.rates[0].set_ceiling(1e-9)
    assert 0 in rows.seen(boxes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_have_no_part_in_the_box(value: float) -> None:
    rows = Rows([[value, 0.0, 5.0], [0.0, 0.0, 5.0]])
    boxes = rows.boxes()
    assert rows.seen(boxes) == [1]
    assert not np.isnan(boxes.lower).any()


def test_a_scale_that_overflows_now_may_come_back() -> None:
    rows = Rows([[0.0, 0.0, -50.0], [0.0, 0.0, -50.0], [0.0, 0.0, 5.0]])
    rows.scales[0] = 89.0  # exp leaves float32
    rows.scales[1] = np.inf  # stays so
    rows.scales[2] = -np.inf  # a point
    boxes = rows.boxes()
    assert np.isfinite(boxes.scale).all()
    assert rows.seen(boxes) == [0, 2]


def test_a_destination_beyond_float32_makes_a_block_a_candidate_of_every_view() -> None:
    for axis in range(3):
        rows = Rows([[0.0, 0.0, -50.0]], rate=10.0)
        rows.pushes[0, 0, axis] = 3e38
        boxes = rows.boxes()
        assert np.isinf(boxes.lower[0, axis])
        assert rows.seen(boxes) == [0]
    rows = Rows([[0.0, 0.0, -50.0]])
    rows.pushes[0, 0, 1] = np.nan
    assert rows.seen(rows.boxes()) == [0]


def test_a_block_holds_the_intervals_of_all_its_rows_and_of_no_others() -> None:
    rows = Rows([[0.0, 0.0, 5.0], [1.0, 0.0, 7.0], [0.0, 0.0, -50.0]])
    rows.scales[1] = 1.0
    ones, zero = torch.ones(3, 3), torch.zeros(3, 3)
    parts = [
        SleepingValues(values, zero, ones, rows.last_step, reach)
        for values, reach in zip((rows.means, rows.scales), rows.rates)
    ]
    boxes = BlockBoxes(5)
    boxes.fit(np.array([3, 0, 1]), np.array([2, 0, 1]), means=parts[0], scales=parts[1])
    assert rows.seen(boxes) == [3]
    assert boxes.lower[3].tolist() == [0.0, 0.0, 5.0]
    assert boxes.upper[3].tolist() == [1.0, 0.0, 7.0]
    assert boxes.scale[3] == pytest.approx(np.e, rel=1e-5)
    assert boxes.lower[1].tolist() == boxes.upper[1].tolist() == [0.0, 0.0, -50.0]
    assert (boxes.lower[[0, 2, 4]] == np.inf).all()


def test_boxes_of_rows_that_have_taken_no_step_are_those_of_zero_moments() -> None:
    draw = np.random.default_rng(0)
    counts = np.array([7, 0, 1, 30, 2])
    n = int(counts.sum())
    means, scales = (torch.from_numpy(draw.normal(size=(n, 3)).astype(np.float32)) for _ in "ab")
    means[3, 1], means[10, 0], scales[12, 2] = torch.inf, torch.nan, torch.nan
    means[20], scales[21, 0], scales[22] = -0.0, torch.inf, -torch.inf
    means[-2:, 0] = torch.nan  # a block without a row that shows
    reaches = {name: SleepReach((0.9, 0.999), 1e-15, 0.1, [0.01]) for name in ("means", "scales")}
    zeros, never = torch.zeros(n, 3), torch.zeros(n, dtype=torch.int32)
    wanted, got = BlockBoxes(9), BlockBoxes(9)
    blocks = np.array([8, 1, 4, 0, 6])
    parts = {
        name: SleepingValues(values, zeros, zeros, never, reaches[name])
        for name, values in (("means", means), ("scales", scales))
    }
    wanted.fit(blocks, counts, **parts)
    got.fit_still(blocks, counts, means=means.numpy(), scales=scales.numpy(), reaches=reaches)
    for name, array in wanted.state().items():
        np.testing.assert_array_equal(got.state()[name], array, err_msg=name)


def test_counts_must_be_of_the_rows_given() -> None:
    rows = Rows([[0.0, 0.0, 5.0]])
    ones = torch.ones(1, 3)
    part = SleepingValues(ones, ones, ones, rows.last_step, rows.rates[0])
    with pytest.raises(ValueError, match="means must have 2 rows as counts say, got 1"):
        BlockBoxes(1).fit(np.zeros(1, np.int64), np.array([2]), means=part, scales=part)


def test_slack_of_very_many_blocks_is_that_of_each() -> None:
    n, draw = 70_000, np.random.default_rng(0)
    reaches = [SleepReach((0.9, 0.999), 1e-15, 0.1) for _ in range(2)]
    for step in range(6):
        for reach in reaches:
            reach.set_ceiling(0.1 * (1 + step % 3))
            reach.record_step(0.05)
    every = BlockBoxes(n)
    every.longest[:] = draw.random((n, 2))
    every.ceilings[:] = draw.choice([0, 0.05, 0.2, np.inf], (n, 2))
    every.fit_step[:] = draw.integers(0, 6, n)
    moved = np.unique(draw.integers(0, n, n // 3))
    together = every.slack(*reaches, Moving(moved, (0.01, 0.02)))
    for start in range(0, n, 9_999):
        some = BlockBoxes(len(every.longest[start : start + 9_999]))
        for name in ("longest", "ceilings", "fit_step"):
            getattr(some, name)[:] = getattr(every, name)[start : start + 9_999]
        own = moved[(moved >= start) & (moved < start + len(some))] - start
        expected = some.slack(*reaches, Moving(own, (0.01, 0.02)))
        assert np.array_equal(together[start : start + 9_999], expected)
