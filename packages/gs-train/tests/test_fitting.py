# SPDX-License-Identifier: Apache-2.0
"""The room that a preset gets, and what fits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import GIB, SEEN, WORK, alike

from gs_train.options.config import FitConfig
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS, Preset
from gs_train.rows import morton
from gs_train.sizing.choice import choose
from gs_train.sizing.fitting import fit_into, largest_n
from gs_train.sizing.forecasts import forecast_of, need, room_under
from gs_train.sizing.forecasts.split_rows import Streamed
from gs_train.sizing.memory import Caps, Room
from gs_train.sizing.workload import Workload

SPLIT = [preset for preset in PRESETS.values() if preset.placement == "split"]
PLENTY = Caps(10**15, 10**15)


def _room(preset: Preset, work: Workload, device_bytes: int, *, given: bool = False) -> Room | None:
    """Where the device is short, and the host is not."""
    return fit_into(preset, work, Caps(device_bytes, 10**15, is_given=given))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_the_largest_n_fits_and_one_more_does_not(preset) -> None:
    caps = Caps(8 * GIB, 64 * GIB)

    def fits(work: Workload) -> bool:
        return fit_into(preset, work, caps) is not None

    most = largest_n(preset, WORK, caps)
    assert most > 1_000_000
    assert fits(WORK.with_rows(most))
    assert not fits(WORK.with_rows(most + 1))


def test_where_not_one_row_fits_the_largest_n_is_zero() -> None:
    assert largest_n(PRESETS["none"], WORK, Caps(0, 0)) == 0


def test_offloading_trains_more_rows_and_best_most() -> None:
    caps = Caps(24 * GIB, 1024 * GIB)
    most = {name: largest_n(preset, WORK, caps) for name, preset in PRESETS.items()}
    assert most["none"] < most["naive"] < most["clm"]
    assert most["best"] > 4 * most["none"]


@pytest.fixture
def _unsorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-ordering rows needs nothing, so that memory is a matter of batches."""
    monkeypatch.setattr(morton, "sort_bytes", lambda _: 0)


@pytest.mark.usefixtures("_unsorted")
@pytest.mark.parametrize("preset", SPLIT, ids=lambda preset: preset.name)
def test_a_smaller_cap_cuts_views_and_keeps_fewer_rows(preset) -> None:
    preset = replace(preset, residents=False)
    wanted, least = forecast_of(preset).wanted(WORK), Streamed(preset).least(WORK)
    full = need(preset, WORK, wanted).device_bytes
    assert _room(preset, WORK, full) == wanted
    tight = need(preset, WORK, least).device_bytes
    assert _room(preset, WORK, tight - 1) is None
    before = wanted
    for cap in np.linspace(full - 1, tight, 7).astype(int).tolist():
        room = _room(preset, WORK, cap)
        assert room is not None
        assert need(preset, WORK, room).device_bytes <= cap
        assert (room.rows, room.slots) <= (before.rows, before.slots)
        before = room
    assert before.rows < wanted.rows


@pytest.mark.usefixtures("_unsorted")
def test_residents_become_fewer_then_views_are_cut_then_the_host_updates() -> None:
    best = PRESETS["best"]
    # So few pixels that rendering is a matter of rows.
    work = replace(WORK, width=64, height=64, n_rows=1_000_000)
    wanted = forecast_of(best).wanted(work)
    of_a_batch = Room.of_residents(wanted.rows, math.ceil(work.most.union))
    least = Room.of_residents(math.ceil(wanted.rows / 16), of_a_batch.residents)
    by_host = Streamed(best).least(work)
    sizes = [need(best, work, room).device_bytes for room in (wanted, of_a_batch, least, by_host)]
    assert sizes == sorted(sizes, reverse=True)
    assert _room(best, work, sizes[0]) == wanted
    fewer = _room(best, work, sizes[0] - 1)
    assert fewer is not None
    # With room for views that see a little more than was counted.
    spare = math.ceil(1.03 * wanted.rows)
    bounds = [
        need(best, work, Room.of_residents(spare, fewer.residents + more)).device_bytes
        for more in (0, 1)
    ]
    assert fewer.rows == wanted.rows
    assert bounds[0] < sizes[0] <= bounds[1]
    assert _room(best, work, sizes[1]) == of_a_batch
    cut = _room(best, work, sizes[1] - 1)
    assert cut is not None
    assert least.rows < cut.rows < wanted.rows
    assert cut.residents >= of_a_batch.residents
    smallest = _room(best, work, sizes[2])
    assert smallest is not None
    assert smallest.residents == least.residents
    streamed = _room(best, work, sizes[2] - 1)
    assert streamed is not None
    assert streamed.residents == 0
    assert _room(best, work, sizes[3]) == by_host
    assert _room(best, work, sizes[3] - 1) is None


def test_residents_take_what_is_left_of_a_cap_that_was_given_and_of_no_other() -> None:
    best = PRESETS["best"]
    wanted = forecast_of(best).wanted(WORK)
    cap = 2 * need(best, WORK, wanted).device_bytes
    assert _room(best, WORK, cap) == wanted
    room = _room(best, WORK, cap, given=True)
    assert room is not None
    assert room.rows == wanted.rows
    of = need(best, WORK, room).device_bytes
    one_more = need(best, WORK, Room.of_residents(room.rows, room.residents + 1)).device_bytes
    assert of <= 0.9 * cap < one_more
    everything = _room(best, WORK, 10**15, given=True)
    assert everything is not None
    assert everything.residents == WORK.n_rows
    nearly = need(best, WORK, wanted).device_bytes
    assert _room(best, WORK, nearly, given=True) == wanted


def test_residents_leave_room_for_rows_that_densification_may_add() -> None:
    best = PRESETS["best"]

    def needed(n_rows: int, room: Room) -> int:
        rows = math.ceil(room.rows * n_rows / WORK.n_rows)
        work = WORK.with_rows(n_rows)
        return need(best, work, Room.of_residents(rows, room.residents)).device_bytes

    def room_of(cap: int, grows_to: int) -> Room:
        room = fit_into(best, WORK, Caps(cap, 10**15, is_given=True), grows_to=grows_to)
        assert room is not None
        return room

    plenty = 10 * needed(
        3 * WORK.n_rows, Room.of_residents(forecast_of(best).wanted(WORK).rows, WORK.n_rows)
    )
    assert room_of(plenty, 3 * WORK.n_rows).residents == 3 * WORK.n_rows
    # Rows enough for a third of what may come: some more are kept, and all that comes still fits.
    wanted = forecast_of(best).wanted(WORK)
    cap = int(1.3 * needed(3 * WORK.n_rows, wanted))
    tight = room_of(cap, 3 * WORK.n_rows)
    assert wanted.residents < tight.residents < 3 * WORK.n_rows
    assert needed(3 * WORK.n_rows, tight) <= cap
    # Not even these rows fit: as many as fit beside those that there are.
    small = int(1.2 * needed(WORK.n_rows, wanted))
    assert small < needed(30 * WORK.n_rows, wanted)
    assert room_of(small, 30 * WORK.n_rows) == room_of(small, WORK.n_rows)


def test_a_run_under_limits_takes_the_room_that_they_come_from() -> None:
    best, clm = PRESETS["best"], PRESETS["clm"]
    assert room_under(best, WORK, Limits()) == forecast_of(best).wanted(WORK)
    assert room_under(best, WORK, Limits(residents=0)) == Streamed(best).wanted(WORK)
    limits = Limits(rows=9000, slots=20_000, residents=0)
    assert room_under(best, WORK, limits) == Room(9000, 20_000)
    assert room_under(best, WORK, Limits(residents=500_000)).residents == 500_000
    assert room_under(best, WORK, Limits(residents=10**9)).residents == WORK.n_rows
    assert room_under(clm, WORK, Limits(slots=10**9)) == forecast_of(clm).wanted(WORK)


@pytest.mark.usefixtures("_unsorted")
def test_rows_that_wait_give_way_before_views_are_cut() -> None:
    best = replace(PRESETS["best"], residents=False)
    work = alike(WORK, replace(SEEN, held=4e6, union=4e6))
    enough_for_two_views = need(best, work, Room(250_000, 500_000)).device_bytes
    room = _room(best, work, enough_for_two_views)
    assert room is not None
    assert room.rows == 250_000
    assert 500_000 <= room.slots < 500_010


def test_rows_of_two_batches_may_reside_and_no_more_than_there_are() -> None:
    best = forecast_of(PRESETS["best"])
    room = best.wanted(WORK)
    assert room.rows == SEEN.largest
    assert SEEN.two <= room.residents < 1.1 * SEEN.two
    assert best.wanted(replace(WORK, n_rows=500_000)).residents == 500_000


def test_what_is_all_on_the_device_cuts_no_view() -> None:
    none = PRESETS["none"]
    full = need(none, WORK).device_bytes
    assert _room(none, WORK, full) == forecast_of(none).wanted(WORK)
    assert _room(none, WORK, full - 1) is None
    assert _room(none, WORK, 2 * full, given=True) == forecast_of(none).wanted(WORK)
    assert forecast_of(none).wanted(WORK).residents == 0  # all rows are, whatever a batch sees


def test_gs_scale_cuts_views_above_its_share() -> None:
    work = alike(WORK, replace(SEEN, largest=0.5 * WORK.n_rows, held=0.5 * WORK.n_rows))
    assert forecast_of(PRESETS["gs-scale"]).wanted(work).rows == 0.3 * WORK.n_rows
    assert forecast_of(PRESETS["best"]).wanted(work).rows == 0.5 * WORK.n_rows


@pytest.mark.parametrize(("share", "rows"), [(0.05, 0.05), (0.4, 0.4), (1.0, 0.5)])
def test_what_is_planned_for_is_the_share_of_the_options(share: float, rows: float) -> None:
    work = alike(WORK, replace(SEEN, largest=0.5 * WORK.n_rows, held=0.5 * WORK.n_rows))
    config = FitConfig(Path("a"), Path("b"), offload="gs-scale", mem_limit=share)
    preset = choose(config, work, PLENTY).preset
    assert forecast_of(preset).wanted(work).rows == rows * WORK.n_rows


def test_a_device_that_is_the_host_needs_room_for_both() -> None:
    of = need(PRESETS["best"], WORK)
    both = of.device_bytes + of.host_bytes
    assert Caps(of.device_bytes, both, shared=True).hold(of)
    assert not Caps(of.device_bytes, both - 1, shared=True).hold(of)
    assert Caps(of.device_bytes, of.host_bytes).hold(of)
    assert not Caps(of.device_bytes - 1, of.host_bytes).hold(of)


@pytest.mark.usefixtures("_unsorted")
def test_views_stay_whole_where_all_rows_that_are_kept_are_fewer_than_two_views_see() -> None:
    best = replace(PRESETS["best"], residents=False)
    batch = replace(SEEN, held=1.1 * SEEN.largest, union=1e6)
    work = alike(replace(WORK, n_rows=1_000_000), batch)
    whole = forecast_of(best).wanted(work)
    assert whole.slots < 2 * whole.rows
    full = need(best, work, whole).device_bytes
    fewer_rows = _room(best, work, full - 1)
    assert fewer_rows is not None
    assert 0.99 * whole.rows < fewer_rows.rows < whole.rows
    assert fewer_rows.slots == whole.slots
    room = _room(best, work, need(best, work, Streamed(best).least(work)).device_bytes)
    assert room == Streamed(best).least(work)
