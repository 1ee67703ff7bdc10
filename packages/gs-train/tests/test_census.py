# SPDX-License-Identifier: Apache-2.0
"""The census: what views see of a scene, counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from cloud import cloud_rows, seen_by, views_along
from made_up import WORK

import gs_order
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.sizing.census import measure_workload
from gs_train.sizing.fitting import fit_into, limits_within
from gs_train.sizing.memory import Caps
from gs_train.sizing.workload import BatchRows

PLENTY = Caps(10**15, 10**15)


def test_a_close_up_of_few_rows_may_have_the_most_intersections() -> None:
    rows = cloud_rows(2000)
    far = View("far", torch.eye(4), views_along(1)[0].K, 96, 64)
    rows["means"][:400] += torch.tensor([40.0, 0.0, 0.0])
    rows["scales"][:400] = -1.0
    aside = torch.eye(4)
    aside[0, 3], aside[2, 3] = -40.0, -4.0
    close = View("close", aside, far.K, 96, 64)

    def measured(views: list[View]) -> BatchRows:
        return measure_workload(
            rows, views, CpuRenderer(), n_rows=2000, sh_degree=3, batch_size=len(views), n_batches=1
        ).most

    alone = measured([close])
    assert alone.largest < measured([far]).largest / 2
    assert alone.intersections > measured([far]).intersections
    assert measured([far, close]).intersections == alone.intersections


def test_a_workload_is_what_culling_finds() -> None:
    rows, views = cloud_rows(4000), views_along(6)
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=4000, sh_degree=3, batch_size=6, n_batches=1
    )
    seen = [set(seen_by(rows, [view])) for view in views]
    assert len({len(ids) for ids in seen}) > 1
    assert work.most.visible == sum(len(ids) for ids in seen)
    assert work.most.union == len(set().union(*seen))
    assert work.most.largest == max(len(ids) for ids in seen)
    assert work.most.union <= work.most.loaded <= work.most.visible
    assert work.most.largest <= work.most.held <= work.most.union


def test_two_batches_in_a_row_see_what_either_does() -> None:
    rows, views = cloud_rows(4000), views_along(6)
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=8000, sh_degree=3, batch_size=2, n_batches=2
    )
    rows["scales"] = rows["scales"] - 0.5 * np.log(2.0)
    sampler = gs_order.ViewSampler(6, 2, seed=0)
    a, b, c = (set(seen_by(rows, [views[k] for k in sampler.batch(step)])) for step in range(3))
    assert len({len(a), len(a | b), len(b | c)}) == 3
    assert work.most.two == 2 * max(len(a | b), len(b | c))
    assert work.mean.two == len(a | b) + len(b | c)


def test_batches_of_tiles_are_looked_at_all_over_an_epoch_and_where_two_meet() -> None:
    rows, views = cloud_rows(4000), views_along(40)
    centres = np.stack([view.viewmat.numpy() for view in views])
    sampler = gs_order.ViewSampler(batch_size=3, seed=3, order="tiles", cameras=centres)
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=8000, sh_degree=3, batch_size=3, sampler=sampler
    )
    rows["scales"] = rows["scales"] - 0.5 * np.log(2.0)

    def seen(*batches: np.ndarray) -> int:
        return len(set(seen_by(rows, [views[k] for k in np.concatenate(batches)])))

    batches = {step: sampler.batch(step) for step in range(15)}
    tiles = sampler.tiles(0)
    ends = np.cumsum([len(tile) for tile in tiles])
    spread, border = [1, 4, 8, 11], [12, 13]  # of 13 batches in an epoch and a third of one
    assert len({int(np.searchsorted(ends, 3 * step, side="right")) for step in spread}) > 2
    unions = {step: seen(batches[step]) for step in [*spread, *border]}
    twos = {step: seen(batches[step], batches[step + 1]) for step in [*spread, *border]}
    assert work.mean.union == 2 * np.mean([unions[step] for step in spread])
    assert work.mean.two == 2 * np.mean([twos[step] for step in spread])
    assert work.most.union == 2 * max(unions.values())
    assert work.most.two == 2 * max(twos.values())
    assert max(unions[step] for step in spread) < max(unions[step] for step in border)
    largest = sorted(tiles, key=len)[-2:]
    assert work.tile_rows == 2 * np.mean([seen(tile) for tile in largest])
    assert work.tile_batches == len(largest[-1]) / 3
    assert work.with_rows(80_000).tile_rows == 10 * work.tile_rows
    shuffled = measure_workload(
        rows, views, CpuRenderer(), n_rows=4000, sh_degree=3, batch_size=3, n_batches=8
    )
    assert work.mean.union < 2 * shuffled.mean.union
    assert (shuffled.tile_rows, shuffled.tile_batches) == (0, 0)


def test_one_tile_of_all_views_is_counted_as_shuffled() -> None:
    rows, views = cloud_rows(1000), views_along(5)
    centres = np.stack([view.viewmat.numpy() for view in views])
    sampler = gs_order.ViewSampler(batch_size=2, order="tiles", cameras=centres)
    options = {"n_rows": 1000, "sh_degree": 3, "batch_size": 2}
    one = measure_workload(rows, views, CpuRenderer(), sampler=sampler, **options)
    assert (one.tile_rows, one.tile_batches) == (0, 0)


def test_intersections_are_the_tiles_that_the_rasterizer_lists() -> None:
    rows, (view,) = cloud_rows(500), views_along(1)
    work = measure_workload(rows, [view], CpuRenderer(), n_rows=500, sh_degree=3, batch_size=1)
    splats = CpuRenderer().project(rows, view, sh_degree=3)
    expected = 0
    for (x, y), (rx, ry) in zip(splats.means2d.tolist(), splats.radii.tolist()):
        if rx <= 0 or ry <= 0:
            continue
        for tile_y in range(64 // 16):
            for tile_x in range(96 // 16):
                across = 16 * tile_x < x + rx and 16 * (tile_x + 1) > x - rx
                expected += across and 16 * tile_y < y + ry and 16 * (tile_y + 1) > y - ry
    assert work.most.intersections == expected > work.most.largest


def test_more_gaussians_are_smaller_ones_on_the_same_surfaces() -> None:
    rows, views = cloud_rows(2000), views_along(4)
    options = {"sh_degree": 3, "batch_size": 2, "n_batches": 2}
    now = measure_workload(rows, views, CpuRenderer(), n_rows=2000, **options)
    later = measure_workload(rows, views, CpuRenderer(), n_rows=50_000, **options)
    shrunk = {**rows, "scales": rows["scales"] - np.log(5.0)}
    same = measure_workload(shrunk, views, CpuRenderer(), n_rows=2000, **options)
    assert later.mean.visible == pytest.approx(25 * same.mean.visible)
    assert later.mean.visible < 25 * now.mean.visible
    assert later.mean.intersections < 25 * now.mean.intersections


def test_gaussians_of_a_denser_cloud_touch_fewer_tiles_each() -> None:
    rows, views = cloud_rows(2000), views_along(4)
    options = {"sh_degree": 3, "batch_size": 2, "n_batches": 2}
    now, later = (
        measure_workload(rows, views, CpuRenderer(), n_rows=n, **options).most
        for n in (2000, 50_000)
    )
    denser = now.refined(25.0)
    assert later.intersections < denser.intersections < 1.1 * later.intersections
    assert 1.4 * denser.intersections < now.scaled(25.0).intersections
    assert (denser.largest, denser.visible) == (25 * now.largest, 25 * now.visible)
    assert denser.refined(1 / 25).intersections == pytest.approx(now.intersections)


def test_a_row_shrinks_to_a_point_and_no_further() -> None:
    """Rows of 5 x 5 tiles, 4 tiles wide. A point is blurred to a quarter of a tile."""
    most = BatchRows(largest=64.0, intersections=64.0 * 25)

    def tiles(factor: float) -> float:
        finer = most.refined(factor)
        assert finer.largest == 64.0 * factor
        return finer.intersections / finer.largest

    assert tiles(1.0) == pytest.approx(25.0)
    assert tiles(4.0) == pytest.approx(9.0, rel=0.03)
    assert tiles(0.25) == pytest.approx(81.0, rel=0.01)
    assert tiles(1e9) == pytest.approx(1.25**2)
    points = BatchRows(largest=64.0, intersections=70.0)
    assert points.refined(9.0).intersections == pytest.approx(630.0)


def test_of_a_cloud_a_view_that_sees_less_of_it_sees_rows_as_small() -> None:
    """The same rows in a view, whether there are more of them elsewhere or not."""
    seen = BatchRows(visible=2000.0, largest=1000.0, intersections=9000.0)
    work = replace(WORK, most=seen, mean=seen, batch_size=2, n_rows=5000)
    larger = work.of_cloud(50_000_000, 1000.0)
    assert larger.mean.visible == pytest.approx(2000.0)
    assert larger.most.intersections == pytest.approx(9000.0)
    assert work.of_cloud(50_000_000).most.intersections > 1000 * 9000.0
    grown = work.with_rows(50_000_000).seeing(1000.0)
    assert grown.most.intersections == pytest.approx(9000.0)
    with pytest.raises(ValueError, match="n_rows must be at least 1, got 0"):
        work.of_cloud(0)


def test_views_that_see_nothing_are_counted_as_such() -> None:
    rows, views = cloud_rows(100), views_along(3)
    rows["means"][:, 2] = -5.0
    work = measure_workload(rows, views, CpuRenderer(), n_rows=100, sh_degree=3, batch_size=2)
    assert work.most == BatchRows(0, 0, 0, 0, 0, 0, 0)
    for preset in PRESETS.values():
        room = fit_into(preset, work, PLENTY)
        assert room is not None
        assert limits_within(preset, work, PLENTY, room) == Limits()


def test_a_batch_may_be_larger_than_the_capture() -> None:
    work = measure_workload(
        cloud_rows(500), views_along(3), CpuRenderer(), n_rows=500, sh_degree=3, batch_size=40
    )
    assert work.most.visible > 10 * work.most.union


def test_a_workload_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="there must be rows and views, got 5 and 0"):
        measure_workload(cloud_rows(5), [], CpuRenderer(), n_rows=5, sh_degree=3, batch_size=1)
    with pytest.raises(ValueError, match="sh_degree must be 0 to 3, got 4"):
        replace(WORK, sh_degree=4)


def test_rows_that_any_view_sees_are_counted_and_the_batches_that_see_them() -> None:
    rows, views = cloud_rows(4000), views_along(6)
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=4000, sh_degree=3, batch_size=4, n_batches=1
    )
    assert work.epoch_rows == len(set(seen_by(rows, views)))
    assert work.epoch_batches == 1.5
    larger = work.with_rows(40_000).seeing(100.0)
    assert larger.mean.visible == pytest.approx(400.0)
    assert larger.mean.union / work.mean.union == pytest.approx(400.0 / work.mean.visible)
    assert larger.epoch_rows == 10 * work.epoch_rows
    # As many views more as see all of it as often.
    often = [each.epoch_batches * each.mean.visible / each.epoch_rows for each in (work, larger)]
    assert often[0] == pytest.approx(often[1])
