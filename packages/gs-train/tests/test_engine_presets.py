# SPDX-License-Identifier: Apache-2.0
"""Presets, and what they need. Bytes are compared with real tensors."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import GIB, SEEN, WORK
from torch import Tensor

import gs_adam
import gs_cull
import gs_order
from gs_train.densify import AdcConfig
from gs_train.engine import buffers, residents
from gs_train.engine.backend import StepSettings
from gs_train.engine.limits import Limits
from gs_train.engine.pipeline import Engine
from gs_train.engine.sums import Returning
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS, Preset, preset_named
from gs_train.published import streaming
from gs_train.renderers import View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows import morton
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.keys import RowKeys
from gs_train.rows.tiered import TieredGaussians
from gs_train.sizing.census import measure_workload
from gs_train.sizing.choice import choose, statistics_bytes
from gs_train.sizing.fitting import fit_into, largest_n, limits_within
from gs_train.sizing.forecasts import batches, forecast_of, need, room_under
from gs_train.sizing.forecasts.streamed import Streamed
from gs_train.sizing.memory import Caps, Room
from gs_train.sizing.workload import BatchRows, Workload

SPLIT = [preset for preset in PRESETS.values() if preset.placement == "split"]
PLENTY = Caps(10**15, 10**15)


def _config(**options: object) -> FitConfig:
    return FitConfig(data=Path("a"), out=Path("b"), **options)


def _rows(n: int, k: int = 15, seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(n, *shape, generator=random)

    return {
        "means": normal(3) + torch.tensor([0.0, 0.0, 6.0]),
        "scales": normal(3) * 0.3 - 3.0,
        "quats": normal(4),
        "opacities": normal(),
        "sh0": normal(1, 3),
        "shN": normal(k, 3),
    }


def _room(preset: Preset, work: Workload, device_bytes: int, *, given: bool = False) -> Room | None:
    """Where the device is short, and the host is not."""
    return fit_into(preset, work, Caps(device_bytes, 10**15, is_given=given))


def _views(n: int, width: int = 96, height: int = 64) -> list[View]:
    views = []
    for i in range(n):
        viewmat = torch.eye(4)
        viewmat[0, 3] = 2.0 * i / n - 1.0
        K = torch.tensor([[150.0, 0, width / 2], [0, 150.0, height / 2], [0, 0, 1]])
        views.append(View(f"{i}", viewmat, K, width, height))
    return views


def _seen(rows: dict[str, Tensor], views: list[View]) -> list[int]:
    """Rows that any view sees."""
    ids = [
        gs_cull.visible_ids(
            rows["means"], rows["scales"], rows["quats"], view.viewmat, view.K, 96, 64,
            opacities=rows["opacities"],
        )
        for view in views
    ]  # fmt: skip
    return torch.cat(ids).unique().tolist()


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ---------------------------------------------------------------------- presets


def test_every_preset_is_named_after_itself_and_an_option() -> None:
    assert list(PRESETS) == ["none", "naive", "clm", "gs-scale", "best"]
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert _config(offload=name).offload == name
        assert preset_named(name) is preset


def test_auto_is_no_preset() -> None:
    with pytest.raises(InputError, match=r"--offload must be auto, none, .*, got auto"):
        preset_named("auto")


def test_sparse_results_need_a_sparse_host_optimizer() -> None:
    assert PRESETS["best"].host_semantics("sparse") == "sparse"
    assert PRESETS["best"].host_semantics("dense") == "deferred"
    assert PRESETS["clm"].host_semantics("dense") == "dense"


# ---------------------------------------------------------------------- bytes


def test_model_and_optimizer_on_the_device_take_716_bytes_a_row_and_gradients_those_seen() -> None:
    parts = need(PRESETS["none"], WORK).device
    scene = ("parameters", "moments", "steps of rows", "keys")
    assert sum(parts[part] for part in scene) == 716 * WORK.n_rows
    assert parts["gradients"] == (44 + 192 * buffers.HEADROOM) * SEEN.union
    assert parts["marks"] == SEEN.union
    assert parts["densification"] == 8 * WORK.n_rows
    assert not {"residents", "lists of residents", "row buffers", "plans"} & parts.keys()


def test_a_split_scene_takes_132_bytes_a_row_on_the_device_and_580_on_the_host() -> None:
    for preset in SPLIT:
        of = need(preset, WORK, Streamed(preset).wanted(WORK))
        assert of.device["parameters"] + of.device["moments"] == 132 * WORK.n_rows
        assert of.device["gradients"] == 44 * SEEN.union
        assert of.pinned["parameters"] == 192 * WORK.n_rows
        rings = 2 if preset.semantics == "deferred" else 1
        assert of.pinned["rings"] == rings * streaming.RING_BYTES
        assert of.pageable["moments"] + of.pageable["steps of rows"] == 388 * WORK.n_rows


def test_what_visits_the_device_with_its_moments_is_page_locked_and_needs_no_rings() -> None:
    of = need(PRESETS["best"], WORK)
    assert of.device["parameters"] + of.device["moments"] == 132 * WORK.n_rows
    parts = ("parameters", "moments", "steps of rows")
    assert sum(of.pinned[part] for part in parts) == 580 * WORK.n_rows
    assert "rings" not in of.pinned
    assert not {"moments", "steps of rows"} & of.pageable.keys()
    assert not {"row buffers", "plans", "returning gradients"} & of.device.keys()


def test_residents_are_those_of_two_batches_and_the_gradients_those_of_one() -> None:
    room = forecast_of(PRESETS["best"]).wanted(WORK)
    assert (room.rows, room.residents) == (250_000, 7e5 * residents.HEADROOM)
    parts = need(PRESETS["best"], WORK).device
    assert parts["residents"] == 576 * room.residents
    # 8 bytes a row, 40 a slot, 5 a row of the batch.
    assert parts["lists of residents"] == 8e7 + 40 * room.residents + 5 * SEEN.union
    assert parts["gradients"] == (44 + 192 * buffers.HEADROOM) * SEEN.union
    few = replace(WORK, n_rows=500_000)
    assert forecast_of(PRESETS["best"]).wanted(few).residents == 500_000


def test_a_batch_too_large_for_the_residents_fits_into_their_memory() -> None:
    room = forecast_of(PRESETS["best"]).wanted(WORK)
    by_host = need(PRESETS["best"], WORK, Room(room.rows, room.slots))
    assert by_host.device["row buffers"] <= need(PRESETS["best"], WORK).device["residents"]
    one_more = need(PRESETS["best"], WORK, Room(room.rows, room.slots + 2)).device["row buffers"]
    assert one_more > need(PRESETS["best"], WORK).device["residents"]


def test_row_buffers_are_those_of_the_kind_of_retention() -> None:
    # 384 bytes a slot, values and gradient, a quarter more than needed.
    best = PRESETS["best"]
    parts = need(best, WORK, Streamed(best).wanted(WORK)).device
    assert parts["row buffers"] == 480 * SEEN.held
    assert need(PRESETS["clm"], WORK).device["row buffers"] == 480 * 2 * SEEN.largest
    assert need(PRESETS["clm"], WORK).device["returning gradients"] == 192 * 2e5


def test_rendering_is_counted_at_the_fullest_of_three_moments() -> None:
    def counted(width: int, height: int, intersections: int, preset: str = "naive") -> int:
        work = WORK.with_batch(replace(SEEN, intersections=intersections))
        work = replace(work, width=width, height=height)
        return need(PRESETS[preset], work).device["rendering"]

    # 59 + 20 floats a row, 4 bytes an intersection, 68 a pixel.
    assert counted(1920, 1080, 1) == 4 * 79 * 250_000 + 4 + 68 * 1920 * 1080
    # 2 x 59 + 34 floats a row, 16 bytes a pixel.
    assert counted(192, 108, 1) == 4 * 152 * 250_000 + 16 * 192 * 108
    # 59 + 23 floats a row, 24 bytes an intersection.
    assert counted(1920, 1080, 10**9) == 4 * 82 * 250_000 + 24 * 10**9
    # Places in the union, ids and slots of the rows; where the host updates them, slots of torch.
    for name, each in (("none", 12), ("best", 12), ("clm", 8)):
        assert counted(1920, 1080, 10**9, name) == (4 * 82 + each) * 250_000 + 24 * 10**9


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_bytes_on_the_device_are_those_of_real_tensors(degree: int) -> None:
    """A step of all views: what it keeps, and the gradients of the rows that it sees."""
    n, none, views = 400, PRESETS["none"], _views(4)
    model = TieredGaussians(
        _rows(n, (degree + 1) ** 2 - 1), device="cpu", semantics=none.semantics, home="device"
    )
    engine = Engine(model, CpuRenderer(), none)
    settings = StepSettings(degree, dict.fromkeys(NAMES, 1e-3), (0.9, 0.999), 1e-15, 0.2)
    truth = torch.zeros(64, 96, 3, dtype=torch.uint8)
    union = _seen({name: p.detach() for name, p in model.params.items()}, views)
    assert 0 < len(union) < n
    engine.step([(view, truth) for view in views], settings, lambda *_: None)
    tensors = model.tensors()
    moments = [values for name, values in tensors.items() if ".exp_avg" in name]
    assert len(moments) == 2 * len(NAMES)
    work = replace(WORK, sh_degree=degree).with_rows(n).with_batch(replace(SEEN, union=len(union)))
    parts = need(none, work).device
    assert parts["parameters"] == _bytes(*(tensors[name] for name in NAMES))
    assert parts["moments"] == _bytes(*moments)
    assert parts["steps of rows"] == _bytes(tensors["appearance.last_step"])
    assert parts["keys"] == _bytes(model.keys.values)
    assert engine._residing is not None
    assert parts["gradients"] == engine._residing._sums.n_bytes + 44 * len(union)
    assert all(param.grad is None for param in model.params.values())


def test_bytes_of_gradients_and_moments_of_naive_are_those_of_real_tensors() -> None:
    n = 37
    model = Gaussians(
        _rows(n),
        device="cpu",
        make_optimizer=lambda groups: torch.optim.Adam(groups, foreach=False),
    )
    model.zero_gradients()
    model.optimizer.step()
    params = list(model.params.values())
    moments = [
        state[key] for state in model.optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")
    ]
    of = need(PRESETS["naive"], WORK.with_rows(n))
    assert of.device["parameters"] == of.pinned["parameters"] == _bytes(*params)
    assert of.device["gradients"] == of.pinned["gradients"] == _bytes(*(p.grad for p in params))
    assert of.pageable["moments"] == _bytes(*moments)


@pytest.mark.parametrize("degree", [0, 3])
@pytest.mark.parametrize("preset", SPLIT, ids=lambda preset: preset.name)
def test_bytes_of_a_split_scene_are_those_of_real_tensors(preset, degree: int) -> None:
    n, k = 37, (degree + 1) ** 2 - 1
    model = TieredGaussians(
        _rows(n, k), device="cpu", semantics=preset.semantics, travels=preset.residents
    )
    model.appearance.end(model.appearance.begin())
    model.appearance.rest()
    tensors = model.tensors()
    parts = need(preset, replace(WORK, sh_degree=degree).with_rows(n))
    assert parts.device["parameters"] == _bytes(*model.params.values())
    assert parts.pinned["parameters"] == _bytes(tensors["sh0"], tensors["shN"])
    moments = [
        values for name, values in tensors.items() if name.startswith("sh") and ".exp_avg" in name
    ]
    assert len(moments) == 4
    tier = parts.pinned if preset.residents else parts.pageable
    assert tier["moments"] == _bytes(*moments)
    if preset.semantics == "deferred":
        assert tier["steps of rows"] == _bytes(tensors["appearance.last_step"])


def test_bytes_of_residents_are_those_of_real_tensors() -> None:
    n = 400
    rows, views = _rows(n), _views(4)
    renderer = CpuRenderer()
    model = TieredGaussians(rows, device="cpu", semantics="deferred", travels=True)
    engine = Engine(model, renderer, PRESETS["best"])
    settings = StepSettings(3, dict.fromkeys(NAMES, 1e-3), (0.9, 0.999), 1e-15, 0.2)
    truth = torch.zeros(64, 96, 3, dtype=torch.uint8)
    batches = [[views[i]] for i in (0, 3, 0)]
    for step, batch in enumerate(batches):
        upcoming = batches[step + 1 :]
        engine.step([(v, truth) for v in batch], settings, lambda *_: None, upcoming=upcoming)
    held, sums = engine._residing._residents, engine._residing._sums
    two = [set(_seen(rows, batch)) for batch in batches[:2]]
    assert min(len(two[0]), len(two[1])) < len(two[0] | two[1]) < n / residents.HEADROOM
    seen = replace(SEEN, union=max(map(len, two)), two=len(two[0] | two[1]))
    parts = need(PRESETS["best"], WORK.with_rows(n).with_batch(seen)).device
    assert parts["residents"] == _bytes(*held._rows)
    lists = _bytes(held._slot_of, held._last_step, held._id_of, held._wanted[:-1])
    chosen, slots = 32 * len(held.values), (4 + 1) * seen.union  # with marks
    assert parts["lists of residents"] == lists + chosen + slots
    assert parts["gradients"] >= sums.n_bytes + 44 * seen.union


def test_moments_of_the_geometry_are_those_of_its_optimizer() -> None:
    n = 37
    rows = _rows(n)
    params = [torch.nn.Parameter(rows[k]) for k in ("means", "scales", "quats", "opacities")]
    adam = gs_adam.DeviceAdam(params)
    adam.step(torch.arange(3), [torch.ones(3, *p.shape[1:]) for p in params])
    moments = [state[key] for state in adam.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert need(PRESETS["best"], WORK.with_rows(n)).device["moments"] == _bytes(*moments)


def test_lists_of_a_batch_are_as_long_as_gs_cull_and_gs_order_make_them() -> None:
    rows, views = _rows(3000), _views(5)
    visible = gs_cull.cull(
        rows["means"], rows["scales"], rows["quats"],
        torch.stack([v.viewmat for v in views]), torch.stack([v.K for v in views]), 96, 64,
        opacities=rows["opacities"],
    )  # fmt: skip
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=3000, sh_degree=3, batch_size=5, n_batches=1
    )
    assert 0 < work.most.union < 3000
    order = np.asarray(gs_order.order(visible.mask, n_views=5))
    for name, retain in (("clm", "previous"), ("best", "last_use")):
        plan = gs_order.plan(visible.ids, visible.mask, order, retain=retain, ahead=1)
        ragged = [*plan.ids.values(), *plan.positions.values(), *(plan.slots or {}).values()]
        arrays = {part.values.data_ptr(): part.values for part in ragged if len(part.values)}
        by_host = need(PRESETS[name], work, Streamed(PRESETS[name]).wanted(work))
        begun = Returning.of(plan).of_loads
        assert by_host.device["plans"] == _bytes(*arrays.values(), begun)
    masks = _bytes(visible.ids, visible.mask)
    bits, untouched = 4 * -(-3000 // 32), max(12 * 3000, _bytes(visible.ids.long()))
    assert need(PRESETS["best"], work).device["culling"] == 3 * masks + bits
    assert need(PRESETS["clm"], work).device["culling"] == 2 * masks + bits + 3000 + untouched


# ---------------------------------------------------------------------- what views see


def test_a_close_up_of_few_rows_may_have_the_most_intersections() -> None:
    rows = _rows(2000)
    far = View("far", torch.eye(4), _views(1)[0].K, 96, 64)
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
    rows, views = _rows(4000), _views(6)
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=4000, sh_degree=3, batch_size=6, n_batches=1
    )
    seen = [set(_seen(rows, [view])) for view in views]
    assert len({len(ids) for ids in seen}) > 1
    assert work.most.visible == sum(len(ids) for ids in seen)
    assert work.most.union == len(set().union(*seen))
    assert work.most.largest == max(len(ids) for ids in seen)
    assert work.most.union <= work.most.loaded <= work.most.visible
    assert work.most.largest <= work.most.held <= work.most.union


def test_two_batches_in_a_row_see_what_either_does() -> None:
    rows, views = _rows(4000), _views(6)
    work = measure_workload(
        rows, views, CpuRenderer(), n_rows=8000, sh_degree=3, batch_size=2, n_batches=2
    )
    rows["scales"] = rows["scales"] - 0.5 * np.log(2.0)
    sampler = gs_order.ViewSampler(6, 2, seed=0)
    a, b, c = (set(_seen(rows, [views[k] for k in sampler.batch(step)])) for step in range(3))
    assert len({len(a), len(a | b), len(b | c)}) == 3
    assert work.most.two == 2 * max(len(a | b), len(b | c))
    assert work.mean.two == len(a | b) + len(b | c)


def test_intersections_are_the_tiles_that_the_rasterizer_lists() -> None:
    rows, (view,) = _rows(500), _views(1)
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
    rows, views = _rows(2000), _views(4)
    options = {"sh_degree": 3, "batch_size": 2, "n_batches": 2}
    now = measure_workload(rows, views, CpuRenderer(), n_rows=2000, **options)
    later = measure_workload(rows, views, CpuRenderer(), n_rows=50_000, **options)
    shrunk = {**rows, "scales": rows["scales"] - np.log(5.0)}
    same = measure_workload(shrunk, views, CpuRenderer(), n_rows=2000, **options)
    assert later.mean.visible == pytest.approx(25 * same.mean.visible)
    assert later.mean.visible < 25 * now.mean.visible
    assert later.mean.intersections < 25 * now.mean.intersections


def test_views_that_see_nothing_are_counted_as_such() -> None:
    rows, views = _rows(100), _views(3)
    rows["means"][:, 2] = -5.0
    work = measure_workload(rows, views, CpuRenderer(), n_rows=100, sh_degree=3, batch_size=2)
    assert work.most == BatchRows(0, 0, 0, 0, 0, 0, 0)
    for preset in PRESETS.values():
        room = fit_into(preset, work, PLENTY)
        assert room is not None
        assert limits_within(preset, work, PLENTY, room) == Limits()


def test_a_batch_may_be_larger_than_the_capture() -> None:
    work = measure_workload(
        _rows(500), _views(3), CpuRenderer(), n_rows=500, sh_degree=3, batch_size=40
    )
    assert work.most.visible > 10 * work.most.union


def test_a_workload_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="there must be rows and views, got 5 and 0"):
        measure_workload(_rows(5), [], CpuRenderer(), n_rows=5, sh_degree=3, batch_size=1)
    with pytest.raises(ValueError, match="sh_degree must be 0 to 3, got 4"):
        replace(WORK, sh_degree=4)


# ---------------------------------------------------------------------- what fits


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
    monkeypatch.setattr(batches, "_MOVING", 0)


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
    work = WORK.with_batch(replace(SEEN, held=4e6, union=4e6))
    enough_for_two_views = need(best, work, Room(250_000, 500_000)).device_bytes
    room = _room(best, work, enough_for_two_views)
    assert room is not None
    assert room.rows == 250_000
    assert 500_000 <= room.slots < 500_010


def test_what_is_all_on_the_device_cuts_no_view() -> None:
    none = PRESETS["none"]
    full = need(none, WORK).device_bytes
    assert _room(none, WORK, full) == forecast_of(none).wanted(WORK)
    assert _room(none, WORK, full - 1) is None
    assert _room(none, WORK, 2 * full, given=True) == forecast_of(none).wanted(WORK)
    assert forecast_of(none).wanted(WORK).residents == 0  # all rows are, whatever a batch sees


def test_gs_scale_cuts_views_above_its_share() -> None:
    work = WORK.with_batch(replace(SEEN, largest=0.5 * WORK.n_rows, held=0.5 * WORK.n_rows))
    assert forecast_of(PRESETS["gs-scale"]).wanted(work).rows == 0.3 * WORK.n_rows
    assert forecast_of(PRESETS["best"]).wanted(work).rows == 0.5 * WORK.n_rows


@pytest.mark.parametrize(("share", "rows"), [(0.05, 0.05), (0.4, 0.4), (1.0, 0.5)])
def test_what_is_planned_for_is_the_share_of_the_options(share: float, rows: float) -> None:
    work = WORK.with_batch(replace(SEEN, largest=0.5 * WORK.n_rows, held=0.5 * WORK.n_rows))
    config = _config(offload="gs-scale", mem_limit=share)
    preset = choose(config, work, PLENTY).preset
    assert forecast_of(preset).wanted(work).rows == rows * WORK.n_rows


def test_a_device_that_is_the_host_needs_room_for_both() -> None:
    of = need(PRESETS["best"], WORK)
    both = of.device_bytes + of.host_bytes
    assert Caps(of.device_bytes, both, shared=True).hold(of)
    assert not Caps(of.device_bytes, both - 1, shared=True).hold(of)
    assert Caps(of.device_bytes, of.host_bytes).hold(of)
    assert not Caps(of.device_bytes - 1, of.host_bytes).hold(of)


def test_statistics_are_those_that_densification_keeps() -> None:
    from gs_train.densify.statistics import Statistics

    for stop, radii in ((0, False), (100, True)):
        kept = Statistics(10, device="cpu", absgrad=False, radii=radii)
        tensors = [t for t in (kept.grad2d, kept.count, kept.radii) if t is not None]
        config = _config(adc=AdcConfig(refine_scale2d_stop=stop))
        assert statistics_bytes(config) * 10 == _bytes(*tensors)
    order = RowKeys.numbered(10, torch.device("cpu")).order
    assert statistics_bytes(_config(strategy="mcmc")) * 10 == _bytes(order)


def test_parts_are_positive_and_add_up() -> None:
    for preset in PRESETS.values():
        of = need(preset, WORK)
        parts = [*of.device.values(), *of.pinned.values(), *of.pageable.values()]
        assert all(isinstance(part, int) and part >= 0 for part in parts)
        assert of.device_bytes + of.host_bytes == sum(parts)


@pytest.mark.usefixtures("_unsorted")
def test_views_stay_whole_where_all_rows_that_are_kept_are_fewer_than_two_views_see() -> None:
    best = replace(PRESETS["best"], residents=False)
    work = WORK.with_batch(replace(SEEN, held=1.1 * SEEN.largest, union=1e6))
    whole = forecast_of(best).wanted(work)
    assert whole.slots < 2 * whole.rows
    full = need(best, work, whole).device_bytes
    fewer_rows = _room(best, work, full - 1)
    assert fewer_rows is not None
    assert 0.99 * whole.rows < fewer_rows.rows < whole.rows
    assert fewer_rows.slots == whole.slots
    room = _room(best, work, need(best, work, Streamed(best).least(work)).device_bytes)
    assert room == Streamed(best).least(work)


def test_rows_are_re_ordered_in_the_memory_of_a_batch() -> None:
    best = PRESETS["best"]
    few, many = Room(250_000, 300_000), Room(250_000, 500_000)
    parts = [need(best, WORK, room).device for room in (few, many)]
    each = buffers.HEADROOM * 2 * 192
    assert parts[1]["row buffers"] == parts[0]["row buffers"] + 200_000 * each
    assert parts[0]["re-ordering"] == pytest.approx(
        11 * WORK.n_rows
        + morton.SORT_BYTES * morton.PIECE
        - parts[0]["rendering"]
        - parts[0]["gradients"]
        - parts[0]["row buffers"]
    )
    assert sum(parts[0].values()) == sum(parts[1].values())
    assert need(best, WORK, Room(250_000, 2_000_000)).device["re-ordering"] == 0
    # The widest table of all rows once more, 192 bytes a row, with the order and its check.
    of_none = need(PRESETS["none"], WORK).device
    idle = of_none["rendering"] + of_none["gradients"]
    assert of_none["re-ordering"] == (192 + 8 + 1) * WORK.n_rows - idle
