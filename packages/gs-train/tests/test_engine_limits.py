# SPDX-License-Identifier: Apache-2.0
"""What a run has to respect so that views nobody has looked at, and rows to come, fit as well."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_up import alike
from torch import Tensor

from gs_order import ViewSampler
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS, Preset
from gs_train.renderers import View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.sizing.census import measure_workload, middle_view
from gs_train.sizing.fitting import fit_into, limits_within
from gs_train.sizing.forecasts import forecast_of, need, room_under
from gs_train.sizing.forecasts.split_rows import Streamed
from gs_train.sizing.memory import Caps, Room
from gs_train.sizing.workload import BatchRows, Workload

SEEN = BatchRows(
    visible=1.6e6, union=1e6, two=1.4e6, largest=4e5, loaded=1.2e6, held=9e5, intersections=4e6
)
WORK = Workload(
    n_rows=10_000_000, sh_degree=3, batch_size=4, width=1920, height=1080, most=SEEN, mean=SEEN
)
HOST = 10**15
N_VIEWS = 30


def _with_view(work: Workload, rows: int) -> Workload:
    """The same with a view that sees so many rows, more than any that was looked at."""
    most = {
        name: max(getattr(work.most, name), rows)
        for name in ("visible", "union", "two", "largest", "loaded", "held")
    }
    intersections = work.most.intersections * rows / work.most.largest
    return replace(work, most=replace(work.most, **most, intersections=intersections))


def _wanted(preset: Preset, work: Workload) -> int:
    return need(preset, work, forecast_of(preset).wanted(work)).device_bytes


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("name", ["clm", "gs-scale", "best"])
def test_a_view_that_nobody_looked_at_fits_into_a_cap(name: str, is_given: bool) -> None:
    """The limit leaves the preset what it has, takes what is left, and holds."""
    preset = PRESETS[name]
    caps = Caps(int(1.3 * _wanted(preset, WORK)), HOST, is_given=is_given)
    room = fit_into(preset, WORK, caps)
    assert room is not None
    limits = limits_within(preset, WORK, caps, room)
    assert limits.rows is not None
    assert room.rows < limits.rows < WORK.n_rows

    def needed(rows: int) -> int:
        unseen = _with_view(WORK, rows)
        under = room_under(preset, unseen, replace(limits, rows=rows))
        return need(preset, unseen, under).device_bytes

    assert needed(limits.rows) <= caps.device
    if preset.split_share is None:  # else its own share is what cuts
        assert needed(round(1.05 * limits.rows)) > caps.device


def test_views_are_cut_where_less_than_they_want_fits() -> None:
    best = PRESETS["best"]
    least = need(best, WORK, Room.of_residents(100_000, 1_000_000)).device_bytes
    caps = Caps(least, HOST, is_given=True)
    room = fit_into(best, WORK, caps)
    assert room is not None
    assert room.rows < WORK.most.largest
    assert limits_within(best, WORK, caps, room).rows == room.rows


def test_views_are_not_cut_when_rows_have_grown_as_expected() -> None:
    best = PRESETS["best"]
    grown = WORK.with_rows(3 * WORK.n_rows)
    caps = Caps(int(1.3 * _wanted(best, grown)), HOST, is_given=True)
    room = fit_into(best, WORK, caps, grows_to=grown.n_rows)
    assert room is not None
    limits = limits_within(best, WORK, caps, room, grows_to=grown.n_rows)
    assert limits.rows is None or limits.rows >= forecast_of(best).wanted(grown).rows
    # More than fits is not reckoned with.
    far = limits_within(best, WORK, caps, room, grows_to=1000 * WORK.n_rows)
    assert far == limits_within(best, WORK, caps, room)


@pytest.mark.parametrize("name", ["clm", "best"])
def test_views_that_have_to_be_cut_when_rows_have_grown_are(name: str) -> None:
    preset = PRESETS[name]
    grown = WORK.with_rows(20 * WORK.n_rows)
    rooms = Streamed(preset).least(grown), Streamed(preset).wanted(grown)
    caps = Caps(sum(need(preset, grown, room).device_bytes for room in rooms) // 2, HOST)
    later, room = fit_into(preset, grown, caps), fit_into(preset, WORK, caps)
    assert later is not None
    assert room is not None
    assert later.rows < grown.most.largest
    limits = limits_within(preset, WORK, caps, room, grows_to=grown.n_rows)
    assert (limits.rows, limits.slots) == (later.rows, later.slots)


def test_a_view_of_more_rows_than_may_reside_fits_too() -> None:
    """Its batch is updated by the host."""
    best, share, most = PRESETS["best"], 0.04, 100_000_000
    factors = {"visible": 8, "union": 5, "two": 8, "largest": 1, "loaded": 6, "held": 3.5}
    batch = BatchRows(**{name: k * share * 1e6 for name, k in factors.items()}, intersections=3e5)
    work = alike(replace(WORK, n_rows=1_000_000, batch_size=8), batch)
    caps = Caps(24 << 30, HOST, is_given=True, gaps=1.06)
    room = fit_into(best, work, caps, grows_to=most)
    assert room is not None
    limits = limits_within(best, work, caps, room, grows_to=most)
    assert limits.rows is not None
    assert limits.residents is not None
    assert limits.rows > limits.residents
    of = _with_view(work.with_rows(most), limits.rows)
    by_host = Room(limits.rows, max(limits.slots or 0, 2 * limits.rows))
    assert caps.hold(need(best, of, by_host))


def test_without_a_cap_and_with_memory_for_all_nothing_is_limited() -> None:
    for preset in PRESETS.values():
        plenty = Caps(HOST, HOST)
        room = fit_into(preset, WORK, plenty)
        assert room is not None
        assert limits_within(preset, WORK, plenty, room) == Limits()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_cap_on_host_memory_bounds_the_rows_there(name: str, shared: bool) -> None:
    """Without a GPU, all that is on the device is there as well."""
    preset = PRESETS[name]
    most = WORK.with_rows(15_000_000)
    of = need(preset, most, forecast_of(preset).wanted(most))
    limit = of.host_bytes + (of.device_bytes if shared else 0)
    caps = Caps(HOST, limit, shared=shared, host_limit=limit)
    room = forecast_of(preset).wanted(WORK)
    capacity = limits_within(preset, WORK, caps, room).capacity
    if name == "none" and not shared:
        assert capacity is None
    else:
        assert capacity == pytest.approx(most.n_rows, rel=1e-6)
    assert limits_within(preset, WORK, replace(caps, host_limit=None), room).capacity is None
    # What is free at the start is not what is there later.
    busy = replace(caps, host=limit // 2)
    assert limits_within(preset, WORK, busy, room).capacity == capacity


def _rows(n: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n, *shape, generator=generator)

    return {
        "means": normal(3) * torch.tensor([9.0, 1.0, 1.0]) + torch.tensor([0.0, 0.0, 6.0]),
        "scales": normal(3) * 0.3 - 4.0,
        "quats": normal(4),
        "opacities": normal() + 2.0,
    }


def _views() -> list[View]:
    """Along the cloud and, one of them, away from it: that one sees it all."""
    views = []
    for i in range(N_VIEWS):
        viewmat = torch.eye(4)
        viewmat[0, 3], viewmat[2, 3] = 18.0 * i / N_VIEWS - 9.0, 60.0 * (i == N_VIEWS // 2)
        K = torch.tensor([[150.0, 0, 48], [0, 150.0, 32], [0, 0, 1]])
        views.append(View(f"{i}", viewmat, K, 96, 64))
    return views


def test_the_view_that_sees_most_counts_whether_or_not_a_batch_has_it() -> None:
    rows, views = _rows(3000), _views()
    options = {"n_rows": 3000, "sh_degree": 1, "batch_size": 1}
    far = [N_VIEWS // 2] * 2
    alone = measure_workload(rows, views, CpuRenderer(), batches=[far[:1]] * 2, **options).most
    unions = []
    for seed in range(5):
        sampler = ViewSampler(len(views), seed=seed)
        work = measure_workload(rows, views, CpuRenderer(), n_batches=1, sampler=sampler, **options)
        assert work.most.largest == alone.largest
        assert work.mean.largest <= alone.largest
        assert work.most.intersections >= alone.intersections
        unions.append(work.most.union)
    # That view takes no residents from the batches of others.
    assert min(unions) < alone.largest / 2
    near = measure_workload(rows, views, CpuRenderer(), batches=[[0], [1]], **options)
    assert near.most.largest < alone.largest / 2, "no other view than those of the batches"


def test_views_that_see_nothing_are_no_middle_of_those_that_do() -> None:
    rows, views = _rows(500), _views()
    behind = torch.diag(torch.tensor([-1.0, 1, -1, 1]))
    away = replace(views[0], name="away", viewmat=behind)
    first = middle_view(rows, views[:1], CpuRenderer())
    assert first is not None
    for among in (
        [away] * 8 + views[:1],  # one of the nine that are looked at
        [away] * 17 + views[:1] + [away] * 20,  # none of them
    ):
        view, ids = middle_view(rows, among, CpuRenderer())
        assert view is views[0]
        assert torch.equal(ids, first[1])
    assert middle_view(rows, [away] * 20, CpuRenderer()) is None


def test_the_view_that_sees_most_is_found_among_many_with_some_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gs_train.sizing import census

    rows, views = _rows(30_000), _views()
    options = {"n_rows": 30_000, "sh_degree": 1, "batch_size": 1, "n_batches": 1}
    exact = measure_workload(rows, views, CpuRenderer(), **options).most.largest
    monkeypatch.setattr(census, "_MOST_TESTS", 300 * N_VIEWS)
    monkeypatch.setattr(census, "_VIEWS", 7)
    sampled = measure_workload(rows, views, CpuRenderer(), **options).most.largest
    assert sampled == exact, "counted again with all rows"
