# SPDX-License-Identifier: Apache-2.0
"""Batches and views that see more rows than there is room for train as those that fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from gs_train.renderers import Renderer, RenderOptions, View, make_renderer
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


def _ignore(ids: Tensor, splats: object) -> None:
    pass


def renderer_of(kind: str) -> Renderer:
    if kind == "tables":
        return TableCpuRenderer()
    return make_renderer("cpu" if kind == "copies" else "raster", RenderOptions())


def run(
    path: Path,
    renderer: Renderer,
    most_rows: int | None,
    *,
    settings: StepSettings = SETTINGS,
    slots: int = 16,
    n_steps: int = 6,
    told: Callable[[Engine], None] = lambda engine: None,
) -> tuple[dict[str, np.ndarray], list[float], int]:
    """Train a store of its own; what is in it then by plane and key, the losses, and the batches
    that ran in passes."""
    rows, views = (
        street_rows(N_ROWS, sh_degree=1),
        [view.to(renderer.device) for view in street_views(focal=0.5)],
    )
    keys = torch.arange(N_ROWS, dtype=torch.int32)
    StoredRows.create(path, rows, keys, block_rows=BLOCK_ROWS, betas=BETAS, eps=EPS, ceilings=RATES)
    draw = torch.Generator().manual_seed(1)
    truths = [
        torch.randint(0, 256, (view.height, view.width, 3), generator=draw, dtype=torch.uint8)
        for view in views
    ]
    batches = [
        [*batch, 59] if step == 2 else batch for step, batch in enumerate(drive(n_steps, BATCH))
    ]
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
        assert stored.step == n_steps
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


@one_threaded
def test_views_in_parts_train_within_the_contract(tmp_path: Path) -> None:
    n_crops = []

    def note(engine: Engine) -> None:
        n_crops.append(engine.stats.microbatches)

    expected, losses, _ = run(tmp_path / "a", renderer_of("copies"), None)
    found, again, n_passes = run(tmp_path / "b", renderer_of("copies"), 30, told=note)
    assert n_passes == len(losses)
    assert n_crops[-1] > 2 * BATCH * len(losses)
    assert again == pytest.approx(losses, rel=1e-5)
    for name in ("last_step", "key"):
        np.testing.assert_array_equal(found[name], expected[name])
    assert len(np.unique(found["last_step"])) > 4
    rates = np.array([RATES["means"]] * 3 + [RATES["scales"]] * 3 + [0.01] * 4 + [0.05])
    excess = np.abs(found["geometry"] - expected["geometry"])
    assert (excess <= 1e-5 * np.maximum(np.abs(expected["geometry"]), rates)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("most_rows", [85, 30])
def test_over_full_batches_on_a_gpu_train_as_those_that_fit(tmp_path: Path, most_rows: int) -> None:
    expected, losses, _ = run(tmp_path / "a", renderer_of("raster"), None, n_steps=3)
    found, again, n_passes = run(tmp_path / "b", renderer_of("raster"), most_rows, n_steps=3)
    assert n_passes > 0
    assert again == pytest.approx(losses, rel=1e-4)
    np.testing.assert_array_equal(found["last_step"], expected["last_step"])
    excess = np.abs(found["geometry"] - expected["geometry"])
    assert np.quantile(excess, 0.99) <= 1e-3


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
