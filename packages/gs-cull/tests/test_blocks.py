# SPDX-License-Identifier: Apache-2.0
"""Blocks change how long culling takes, never what it finds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import gs_cull

from .oracle import Scene, random_scene


def same(a: gs_cull.Visibility, b: gs_cull.Visibility) -> None:
    assert a.ids.tolist() == b.ids.tolist()
    assert a.mask.tolist() == b.mask.tolist()
    assert a.counts.tolist() == b.counts.tolist()


def rows_of(scene: Scene) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return scene.means, scene.scales, scene.quats


def aim(scene: Scene, where: str) -> None:
    """Turn all cameras: inside the rows, behind them, or so that everything shows."""
    scene.viewmats[:] = np.eye(4)
    distance = {"inside": 0.0, "behind": -1e3, "everything": 1e3}[where]
    scene.viewmats[:, 2, 3] = distance


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(0, 700),
    n_views=st.integers(0, 40),
    block_size=st.sampled_from([32, 64, 256]),
    sort=st.booleans(),
    where=st.sampled_from(["random", "inside", "behind", "everything"]),
    camera_model=st.sampled_from(["pinhole", "ortho", "fisheye"]),
    as_torch=st.booleans(),
)
def test_culling_with_blocks_gives_the_same_set(
    seed: int,
    n: int,
    n_views: int,
    block_size: int,
    sort: bool,
    where: str,
    camera_model: Any,
    as_torch: bool,
) -> None:
    scene = random_scene(seed, n, n_views, log_scale=(-3.0, 1.5))
    if where != "random":
        aim(scene, where)
    scene.means[::17] = np.nan
    arguments: Any = scene.arguments
    opacities: Any = scene.opacities
    if as_torch:
        arguments = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments]
        opacities = torch.from_numpy(opacities)
    options: dict[str, Any] = {"opacities": opacities, "camera_model": camera_model}
    blocks = gs_cull.Blocks.build(*arguments[:3], block_size=block_size, sort=sort)
    without = gs_cull.cull(*arguments, **options)
    same(gs_cull.cull(*arguments, blocks=blocks, **options), without)
    assert blocks.n_not_finite == len(range(0, n, 17))
    if where == "behind" and camera_model == "pinhole":
        assert len(without) == 0
    if where == "everything" and camera_model == "pinhole" and n_views:
        # All but those too transparent: 1 - sigmoid is 1 / 255 at a logit of -5.54.
        solid = (scene.opacities > -5.5) & np.isfinite(scene.means).all(1)
        assert np.isin(np.flatnonzero(solid), np.asarray(without.ids)).all()


def test_most_blocks_are_skipped_in_a_large_scene() -> None:
    scene = random_scene(1, 200_000, 3, spread=100.0, log_scale=(-3.0, 0.3))
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=256)
    seen = blocks.visible(*scene.arguments[3:])
    assert seen.n_views == 3
    assert 0 < seen.counts.max() < 0.6 * len(blocks)


def test_visible_blocks_hold_every_visible_row() -> None:
    scene = random_scene(2, 20_000, 35)
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=128)
    place = np.empty(20_000, int)
    place[blocks.order] = np.arange(20_000)
    rows = gs_cull.cull(*scene.arguments, opacities=scene.opacities)
    seen = blocks.visible(*scene.arguments[3:])
    for view in range(35):
        assert np.isin(place[rows.view(view)] // 128, seen.view(view)).all()


def test_order_is_a_permutation_along_the_curve() -> None:
    scene = random_scene(3, 5_000, 1)
    scene.means[7] = np.inf
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=64)
    assert sorted(blocks.order) == list(range(5_000))
    assert blocks.order[-1] == 7
    # The curve, bit by bit from its definition.
    low = np.delete(scene.means, 7, 0).min(0).astype(float)
    extent = (np.delete(scene.means, 7, 0).max(0) - low).max()
    cells = ((scene.means.astype(float) - low) * (2.0**21 / extent)).clip(0, 2**21 - 1)
    cells = np.nan_to_num(cells).astype(np.int64)
    codes = np.zeros(5_000, object)
    for bit in range(21):
        for axis in range(3):
            codes += (cells[:, axis] >> bit & 1).astype(object) << (3 * bit + axis)
    along = [codes[i] for i in blocks.order[:-1]]
    assert along == sorted(along)


@pytest.mark.parametrize("activated", [False, True])
def test_bounds_with_slack_hold_under_movement(activated: bool) -> None:
    rng = np.random.default_rng(4)
    scene = random_scene(4, 8_000, 12, log_scale=(-2.0, 0.5))
    if activated:
        scene.scales = np.exp(scene.scales)
        scene.opacities = 1 / (1 + np.exp(-scene.opacities))
    blocks = gs_cull.Blocks.build(
        *rows_of(scene), block_size=64, activated=activated, slack_means=0.3, slack_scales=0.2
    )
    for step in range(4):
        if step == 3:
            blocks.widen(means=0.5, scales=0.1)
        reach = (0.8, 0.3) if step == 3 else (0.3, 0.2)
        moved = Scene(**vars(scene))
        # To the limit, in a random direction each.
        moved.means = scene.means + np.float32(reach[0] * 0.999) * rng.choice(
            [-1, 1], scene.means.shape
        ).astype(np.float32)
        moved.scales = scene.scales + np.float32(reach[1] * 0.999) * rng.choice(
            [0, 1], scene.scales.shape
        ).astype(np.float32)
        moved.quats = rng.normal(size=scene.quats.shape).astype(np.float32)
        options: dict[str, Any] = {"opacities": moved.opacities, "activated": activated}
        same(
            gs_cull.cull(*moved.arguments, blocks=blocks, **options),
            gs_cull.cull(*moved.arguments, **options),
        )


def test_without_slack_movement_is_missed_and_refit_repairs_it() -> None:
    scene = random_scene(5, 4_000, 8)
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=64)
    scene.means += np.float32(3.0)
    stale = gs_cull.cull(*scene.arguments, blocks=blocks)
    fresh = gs_cull.cull(*scene.arguments)
    assert len(stale) < len(fresh)
    blocks.refit(*rows_of(scene))
    same(gs_cull.cull(*scene.arguments, blocks=blocks), fresh)


def test_refit_of_touched_blocks_leaves_the_others() -> None:
    scene = random_scene(6, 1_000, 4)
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=64, sort=False, slack_means=0.1)
    blocks.widen(means=1.0)
    before = blocks.lower.copy()
    scene.means[128:192] += np.float32(50.0)
    scene.means[640] = np.nan
    blocks.refit(*rows_of(scene), blocks=np.array([2, 10]))
    assert (np.flatnonzero((blocks.lower != before).any(1)) == [2]).all() or (
        np.flatnonzero((blocks.lower != before).any(1)).tolist() == [2, 10]
    )
    assert np.allclose(blocks.slack[[2, 10], 0], 0.1)
    assert np.allclose(np.delete(blocks.slack[:, 0], [2, 10]), 1.1)
    assert blocks.n_not_finite == 1
    same(gs_cull.cull(*scene.arguments, blocks=blocks), gs_cull.cull(*scene.arguments))


def test_bounds_from_chunks_equal_bounds_of_the_whole() -> None:
    scene = random_scene(7, 1_000, 1)
    whole = gs_cull.Blocks.build(*rows_of(scene), block_size=64, sort=False)
    edges = [0, 64, 320, 960, 1_000]
    chunks = (
        (scene.means[a:b], scene.scales[a:b], scene.quats[a:b])
        for a, b in itertools.pairwise(edges)
    )
    pieces = gs_cull.Blocks.from_chunks(chunks, 1_000, 64)
    for name in ("lower", "upper", "scale", "slack", "not_finite"):
        assert (getattr(pieces, name) == getattr(whole, name)).all()


@pytest.mark.parametrize("sort", [True, False])
def test_saved_blocks_come_back(tmp_path: Path, sort: bool) -> None:
    scene = random_scene(8, 1_000, 5)
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=64, sort=sort, slack_means=0.25)
    blocks.save(tmp_path / "scene.blocks")
    back = gs_cull.Blocks.load(tmp_path / "scene.blocks")
    assert list(tmp_path.iterdir()) == [tmp_path / "scene.blocks"]
    same(
        gs_cull.cull(*scene.arguments, blocks=back),
        gs_cull.cull(*scene.arguments, blocks=blocks),
    )
    back.refit(*rows_of(scene))
    assert np.allclose(back.slack[:, 0], 0.25)
    moved = back.to("cpu")
    assert isinstance(moved.lower, torch.Tensor)
    assert moved.lower.tolist() == back.lower.tolist()


def test_a_damaged_file_of_blocks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blocks"
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"^path must be a file of blocks, got "):
        gs_cull.Blocks.load(path)
    with open(path, "wb") as file:
        np.savez(file, version=2)
    with pytest.raises(ValueError, match="path must hold blocks of format version 1, got 2"):
        gs_cull.Blocks.load(path)
    with open(path, "wb") as file:
        np.savez(file, version=1, n_rows=3)
    with pytest.raises(ValueError, match=r"path must hold blocks, got .* without \['activated'"):
        gs_cull.Blocks.load(path)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(33, 500), n_slots=st.integers(0, 12))
def test_blocks_in_slots_give_global_ids(seed: int, n: int, n_slots: int) -> None:
    rng = np.random.default_rng(seed)
    size = 32
    scene = random_scene(seed, n, 33)
    scene.means[::17] = np.nan
    blocks = gs_cull.Blocks.build(*rows_of(scene), block_size=size, sort=False)
    slots = rng.permutation(len(blocks))[:n_slots]
    slots = np.concatenate([slots, np.full(2, -1)])
    rng.shuffle(slots)
    tables = [np.full((len(slots) * size, a.shape[1]), np.nan, np.float32) for a in rows_of(scene)]
    opacities = np.full(len(slots) * size, np.nan, np.float32)
    present = np.zeros(n, bool)
    for slot, block in enumerate(slots):
        if block < 0:
            continue
        rows = np.arange(block * size, min((block + 1) * size, n))
        present[rows] = True
        for table, array in zip(tables, rows_of(scene)):
            table[slot * size : slot * size + len(rows)] = array[rows]
        opacities[slot * size : slot * size + len(rows)] = scene.opacities[rows]
    resident = blocks.in_slots(slots)
    views = scene.arguments[3:]
    found = gs_cull.cull(*tables, *views, opacities=opacities, blocks=resident)
    whole = gs_cull.cull(*scene.arguments, opacities=scene.opacities)
    kept = present[whole.ids]
    assert found.ids.tolist() == whole.ids[kept].tolist()
    assert found.mask.tolist() == whole.mask[kept].tolist()
    assert found.n_not_finite == present[::17].sum()
    resident.refit(*tables)
    again = gs_cull.cull(*tables, *views, opacities=opacities, blocks=resident)
    same(again, found)


def test_wrong_blocks_are_refused() -> None:
    scene = random_scene(9, 200, 2)
    build = gs_cull.Blocks.build
    for size in (0, 48, -32, 32.0):
        with pytest.raises(
            ValueError, match=f"block_size must be a positive multiple of 32, got {size}"
        ):
            build(*rows_of(scene), block_size=size)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slack_means must be finite and at least 0, got -1"):
        build(*rows_of(scene), slack_means=-1)
    blocks = build(*rows_of(scene), block_size=32)
    with pytest.raises(ValueError, match="blocks must be built with activated=True"):
        gs_cull.cull(*scene.arguments, blocks=blocks, activated=True)
    short = random_scene(9, 100, 2)
    with pytest.raises(ValueError, match="blocks must be of 100 rows, got those of 200"):
        gs_cull.cull(*short.arguments, blocks=blocks)
    with pytest.raises(ValueError, match="blocks must be of 100 rows, got those of 200"):
        blocks.refit(*rows_of(short))
    with pytest.raises(IndexError, match="blocks must be from 0 to 6, got 3 to 7"):
        blocks.widen(means=1.0, blocks=np.array([3, 7]))
    with pytest.raises(TypeError, match="blocks must be"):
        blocks.refit(*rows_of(scene), blocks=np.array([0.5]))
    with pytest.raises(ValueError, match="means must be finite and at least 0, got nan"):
        blocks.widen(means=float("nan"))
    with pytest.raises(TypeError, match="blocks must be a numpy array like means"):
        gs_cull.cull(*scene.arguments, blocks=blocks.to("cpu"))
    with pytest.raises(ValueError, match="blocks must be stored in order, got permuted rows"):
        blocks.in_slots(np.array([0]))
    ordered = build(*rows_of(scene), block_size=32, sort=False)
    with pytest.raises(ValueError, match="slots must name each block at most once"):
        ordered.in_slots(np.array([1, -1, 1]))
    with pytest.raises(IndexError, match="slots must be from -1 to 6, got 0 to 7"):
        ordered.in_slots(np.array([0, 7]))
    with pytest.raises(TypeError, match="slots must be"):
        ordered.in_slots(np.array([0.0]))
    with pytest.raises(ValueError, match="means must have 64 rows, 2 slots of 32, got 200"):
        gs_cull.cull(*scene.arguments, blocks=ordered.in_slots(np.array([0, 1])))
    rows = rows_of(scene)
    halves = [tuple(a[:40] for a in rows), tuple(a[40:] for a in rows)]
    with pytest.raises(ValueError, match="chunks must hold whole blocks of 32 rows except for the"):
        gs_cull.Blocks.from_chunks(halves, 200, 32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunks must hold n_rows = 300 rows, got 200"):
        gs_cull.Blocks.from_chunks([rows], 300, 32)
    with pytest.raises(ValueError, match="chunks must hold at least one chunk, got none"):
        gs_cull.Blocks.from_chunks([], 0, 32)
    broken = scene.viewmats.copy()
    broken[1, 0, 0] = np.nan
    with pytest.raises(ValueError, match="viewmats must be finite, got NaN or Inf in view 1"):
        ordered.visible(broken, *scene.arguments[4:])
