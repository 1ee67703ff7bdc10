# SPDX-License-Identifier: Apache-2.0
"""Seconds of a batch that are forecast from rates: which parts there are, and what hides what."""

import math
from dataclasses import replace

import pytest
from made_up import RATES, alike

from gs_train.engine import residents
from gs_train.options.presets import PRESETS
from gs_train.sizing.forecasts import Speed, predict
from gs_train.sizing.forecasts.split_rows import Streamed
from gs_train.sizing.memory import Room
from gs_train.sizing.workload import BatchRows, Workload

MEAN = BatchRows(
    visible=1.6e6, union=1e6, two=1.4e6, largest=4.5e5, loaded=1.2e6, held=9e5, intersections=4e6
)
WORK = Workload(
    n_rows=20_000_000, sh_degree=3, batch_size=4, width=1920, height=1080, most=MEAN, mean=MEAN
)

RENDER_S = 4 * (1e-3 + 20e6 / 20e9) + 5e-9 * 1.6e6
CULL_AT_ONCE_S = 20e6 / 20e9 + 3 * 20e6 / 100e9
RENDER_AT_ONCE_S = 0.2e-3 + 4 * 0.5e-3 + CULL_AT_ONCE_S + 4e-9 * 1.6e6
RENDER_STREAMED_S = 4 * 0.7e-3 + CULL_AT_ONCE_S + 6e-9 * 1.6e6
GEOMETRY_S = 11 * (24 * 20e6 + 4 * 1e6) / 2e12


def test_none_is_rendering_and_adam_on_the_device_for_the_rows_seen() -> None:
    speed = predict(PRESETS["none"], WORK, RATES)
    assert speed.device_s == pytest.approx(RENDER_AT_ONCE_S + GEOMETRY_S + 48 * 52 * 1e6 / 2e12)
    assert (speed.link_s, speed.host_s, speed.bound) == (0, 0, "device")
    assert speed.images_per_second == pytest.approx(4 / speed.device_s)


def test_naive_moves_everything_one_after_the_other() -> None:
    speed = predict(PRESETS["naive"], WORK, RATES)
    assert speed.device_s == pytest.approx(RENDER_S + 4 * 59 * 20e6 / 2e12)
    assert speed.link_s == pytest.approx(2 * 4 * 59 * 20e6 / 50e9)
    assert speed.host_s == pytest.approx(28 * 59 * 20e6 / 150e9)
    total = speed.device_s + speed.link_s + speed.host_s
    assert speed.images_per_second == pytest.approx(4 / total)


def test_best_updates_rows_on_the_device_and_moves_those_that_are_new() -> None:
    speed = predict(PRESETS["best"], WORK, RATES)
    assert speed.device_s == pytest.approx(RENDER_AT_ONCE_S + GEOMETRY_S + 48 * 52 * 1e6 / 2e12)
    assert speed.host_s == 0
    wanted = 1.4e6 * residents.HEADROOM  # a little more than two batches see
    rarer = 1 - (wanted - 1.4e6) / (20e6 - 1.4e6)
    assert speed.link_s == pytest.approx(12 * 48 * 0.4e6 / 40e9 * rarer)
    assert (speed.bound, speed.images_per_second) == ("device", pytest.approx(4 / speed.device_s))
    slow = predict(PRESETS["best"], WORK, replace(RATES, both=1e9))
    assert (slow.bound, slow.images_per_second) == ("link", pytest.approx(4 / slow.link_s))


def test_more_residents_move_less_and_fewer_come_late() -> None:
    def with_room(n: int) -> Speed:
        return predict(PRESETS["best"], WORK, RATES, Room.of_residents(450_000, n))

    rates = [with_room(n) for n in (1_000_000, 1_200_000, 1_400_000, 10_000_000, 20_000_000)]
    new_s = 12 * 48 * 0.4e6 / 40e9
    assert [speed.link_s for speed in rates[:3]] == pytest.approx([new_s] * 3)
    assert 0 == rates[4].link_s < rates[3].link_s < new_s
    batches = [4 / speed.images_per_second - speed.device_s for speed in rates]
    assert batches == pytest.approx([new_s, new_s / 2, 0, 0, 0], abs=1e-12)


def test_slots_for_a_tile_leave_a_row_to_come_once_a_tile() -> None:
    tiled = replace(WORK, tile_rows=4e6, tile_batches=40)

    def link_s(work: Workload, n: int) -> float:
        return predict(PRESETS["best"], work, RATES, Room.of_residents(450_000, n)).link_s

    row_s = 12 * 48 / 40e9
    assert link_s(tiled, 1_400_000) == pytest.approx(row_s * 0.4e6) == link_s(WORK, 1_400_000)
    assert link_s(tiled, 4_000_000) == pytest.approx(row_s * 4e6 / 40)
    assert link_s(tiled, 4_000_000) < link_s(WORK, 4_000_000)
    assert link_s(tiled, 2_700_000) == pytest.approx(row_s * (0.4e6 + 0.1e6) / 2)
    assert link_s(tiled, 20_000_000) == 0
    # A tile may be smaller than two batches of its own and the next one.
    assert link_s(replace(tiled, tile_rows=1.3e6), 4_000_000) == link_s(WORK, 4_000_000)


def test_a_batch_that_the_host_updates_takes_its_longest_part_and_its_ends() -> None:
    room = Streamed(PRESETS["best"]).wanted(WORK)
    speed = predict(PRESETS["best"], WORK, RATES, room)
    assert speed.device_s == pytest.approx(RENDER_STREAMED_S + GEOMETRY_S)
    assert speed.link_s == pytest.approx(4 * 48 * 1e6 / 40e9)
    assert speed.host_s == pytest.approx(48 * 1e6 * (44 / 100e9 + 8 / 150e9))
    assert speed.bound == "host"
    batch_s = speed.host_s + (speed.device_s + speed.link_s) / 4
    assert speed.images_per_second == pytest.approx(4 / batch_s)
    fast = predict(PRESETS["best"], WORK, replace(RATES, host_rows=1e13, host_adam=1e13), room)
    assert fast.bound == "device"
    slow = predict(PRESETS["best"], WORK, replace(RATES, gather=1e9), room)
    assert slow.bound == "link"
    assert slow.link_s == pytest.approx(192e6 / 1e9)


def test_views_that_are_cut_are_launched_part_by_part() -> None:
    mean = WORK.mean.visible / WORK.batch_size
    whole = Streamed(PRESETS["best"]).wanted(WORK)

    def with_rows(rows: float) -> Speed:
        return predict(PRESETS["best"], WORK, RATES, replace(whole, rows=round(rows)))

    view_s = WORK.batch_size * RATES.streamed_view_s
    assert with_rows(mean).device_s == pytest.approx(with_rows(2 * mean).device_s)
    assert with_rows(0.6 * mean).device_s == pytest.approx(with_rows(mean).device_s + view_s)
    assert with_rows(0.4 * mean).device_s == pytest.approx(with_rows(mean).device_s + 2 * view_s)
    unseen = alike(WORK, replace(WORK.mean, visible=0, union=0, largest=0))
    assert math.isfinite(predict(PRESETS["best"], unseen, RATES, Room(0, 0)).device_s)


def test_clm_updates_all_rows_and_moves_what_neighbours_do_not_share() -> None:
    speed = predict(PRESETS["clm"], WORK, RATES)
    assert speed.link_s == pytest.approx(4 * 48 * 1.2e6 / 40e9)
    assert speed.host_s == pytest.approx(
        48 * (19e6 * 24 / 150e9 + 1e6 * 28 / 100e9 + 1.2e6 * 8 / 150e9)
    )
