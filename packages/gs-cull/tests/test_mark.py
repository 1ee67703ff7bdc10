# SPDX-License-Identifier: Apache-2.0
"""Marks of an early, inflated list are what an exact cull finds."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

import gs_cull

from .oracle import Scene, random_scene

VIEWS = [0, 1, 2, 31, 32, 33, 64, 70]


def listed(scene: Scene, **options: Any) -> gs_cull.Visibility:
    """An early list: rows may still move by these distances."""
    wide = gs_cull.Inflate(means=0.3, scales=0.2, quats=0.1, opacities=0.5)
    return gs_cull.cull(*scene.arguments, opacities=scene.opacities, inflate=wide, **options)


def marks(scene: Scene, early: gs_cull.Visibility, **options: Any) -> Any:
    return gs_cull.mark(
        *scene.arguments, early.ids, early.mask, opacities=scene.opacities, **options
    )


def words_of(visibility: gs_cull.Visibility, n_rows: int) -> np.ndarray:
    """(N, words): the mask of every row, 0 for a row that no view sees."""
    words = np.zeros((n_rows, visibility.mask.shape[1]), np.uint32)
    words[visibility.ids] = visibility.mask
    return words


def on_torch(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value.view(np.int32) if value.dtype == np.uint32 else value)


def make_odd(scene: Scene, rng: np.random.Generator) -> None:
    """Rows of every kind that needs a decision of its own, a few of each."""
    n = len(scene.means)

    def some() -> np.ndarray:
        return rng.random(n) < 0.03

    for wrong in (np.nan, np.inf, -np.inf):
        for array in (scene.means, scene.scales, scene.quats):
            array[some(), rng.integers(array.shape[1])] = wrong
    scene.quats[some()] = 0
    scene.quats[some()] *= np.float32(1e-25)
    scene.scales[some()] = 85.0
    scene.scales[some()] = -100.0
    if scene.opacities is not None:
        scene.opacities[some()] = np.nan
        scene.opacities[some()] = -np.inf


def rects_of(rng: np.random.Generator, n_views: int) -> np.ndarray:
    low, side = rng.integers(0, 300, (n_views, 2)), rng.integers(1, 160, (n_views, 2))
    return np.concatenate([low, low + side], 1)


_FEW: dict[str, Any] = {
    "crops": True,
    "camera_model": "pinhole",
    "antialiased": True,
    "activated": False,
    "opacity": True,
    "radius_clip": 3.0,
    "eps2d": 0.3,
    "reach": 0.3,
    "tensors": False,
}


@example(seed=1, n=1, n_views=0, **_FEW)
@example(seed=2, n=0, n_views=70, **_FEW)
@example(seed=3, n=9_000, n_views=70, **_FEW)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.sampled_from([0, 1, 31, 400, 1_500]),
    n_views=st.sampled_from(VIEWS),
    crops=st.booleans(),
    camera_model=st.sampled_from(["pinhole", "ortho", "fisheye"]),
    antialiased=st.booleans(),
    activated=st.booleans(),
    opacity=st.booleans(),
    radius_clip=st.sampled_from([0.0, 3.0, 20.0]),
    eps2d=st.sampled_from([0.0, 0.3]),
    reach=st.sampled_from([0.0, 1e-3, 0.05, 0.3, 3.0]),
    tensors=st.booleans(),
)
def test_marked_rows_are_those_of_an_exact_cull(
    seed: int,
    n: int,
    n_views: int,
    crops: bool,
    camera_model: Any,
    antialiased: bool,
    activated: bool,
    opacity: bool,
    radius_clip: float,
    eps2d: float,
    reach: float,
    tensors: bool,
) -> None:
    rng = np.random.default_rng(seed)
    scene = random_scene(seed, n, n_views, log_scale=(-3.0, 1.5), opacity=opacity)
    if activated:
        scene.scales = np.exp(scene.scales)
        if opacity:
            scene.opacities = 1 / (1 + np.exp(-scene.opacities))
    make_odd(scene, rng)
    options: dict[str, Any] = {
        "camera_model": camera_model,
        "antialiased": antialiased,
        "activated": activated,
        "radius_clip": radius_clip,
        "eps2d": eps2d,
        "rects": rects_of(rng, n_views) if crops else None,
    }
    # Half of the components move to the limit of what the list allows for.
    step = {name: reach * part for name, part in (("means", 1), ("scales", 0.1), ("quats", 0.1))}
    inflate = gs_cull.Inflate(**step, opacities=reach)
    early = gs_cull.cull(*scene.arguments, opacities=scene.opacities, inflate=inflate, **options)
    for name, far in (*step.items(), ("opacities", reach)):
        array = getattr(scene, name)
        if array is not None:
            part = rng.choice([-1.0, 0.0, 0.5, 1.0], array.shape) * 0.9999
            array += (far * part).astype(np.float32)
    exact = gs_cull.cull(*scene.arguments, opacities=scene.opacities, **options)
    arguments, opacities = scene.arguments, scene.opacities
    ids, mask = early.ids, early.mask
    if tensors:
        arguments = tuple(map(on_torch, arguments))
        opacities, ids, mask = on_torch(opacities), on_torch(ids), on_torch(mask)
    found = gs_cull.mark(*arguments, ids, mask, opacities=opacities, **options)
    assert found.dtype == (torch.bool if tensors else np.bool_)
    assert found.shape == (len(early),)
    assert ids[found].tolist() == exact.ids.tolist()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    n_views=st.sampled_from(VIEWS),
    camera_model=st.sampled_from(["pinhole", "ortho", "fisheye"]),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_only_the_views_of_the_mask_are_asked(
    seed: int, n_views: int, camera_model: Any, density: float
) -> None:
    # Any rows in any order, more than once, with any views: not what a cull would list.
    rng = np.random.default_rng(seed)
    scene = random_scene(seed, 500, n_views)
    make_odd(scene, rng)
    exact = gs_cull.cull(*scene.arguments, opacities=scene.opacities, camera_model=camera_model)
    ids = rng.integers(0, 500, 700).astype(np.int32)
    bits = np.zeros((700, 32 * -(-n_views // 32)), np.uint8)
    bits[:, :n_views] = rng.random((700, n_views)) < density
    mask = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    mask = mask.reshape(700, -(-n_views // 32))
    early = gs_cull.Visibility(ids, mask, np.zeros(n_views, np.int32), 0)
    expected = (words_of(exact, 500)[ids] & mask).any(1)
    found = marks(scene, early, camera_model=camera_model)
    assert found.tolist() == expected.tolist()


def test_an_early_list_holds_rows_that_are_not_seen() -> None:
    scene = random_scene(1, 20_000, 3)
    found = marks(scene, listed(scene))
    assert 0 < found.sum() < len(found)


def test_blocks_may_have_made_the_list() -> None:
    scene = random_scene(2, 5_000, 5)
    blocks = gs_cull.Blocks.build(*scene.arguments[:3], block_size=64)
    early = listed(scene, blocks=blocks)
    exact = gs_cull.cull(*scene.arguments, opacities=scene.opacities)
    assert early.ids[marks(scene, early)].tolist() == exact.ids.tolist()


@pytest.mark.parametrize("tensors", [False, True])
def test_out_is_written_and_returned(tensors: bool) -> None:
    scene = random_scene(3, 3_000, 2)
    early = listed(scene)
    expected = marks(scene, early)
    assert expected.any()
    assert not expected.all()
    for start in (False, True):
        out = np.full(len(early), start)
        arguments = (*scene.arguments, early.ids, early.mask)
        opacities = scene.opacities
        if tensors:
            arguments, opacities = tuple(map(on_torch, arguments)), on_torch(opacities)
            out = on_torch(out)
        assert gs_cull.mark(*arguments, opacities=opacities, out=out) is out
        assert out.tolist() == expected.tolist()


def test_writing_to_out_is_a_change_for_autograd() -> None:
    scene = random_scene(4, 100, 1)
    early = listed(scene)
    arguments = tuple(map(on_torch, (*scene.arguments, early.ids, early.mask)))
    out = torch.ones(len(early), dtype=torch.bool)
    weights = torch.ones(len(early), requires_grad=True)
    sum_of_listed = (weights * out).sum()
    gs_cull.mark(*arguments, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum_of_listed.backward()
    with torch.inference_mode():
        gs_cull.mark(*arguments, out=torch.ones(len(early), dtype=torch.bool))


def test_inputs_stay_as_they_are() -> None:
    scene = random_scene(5, 1_000, 40)
    early = listed(scene)
    arrays = (*scene.arguments[:5], early.ids, early.mask, scene.opacities)
    before = [array.tobytes() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    marks(scene, early)
    assert [array.tobytes() for array in arrays] == before


def test_parameters_that_want_gradients_are_taken() -> None:
    scene = random_scene(6, 1_000, 2)
    early = listed(scene)
    tensors = [on_torch(a) for a in (*scene.arguments, early.ids, early.mask)]
    for tensor in tensors[:5]:
        tensor.requires_grad_()
    opacities = on_torch(scene.opacities).requires_grad_()
    found = gs_cull.mark(*tensors, opacities=opacities)
    assert found.tolist() == marks(scene, early).tolist()


def test_threads_may_mark_at_once() -> None:
    scene = random_scene(7, 30_000, 33)
    early = listed(scene)
    expected = marks(scene, early)
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(marks(scene, early))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.array_equal(one, expected) for one in found)


SCENE = random_scene(8, 50, 2)
EARLY = listed(SCENE)
N = len(EARLY)


def changed(name: str, change: Any) -> tuple[Scene, gs_cull.Visibility]:
    """The scene and its list with one array changed."""
    if name in ("ids", "mask"):
        return SCENE, dataclasses.replace(EARLY, **{name: change(getattr(EARLY, name))})
    return dataclasses.replace(SCENE, **{name: change(getattr(SCENE, name))}), EARLY


def with_id(number: int) -> Any:
    def change(ids: np.ndarray) -> np.ndarray:
        ids = ids.copy()
        ids[3] = number
        return ids

    return change


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("means", lambda a: a.astype("f8"), TypeError, "means must be float32, got float64"),
        ("means", np.asfortranarray, ValueError, "means must be contiguous"),
        ("scales", torch.from_numpy, TypeError, "scales must be a numpy array like means"),
        ("quats", lambda a: a[:-1], ValueError, r"quats must have shape \(50, 4\), got \(49, 4\)"),
        ("opacities", lambda a: a[:, None], ValueError, r"opacities must have shape \(50\)"),
        ("viewmats", lambda a: a[0], ValueError, r"viewmats must have shape \(B, 4, 4\)"),
        (
            "viewmats",
            lambda a: a + np.float32(np.nan),
            ValueError,
            "viewmats must be finite, got NaN or Inf in view 0",
        ),
        ("Ks", lambda a: a * np.float32(0), ValueError, "got singular intrinsics in view 0"),
        ("Ks", lambda a: a[:1], ValueError, "Ks must have one matrix per view, got 1 for 2 views"),
        ("width", lambda a: 0, ValueError, "width must be from 1 to 2\\^24, got 0 to 0"),
        ("height", lambda a: 9.5, TypeError, "height must be a whole number"),
        ("ids", lambda a: a.tolist(), TypeError, "ids must be a numpy array or a torch tensor"),
        ("ids", torch.from_numpy, TypeError, "ids must be a numpy array like means, got Tensor"),
        ("ids", lambda a: a.astype("i8"), TypeError, "ids must be int32, got int64"),
        ("ids", lambda a: a[:, None], ValueError, rf"ids must have shape \(any\), got \({N}, 1\)"),
        ("ids", lambda a: np.repeat(a, 2)[::2], ValueError, "ids must be contiguous"),
        ("ids", with_id(-1), IndexError, r"ids must lie in \[0, 50\), got -1"),
        ("ids", with_id(50), IndexError, r"ids must lie in \[0, 50\), got 50"),
        ("ids", lambda a: a[:-1], ValueError, rf"mask must have shape \({N - 1}, 1\), got \({N},"),
        ("mask", lambda a: None, TypeError, "mask must be a numpy array or a torch tensor"),
        ("mask", lambda a: a.astype("i4"), TypeError, "mask must be uint32, got int32"),
        ("mask", lambda a: a[:-1], ValueError, rf"mask must have shape \({N}, 1\), got \({N - 1},"),
        ("mask", lambda a: a[:, 0], ValueError, rf"mask must have shape \({N}, 1\), got \({N}\)"),
        (
            "mask",
            lambda a: np.repeat(a, 2, 1),
            ValueError,
            rf"mask must have shape \({N}, 1\), got \({N}, 2\)",
        ),
        ("mask", lambda a: np.repeat(a, 2, 0)[::2], ValueError, "mask must be contiguous"),
        (
            "mask",
            lambda a: a | np.uint32(4),
            ValueError,
            "mask must have no bits beyond its 2 views, got one for view 2 in row 0",
        ),
    ],
)  # fmt: skip
def test_wrong_arrays_are_named(name: str, change: Any, error: Any, message: str) -> None:
    scene, early = changed(name, change)
    out = np.arange(N) % 2 == 0
    before = out.copy()
    with pytest.raises(error, match=message):
        marks(scene, early, out=out)
    assert np.array_equal(out, before)


def read_only() -> np.ndarray:
    out = np.zeros(N, bool)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros(N, np.uint8), TypeError, "out must be bool, got uint8"),
        (np.zeros(N + 1, bool), ValueError, rf"out must have shape \({N}\), got \({N + 1}\)"),
        (np.zeros((N, 1), bool), ValueError, rf"out must have shape \({N}\), got \({N}, 1\)"),
        (np.zeros(2 * N, bool)[::2], ValueError, "out must be contiguous"),
        (torch.zeros(N, dtype=torch.bool), TypeError, "out must be a numpy array like means"),
        ([False] * N, TypeError, "out must be a numpy array or a torch tensor, got list"),
        (read_only(), (ValueError, TypeError), "^out must be .*"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        marks(SCENE, EARLY, out=out)
    assert not np.asarray(out).any()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"camera_model": "ftheta"}, ValueError, "camera_model must be .* got 'ftheta'"),
        ({"near": 0.0}, ValueError, "near must be positive for pinhole cameras, got 0.0"),
        ({"near": 2.0, "far": 1.0}, ValueError, "near must be less than far, got 2.0 and 1.0"),
        ({"eps2d": -0.1}, ValueError, "eps2d must be finite and at least 0, got -0.1"),
        ({"radius_clip": float("nan")}, ValueError, "radius_clip must be a number, got nan"),
        ({"activated": 1}, TypeError, "activated must be True or False, got 1"),
        ({"antialiased": "no"}, TypeError, "antialiased must be True or False, got 'no'"),
        ({"rects": np.zeros((3, 4), int)}, ValueError, r"rects must have shape \(2, 4\)"),
        ({"rects": np.zeros((2, 4))}, TypeError, "rects must be whole numbers, got float64"),
        ({"rects": np.array([[0, 0, 641, 460]] * 2)}, ValueError, "within the image"),
        ({"inflate": gs_cull.Inflate()}, TypeError, "unexpected keyword argument 'inflate'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        marks(SCENE, EARLY, **options)


def test_other_devices_are_refused() -> None:
    tensors = [on_torch(a) for a in (*SCENE.arguments, EARLY.ids, EARLY.mask)]
    tensors = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in tensors]
    with pytest.raises(ValueError, match="arrays must be on the CPU or a CUDA device, got meta"):
        gs_cull.mark(*tensors)
