# SPDX-License-Identifier: Apache-2.0
"""Bytes that are forecast, beside those of real tensors."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from appearance_models import make_rows
from cloud import bytes_of, cloud_rows, views_along
from made_up import SEEN, WORK, alike
from torch import Tensor
from torch_memory import LiveMemory

import gs_cull
import gs_order
from gs_raster import MAX_INSTANCES
from gs_train.backends import make_backend
from gs_train.densify import AdcConfig
from gs_train.densify.statistics import Statistics
from gs_train.engine.engine import Engine
from gs_train.engine.residents import HEADROOM, Residents
from gs_train.engine.room import room_for
from gs_train.engine.settings import StepSettings
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS, Preset
from gs_train.published.returning import Returning
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.attributes import GEOMETRY_WIDTH, NAMES
from gs_train.rows.host_rows import HostRows
from gs_train.rows.keys import RowKeys
from gs_train.rows.tiered import TieredGaussians
from gs_train.sizing.census import measure_workload
from gs_train.sizing.choice import statistics_bytes
from gs_train.sizing.forecasts import need
from gs_train.sizing.forecasts.split_rows import Streamed
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.workload import Workload

N = 400
EVERY = pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
BATCHES = [[0, 1], [5], [0, 1]]
"""Views of three batches: those of the second see other rows, and fewer."""


@dataclass
class Trained:
    """A small engine after three steps that change no geometry, and what was forecast for it."""

    backend: Engine
    need: Need
    work: Workload
    made: list[Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.backend.model.tensors()

    def rows_of_batches(self) -> int:
        """Bytes of all tables of rows that the engine made for batches: appearance, and sums of
        gradients of geometry, alone or beside those of appearance."""
        appearance = self.work.appearance
        widths = appearance, GEOMETRY_WIDTH, GEOMETRY_WIDTH + appearance
        own = {values.untyped_storage().data_ptr() for values in self.tensors.values()}
        tables = {
            values.untyped_storage().data_ptr(): values.untyped_storage().nbytes()
            for values in self.made
            if values.ndim == 2 and values.shape[1] in widths
        }
        return sum(size for address, size in tables.items() if address not in own)


def _tensors() -> list[Tensor]:
    gc.collect()
    return [held for held in gc.get_objects() if type(held) is Tensor and held.device.type == "cpu"]


def _trained(preset: Preset, degree: int) -> Trained:
    rows, views, renderer = cloud_rows(N, (degree + 1) ** 2 - 1), views_along(6), CpuRenderer()
    rows["means"][:, 0] *= 4.0
    for view in views:
        view.viewmat[0, 3] *= 3.0
    options = {"n_rows": N, "sh_degree": degree, "batch_size": 2}
    work = measure_workload(rows, views, renderer, batches=BATCHES, **options)
    first = measure_workload(rows, views, renderer, batches=[BATCHES[0]] * 2, **options)
    for name in ("union", "largest", "held"):  # whose buffers do not grow later
        assert getattr(first.most, name) == getattr(work.most, name) > 0
    assert work.most.union * HEADROOM < work.most.two < N / HEADROOM
    before = _tensors()  # held, so that no new tensor takes the place of one of them
    addresses = {values.data_ptr() for values in before}
    preset = preset.splitting_above(1.0)
    backend = make_backend(preset, rows, None, renderer=renderer, semantics="dense", mem_limit=1.0)
    settings = StepSettings(degree, dict.fromkeys(NAMES, 0.0), (0.9, 0.999), 1e-15, 0.2)
    truth = torch.zeros(64, 96, 3, dtype=torch.uint8)
    batches = [[views[k] for k in batch] for batch in BATCHES]
    for step, batch in enumerate(batches):
        upcoming = batches[step + 1 :]
        backend.step([(v, truth) for v in batch], settings, lambda *_: None, upcoming=upcoming)
    backend.finish()
    made = [values for values in _tensors() if values.data_ptr() not in addresses]
    return Trained(backend, need(preset, work), work, made)


@EVERY
@pytest.mark.parametrize("degree", [0, 3])
def test_bytes_that_grow_with_n_are_those_of_real_tensors(preset: Preset, degree: int) -> None:
    trained = _trained(preset, degree)
    tensors, of = trained.tensors, trained.need

    def in_all_tiers(part: str) -> int:
        return sum(tier.get(part, 0) for tier in (of.device, of.pinned, of.pageable))

    copies = 2 if preset.placement == "mirror" else 1
    rows = bytes_of(*(tensors[name] for name in NAMES))
    assert in_all_tiers("parameters") == copies * rows
    moments = [values for name, values in tensors.items() if ".exp_avg" in name]
    assert len(moments) == 2 * len(NAMES)
    assert in_all_tiers("moments") == bytes_of(*moments)
    if preset.semantics == "deferred":
        assert in_all_tiers("steps of rows") == bytes_of(tensors["appearance.last_step"])
    assert of.device["keys"] == bytes_of(trained.backend.model.keys.values)
    on_device = trained.backend.model.params.values()
    if preset.placement == "split":
        assert of.device["parameters"] == bytes_of(*on_device)


@EVERY
def test_bytes_of_rows_that_come_for_a_batch_are_those_of_real_tensors(preset: Preset) -> None:
    trained = _trained(preset, 3)
    device = trained.need.device
    if preset.placement == "mirror":  # whose gradients are those of the parameters
        assert trained.rows_of_batches() == 0
        return
    parts = "gradients", "residents", "row buffers"
    expected = sum(device.get(part, 0) for part in parts)
    # Headroom is counted for all buffers together, and is whole slots in each of them.
    slot = 4 * trained.work.appearance
    assert expected - 4 * slot <= trained.rows_of_batches() <= expected


def test_gradients_of_naive_are_those_of_real_tensors() -> None:
    model = _trained(PRESETS["naive"], 3).backend.model
    model.zero_gradients()
    gradients = bytes_of(*(param.grad for param in model.params.values()))
    of = need(PRESETS["naive"], WORK.with_rows(N))
    assert of.device["gradients"] == of.pinned["gradients"] == gradients


def test_tables_and_lists_of_residents_take_what_their_tensors_do() -> None:
    n_slots, lanes = 60, Lanes(torch.device("cpu"))
    host = HostRows(make_rows(100), semantics="deferred", device="cpu", travels=True)
    before = _tensors()
    residents = Residents(host, lanes, Trace(lanes), n_slots)
    residents.bring(torch.arange(40, dtype=torch.int32))
    known = {values.data_ptr() for values in before}
    made = {
        values.data_ptr(): values
        for values in _tensors()
        if values.data_ptr() not in known and len(values) in (100, n_slots, n_slots + 1)
    }.values()
    tables = [values for values in made if values.dtype == torch.float32]
    lists = [values for values in made if values.dtype == torch.int32]
    assert Residents.table_bytes(n_slots, host.width) == bytes_of(*tables) > 0
    # With what finds slots to give away, without the place that is no slot.
    assert Residents.list_bytes(100, n_slots) == bytes_of(*lists) + 32 * n_slots - 4


def test_lists_of_a_batch_are_as_long_as_gs_cull_and_gs_order_make_them() -> None:
    rows, views = cloud_rows(3000), views_along(5)
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
        begun = Returning(plan, 1).of_loads
        assert by_host.device["plans"] == bytes_of(*arrays.values(), begun)
    masks = bytes_of(visible.ids, visible.mask)
    bits, untouched = 4 * -(-3000 // 32), max(12 * 3000, bytes_of(visible.ids.long()))
    assert need(PRESETS["best"], work).device["culling"] == 3 * masks + bits
    assert need(PRESETS["clm"], work).device["culling"] == 2 * masks + bits + 3000 + untouched


def test_statistics_of_adc_are_those_that_it_keeps_and_of_mcmc_cover_them() -> None:
    def config(**options: object) -> FitConfig:
        return FitConfig(Path("a"), Path("b"), **options)

    for stop, radii in ((0, False), (100, True)):
        kept = Statistics(10, device="cpu", absgrad=False, radii=radii)
        tensors = [t for t in (kept.grad2d, kept.count, kept.radii) if t is not None]
        of_adc = config(adc=AdcConfig(refine_scale2d_stop=stop))
        assert statistics_bytes(of_adc) * 10 == bytes_of(*tensors)
    order = RowKeys.numbered(10, torch.device("cpu")).order
    # Beside the order of the keys it takes what sorting them does, at a refinement.
    values, places = torch.sort(torch.arange(10, dtype=torch.int32))
    assert statistics_bytes(config(strategy="mcmc")) * 10 >= bytes_of(order, values, places)


# ---------------------------------------------------------------------- relations


@EVERY
def test_parts_are_positive_and_add_up(preset: Preset) -> None:
    of = need(preset, WORK)
    parts = [*of.device.values(), *of.pinned.values(), *of.pageable.values()]
    assert all(isinstance(part, int) and part >= 0 for part in parts)
    assert of.device_bytes + of.host_bytes == sum(parts)


def test_a_gaussian_takes_132_bytes_of_the_device_and_580_of_the_host_where_it_is_split() -> None:
    """As the documents say."""
    parts = ("parameters", "moments", "steps of rows")
    for name in ("clm", "gs-scale", "best"):
        of = need(PRESETS[name], WORK)
        on_host = [tier.get(part, 0) for tier in (of.pinned, of.pageable) for part in parts]
        assert sum(of.device[part] for part in parts[:2]) == 132 * WORK.n_rows
        assert sum(on_host) == 580 * WORK.n_rows


def test_what_visits_the_device_with_its_moments_is_page_locked_and_needs_no_rings() -> None:
    of = need(PRESETS["best"], WORK)
    assert {"parameters", "moments", "steps of rows"} <= of.pinned.keys()
    assert "rings" not in of.pinned
    assert not {"moments", "steps of rows"} & of.pageable.keys()
    assert not {"row buffers", "plans", "returning gradients"} & of.device.keys()


def test_rows_that_sleep_come_through_a_ring_of_their_own() -> None:
    dense, deferred = (need(PRESETS[name], WORK).pinned["rings"] for name in ("clm", "gs-scale"))
    assert deferred == 2 * dense > 0


def test_a_batch_too_large_for_the_residents_fits_into_their_memory() -> None:
    best = PRESETS["best"]
    in_slots = need(best, WORK)
    room = Room.of_residents(1, in_slots.device["residents"] // 576)
    by_host = need(best, WORK, Room(1, room.slots)).device["row buffers"]
    one_more = need(best, WORK, Room(1, room.slots + 2)).device["row buffers"]
    assert by_host <= in_slots.device["residents"] < one_more


@pytest.mark.parametrize("name", PRESETS)
def test_rendering_takes_as_much_as_the_fullest_of_its_moments(name: str) -> None:
    """Of rows, of pixels and of intersections, what is most decides, and the rest hardly."""

    def counted(rows: float = 1, side: int = 16, intersections: float = 1) -> int:
        seen = replace(SEEN, largest=rows, intersections=intersections)
        work = replace(alike(WORK, seen), width=side, height=side)
        return need(PRESETS[name], work, Room(int(rows), int(2 * rows))).device["rendering"]

    least = counted()
    for few, many in (
        (counted(rows=1e6), counted(rows=2e6)),
        (counted(side=5000), counted(side=round(5000 * 2**0.5))),
        (counted(intersections=1e9), counted(intersections=2e9)),
    ):
        assert few > 1000 * least
        assert many == pytest.approx(2 * few, rel=1e-3)
    assert counted(1e6, 5000, 1e9) < counted(1e6) + counted(side=5000) + counted(intersections=1e9)


@EVERY
def test_masks_take_a_byte_of_a_pixel_and_carving_twelve(preset: Preset) -> None:
    without = need(preset, WORK)
    masked = need(preset, replace(WORK, channels=4))
    carved = need(preset, replace(WORK, channels=4, carves=True))
    n_pixels = WORK.width * WORK.height
    for of, also in ((without, masked), (without, carved)):
        assert 3 * also.device["photographs"] == 4 * of.device["photographs"]
        assert 3 * also.pinned["photographs"] == 4 * of.pinned["photographs"]
    assert masked.device["rendering"] == without.device["rendering"]
    assert carved.device["rendering"] == without.device["rendering"] + 12 * n_pixels


@EVERY
def test_depth_maps_take_two_bytes_of_a_pixel_and_their_loss_24(preset: Preset) -> None:
    colours, depths = (
        need(preset, replace(WORK, width=4000, height=4000, channels=n, depths=n == 5))
        for n in (3, 5)
    )
    assert 3 * depths.device["photographs"] == 5 * colours.device["photographs"]
    assert 3 * depths.pinned["photographs"] == 5 * colours.pinned["photographs"]
    more = depths.device["rendering"] - colours.device["rendering"]
    assert 24 * 4000**2 <= more <= 24 * 4000**2 + 32 * WORK.n_rows


# A view of gs-raster with many more rows or intersections than pixels.
MANY = alike(WORK, replace(SEEN, largest=1e6, intersections=2e7))
RASTER = replace(MANY, renderer="raster", batch_size=1)
PIXELS = 1920 * 1080
ROOM = room_for(1_000_000, 20_000_000)


def _rendering(name: str, work: Workload, room: Room | None = None) -> int:
    return need(PRESETS[name], work, room).device["rendering"]


@pytest.mark.parametrize(("absgrad", "slot"), [(False, 36), (True, 44)])
@pytest.mark.parametrize("name", ["none", "best"])
def test_drawing_from_tables_takes_no_copies_of_rows(name: str, absgrad: bool, slot: int) -> None:
    """As gs-raster's documents say: record, radii, first and count, gradient; beside them where the
    row is among the batch's, its id and its slot."""
    alone = replace(RASTER, absgrad=absgrad)
    row, intersection, pixel = 48 + 8 + 8 + 48 + 12, 8 + slot, 20 + 12
    assert _rendering(name, alone) == row * 1_000_000 + intersection * ROOM + pixel * PIXELS
    # The gradient of a depth is a float of an intersection.
    deep = _rendering(name, replace(alone, depths=True)) - _rendering(name, alone)
    assert deep == 4 * ROOM + 24 * PIXELS
    # Beside it the view before: splats and gradients, lists, transmittance and last instance.
    both = _rendering(name, replace(alone, batch_size=2))
    assert both - _rendering(name, alone) == row * 1_000_000 + 8 * ROOM + 8 * PIXELS


def test_a_view_that_was_not_drawn_before_gets_room_by_its_rows() -> None:
    few = replace(RASTER, most=replace(RASTER.most, intersections=1e6))
    fewer = replace(RASTER, most=replace(RASTER.most, intersections=1e5))
    more = replace(few, most=replace(few.most, largest=2e6))
    assert _rendering("none", few) == _rendering("none", fewer)
    rooms = (room_for(n, None) for n in (2_000_000, 1_000_000))
    taken = 124 * 1_000_000 + 44 * (next(rooms) - next(rooms))
    assert _rendering("none", more) - _rendering("none", few) == taken


def test_parts_of_a_view_that_is_cut_have_the_room_of_their_rows() -> None:
    whole, half = (Room.of_residents(n, 1_000_000) for n in (1_000_000, 500_000))
    alone, cut = (_rendering("best", RASTER, room) for room in (whole, half))
    room = room_for(500_000, 10_000_000)
    before = 124 * 500_000 + 8 * room + 8 * PIXELS
    assert cut == alone - 124 * 500_000 - 44 * (ROOM - room) + before


def test_rows_that_lie_nowhere_together_are_copied_for_every_renderer() -> None:
    for name in ("clm", "gs-scale", "naive"):
        alone, two = (_rendering(name, replace(RASTER, batch_size=size)) for size in (1, 2))
        assert alone == two > 236 * 1_000_000


@pytest.mark.parametrize("largest", [2.5e5, 1e6])
def test_a_view_of_gs_raster_takes_less_than_one_of_gsplat(largest: float) -> None:
    seen = replace(SEEN, largest=largest, intersections=6 * largest)
    work = replace(alike(WORK, seen), batch_size=1)
    assert _rendering("none", replace(work, renderer="raster")) < _rendering("none", work)


def test_rows_are_re_ordered_in_the_memory_of_a_batch() -> None:
    """What is idle then counts for it: more slots take nothing until they are more than that."""
    best = PRESETS["best"]
    few, many, enough = (
        need(best, WORK, Room(250_000, n)).device for n in (300_000, 500_000, 2_000_000)
    )
    assert few["row buffers"] < many["row buffers"]
    assert few["re-ordering"] > many["re-ordering"] > 0
    assert sum(few.values()) == sum(many.values())
    assert enough["re-ordering"] == 0
    # Where appearance is on the device it is the widest table that moves.
    of_none = need(PRESETS["none"], WORK).device
    assert of_none["re-ordering"] > few["re-ordering"]


@pytest.mark.parametrize(("name", "widest"), [("none", 192), ("best", 16)])
def test_a_table_grows_beside_the_buffers_that_a_batch_leaves(name: str, widest: int) -> None:
    """The widest table is there twice, and nothing is being drawn."""
    n, union = 20_000_000, 2_000_000
    work = alike(WORK.with_rows(n), replace(SEEN, union=union, two=union, largest=union / 4))
    work = replace(work, width=64, height=64)
    of = need(PRESETS[name], work, Room.of_residents(1000, union)).device
    drawn = {"rendering", "re-ordering", "growing"}
    stays = sum(size for part, size in of.items() if part not in drawn)
    assert of["growing"] > 0
    assert sum(of.values()) == stays + widest * n


@pytest.mark.parametrize("known", [None, 0, 1, 70_000, 1_150_000, 30_000_000])
def test_room_is_one_of_16_numbers_in_an_octave(known: int | None) -> None:
    room = room_for(300_000, known)
    least = 8 * 300_000 if known is None else known + known // 8
    assert least < room <= (least + 65536) * 17 / 16
    assert room % (1 << room.bit_length() - 5) == 0
    assert room_for(300_000, MAX_INSTANCES) == MAX_INSTANCES


def test_one_table_at_a_time_is_copied_to_a_larger_one() -> None:
    n, n_new, widest = 40_000, 400, 192
    with LiveMemory() as memory:
        model = TieredGaussians(
            cloud_rows(n), device="cpu", semantics="deferred", home="device", capacity=n + n_new
        )
        new, nothing = cloud_rows(n_new), torch.empty(0, dtype=torch.int32)
        before = memory.now
        assert before >= bytes_of(*model.tensors().values())
        memory.most = 0
        model.replace(nothing, new)
        assert len(model) == n + n_new
        grown = memory.now
    assert grown - before == (before - bytes_of(*new.values())) * n_new // n
    assert widest * n <= memory.most - grown <= widest * (n + n_new)


def test_no_larger_table_is_forecast_where_gradients_make_room_for_it() -> None:
    assert "growing" not in need(PRESETS["naive"], WORK).device
