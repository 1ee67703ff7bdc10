# SPDX-License-Identifier: Apache-2.0
"""Batches and views that see more rows than there is room for train as those that fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
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
from gs_train.engine.engine import Engine
from gs_train.engine.settings import StepSettings
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.tide import TideConfig
from gs_train.renderers import Renderer, RenderOptions, Rows, View, make_renderer
from gs_train.renderers.culling import cameras_of, cull
from gs_train.sizing.blocks import block_room
from gs_train.sizing.memory import Caps
from gs_train.tide.block_room import BlockRoom
from gs_train.tide.cutting import SMALLEST, cut_to_room
from gs_train.tide.engine import block_engine
from gs_train.tide.passes import BlockPasses
from gs_train.tide.room import BatchRoom

N_ROWS, BATCH, BLOCK_ROWS = 1200, 3, 32
RATES = {
    "means": 0.03, "scales": 0.02, "quats": 0.01, "opacities": 0.05, "sh0": 0.02, "shN": 0.001,
}  # fmt: skip
BETAS, EPS = (0.9**BATCH, 0.999**BATCH), 1e-15
SETTINGS = StepSettings(1, RATES, BETAS, EPS, 0.2)
GEOMETRY_RATES = np.repeat([0.03, 0.02, 0.01, 0.05], [3, 3, 4, 1])
APPEARANCE_RATES = np.repeat([0.02, 0.001], [3, 9])
FLOOR = 0.01
"""See `assert_within_contract`, where sums are of a GPU, which adds in any order."""


def _ignore(ids: Tensor, splats: object) -> None:
    pass


def renderer_of(kind: str) -> Renderer:
    if kind == "tables":
        return TableCpuRenderer()
    return make_renderer("cpu" if kind == "copies" else "raster", RenderOptions())


@dataclass(frozen=True)
class Filmed:
    """A street and its views.

    Attributes:
        n_rows: of the street.
        smaller: what their logarithmic scales are smaller by.
        width: of a view, in pixels.
        n_steps: of a run.
    """

    n_rows: int = N_ROWS
    smaller: float = 0.0
    width: int = 96
    n_steps: int = 6

    @property
    def rows(self) -> Rows:
        rows = street_rows(self.n_rows, sh_degree=1)
        return {**rows, "scales": rows["scales"] - self.smaller}

    @property
    def views(self) -> list[View]:
        return street_views(focal=0.5, width=self.width, height=2 * self.width // 3)

    @property
    def batches(self) -> list[list[int]]:
        drives = drive(self.n_steps, BATCH)
        return [[*batch, 59] if step == 2 else batch for step, batch in enumerate(drives)]

    def seen(self) -> list[int]:
        """Rows of the view, for all views of the batches, at the beginning."""
        renderer, views = make_renderer("cpu", RenderOptions()), self.views
        return [
            len(cull(self.rows, cameras_of([views[i]]), renderer).ids)
            for batch in self.batches
            for i in batch
        ]


def run(
    path: Path,
    renderer: Renderer,
    most_rows: int | None,
    *,
    filmed: Filmed = Filmed(),
    settings: StepSettings = SETTINGS,
    slots: int = 16,
    told: Callable[[Engine], None] = lambda engine: None,
) -> tuple[dict[str, np.ndarray], list[float], int]:
    """Train a store of its own; what is in it then by plane and key, the losses, and the batches
    that ran in passes."""
    rows, views = filmed.rows, [view.to(renderer.device) for view in filmed.views]
    keys = torch.arange(filmed.n_rows, dtype=torch.int32)
    StoredRows.create(path, rows, keys, block_rows=BLOCK_ROWS, betas=BETAS, eps=EPS, ceilings=RATES)
    draw = torch.Generator().manual_seed(1)
    truths = [
        torch.randint(0, 256, (view.height, view.width, 3), generator=draw, dtype=torch.uint8)
        for view in views
    ]
    batches = filmed.batches
    losses, n_passes = [], 0
    with StoredRows.open(path, slots=slots, host_blocks=5, device=renderer.device) as stored:
        room = None if most_rows is None else BatchRoom(most_rows)
        engine = block_engine(stored, renderer, room=room)
        for step, batch in enumerate(batches):
            photographs = [(views[i], truths[i].to(renderer.device)) for i in batch]
            upcoming = [[views[i] for i in b] for b in batches[step + 1 : step + 3]]
            losses.append(float(engine.step(photographs, settings, _ignore, upcoming=upcoming)))
            n_passes += isinstance(engine.placement, BlockPasses)
            told(engine)
        engine.finish()
        assert stored.step == filmed.n_steps
        stored.snapshot()
    with BlockStore.open(path, read_only=True) as store:
        planes = store.read(store.blocks)
    order = planes["key"][:, 0].argsort()
    return {name: array[order] for name, array in planes.items()}, losses, n_passes


@pytest.mark.parametrize(("kind", "slots"), [("copies", 16), ("tables", 3)])
@one_threaded
def test_a_batch_that_comes_view_by_view_leaves_the_same_bits(
    tmp_path: Path, kind: str, slots: int
) -> None:
    """Some batches fit, others do not; rows have penalties as well."""
    settings = dataclasses.replace(SETTINGS, opacity_reg=0.01, scale_reg=0.02, regularise_all=False)
    expected, losses, n_none = run(tmp_path / "a", renderer_of(kind), None, settings=settings)
    found, again, n_passes = run(
        tmp_path / "b", renderer_of(kind), 85, settings=settings, slots=slots
    )
    assert n_none == 0
    assert 0 < n_passes < len(losses)
    assert again == losses
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, name)


LARGE = Filmed()
SMALL = Filmed(n_rows=4000, smaller=2.0, width=576, n_steps=3)
"""So small that no part of 16 pixels sees a twentieth of what the largest view sees."""


@pytest.mark.parametrize(("filmed", "share"), [(LARGE, 2), (SMALL, 5), (SMALL, 20)])
@one_threaded
def test_views_in_parts_train_within_the_contract(
    tmp_path: Path, filmed: Filmed, share: int
) -> None:
    """There is room for a share of the rows of the largest view."""
    n_crops = []

    def note(engine: Engine) -> None:
        n_crops.append(engine.stats.microbatches)

    seen = filmed.seen()
    most = max(seen) // share
    expected, losses, _ = run(tmp_path / "a", renderer_of("copies"), None, filmed=filmed)
    found, again, n_passes = run(
        tmp_path / "b", renderer_of("copies"), most, filmed=filmed, told=note
    )
    assert n_passes == len(losses)
    # A view is in so many parts at least, and the largest in more than its share.
    assert n_crops[-1] >= sum(max(1, -(-n // most)) for n in seen) > len(seen) + share
    assert again == pytest.approx(losses, rel=1e-5)
    assert_within_contract(found, expected)


def assert_within_contract(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], floor: float = 0.0
) -> None:
    """Rows of both are within 1e-5 of each other, of a value or a step where that is more.

    Args:
        floor: of gradients, as a share of the largest of their column. Values whose gradients were
            smaller throughout are not compared: where the parts of a gradient cancel, rounding
            decides its sign, and Adam's steps are as long as any.
    """
    for name in ("last_step", "key"):
        np.testing.assert_array_equal(found[name], expected[name], name)
    assert len(np.unique(found["last_step"])) > 2
    n_compared = 0
    for plane, rates in (("geometry", GEOMETRY_RATES), ("appearance", APPEARANCE_RATES)):
        ours, theirs = found[plane].astype(np.float64), expected[plane].astype(np.float64)
        # The second moment has a part (1 - b2) of a gradient's square, or more.
        gradients = np.sqrt(expected[f"{plane}.exp_avg_sq"] / (1.0 - BETAS[1]))
        is_compared = gradients >= floor * gradients.max(0)
        apart = np.abs(ours - theirs) / np.maximum(np.abs(theirs), rates)
        assert apart[is_compared].max() <= 1e-5, plane
        # A sum rounds by its parts, of which nothing is known where they cancel: by the column.
        for moment in ("exp_avg", "exp_avg_sq"):
            ours, theirs = (planes[f"{plane}.{moment}"] for planes in (found, expected))
            apart = np.abs(ours - theirs).max(0) / np.abs(theirs).max(0)
            assert (apart <= (1e-6 if floor == 0 else 1e-5)).all(), f"{plane}.{moment}"
        n_compared += int((is_compared & (gradients > 0)).sum())
    assert n_compared > 1000


@pytest.mark.gpu
@pytest.mark.parametrize("most_rows", [85, 30])
def test_over_full_batches_on_a_gpu_train_as_those_that_fit(tmp_path: Path, most_rows: int) -> None:
    filmed = Filmed(n_steps=3)
    expected, losses, _ = run(tmp_path / "a", renderer_of("raster"), None, filmed=filmed)
    found, again, n_passes = run(tmp_path / "b", renderer_of("raster"), most_rows, filmed=filmed)
    assert n_passes > 0
    assert again == pytest.approx(losses, rel=1e-4)
    assert_within_contract(found, expected, floor=FLOOR)


def test_a_part_of_16_pixels_that_has_no_room_names_the_memory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"within 16 pixels, and there is room for 1: more device"):
        run(tmp_path / "a", renderer_of("copies"), 1)


def view_of(width: int, height: int) -> View:
    K = torch.tensor([[32.0, 0.0, width / 2], [0.0, 32.0, height / 2], [0.0, 0.0, 1.0]])
    return View("v", torch.eye(4), K, width, height)


def test_views_are_halved_until_their_parts_have_room() -> None:
    """One row a pixel: parts tile the view, and none is smaller than need be."""
    views = [view_of(100, 64), view_of(20, 20), view_of(64, 300)]

    def count(parts: list) -> list[int]:
        return [part.crop.core.width * part.crop.core.height for part in parts]

    parts = cut_to_room(views, count, BatchRoom(1000))
    covered = [torch.zeros(view.height, view.width) for view in views]
    for part in parts:
        core = part.crop.core
        covered[part.index][core.y0 : core.y1, core.x0 : core.x1] += 1
        assert count([part])[0] <= 1000
        assert part.n_crops == 1 or count([part])[0] > 400
    assert all((pixels == 1).all() for pixels in covered)
    assert [part.index for part in parts] == sorted(part.index for part in parts)
    assert [part.n_crops for part in parts if part.index == 1] == [1]


def test_the_memory_that_suffices_for_all_views_of_the_batch_is_named() -> None:
    """Of all parts of all views, not of the first one that has no room."""
    room = BatchRoom(100, 2**30, lambda n_rows: 2**30 + (n_rows - 100) * 2**20)
    shown = {"a": 130, "b": 140, "c": 90}

    def count(parts: list) -> list[int]:
        return [shown[part.crop.view.name] - (part.crop.core.x0 == 0) for part in parts]

    views = [dataclasses.replace(view_of(40, SMALLEST), name=name) for name in shown]
    message = r"view b shows 140 Gaussians within 16 pixels.* 1.0 GiB is too small, 1064MiB suff"
    with pytest.raises(InputError, match=message):
        cut_to_room(views, count, room)
    assert len(cut_to_room(views, count, BatchRoom(140))) == 3
    with pytest.raises(InputError, match=r"more host memory is needed \(--host-memory\), whatever"):
        cut_to_room(views, count, BatchRoom(100, 2**30, lambda n_rows: None))


@pytest.mark.parametrize("slots", [None, 3000])
@pytest.mark.parametrize("gaps", [1.0, 1.1])
def test_a_device_of_the_size_that_is_named_has_room(slots: int | None, gaps: float) -> None:
    """However many slots the larger device has, and whatever gaps take."""
    config = FitConfig(
        Path("x"), Path("y"), offload="tide", strategy="fixed", tide=TideConfig(slots=slots)
    )

    def room_of(device: int) -> BlockRoom:
        return block_room(config, 10**9, Caps(device, 2**40, gaps=gaps), block_rows=1024)

    room = room_of(3 << 30)
    assert room.device_for is not None
    for n_rows in (room.batch_rows + 1, 2 * room.batch_rows, 50 * room.batch_rows):
        named = room.device_for(n_rows)
        assert named is not None
        assert room_of(named).batch_rows >= n_rows
        assert room_of(int(0.99 * named)).batch_rows < n_rows
    short = block_room(config, 10**9, Caps(2**40, 2**40, shared=True), block_rows=1024)
    assert short.device_for is not None
    assert short.device_for(2 * short.batch_rows) is None


@pytest.mark.parametrize("most_rows", [0, -3])
def test_room_for_no_row_is_refused(most_rows: int) -> None:
    with pytest.raises(ValueError, match=f"most_rows must be at least 1, got {most_rows}"):
        BatchRoom(most_rows)
