# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments get one clear error each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import gs_cull

from .oracle import Scene, random_scene


def cull(scene: Scene, **options: Any) -> gs_cull.Visibility:
    return gs_cull.cull(*scene.arguments, opacities=scene.opacities, **options)


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        (
            "means",
            lambda a: a[:, :2],
            ValueError,
            r"means must have shape \(any, 3\), got \(50, 2\)",
        ),
        ("means", lambda a: a.astype("f8"), TypeError, "means must be float32, got float64"),
        ("means", lambda a: a.tolist(), TypeError, "means must be a numpy array or a torch tensor"),
        ("means", lambda a: None, TypeError, "means must be a numpy array or a torch tensor"),
        ("means", lambda a: np.asfortranarray(a), ValueError, "means must be contiguous"),
        (
            "scales",
            lambda a: a[:-1],
            ValueError,
            r"scales must have shape \(50, 3\), got \(49, 3\)",
        ),
        ("scales", lambda a: a.astype("f2"), TypeError, "scales must be float32, got float16"),
        ("scales", torch.from_numpy, TypeError, "scales must be a numpy array like means"),
        ("quats", lambda a: a[:, :3], ValueError, r"quats must have shape \(50, 4\)"),
        ("opacities", lambda a: a[:, None], ValueError, r"opacities must have shape \(50\)"),
        ("viewmats", lambda a: a[0], ValueError, r"viewmats must have shape \(B, 4, 4\)"),
        (
            "viewmats",
            lambda a: a + np.float32(np.inf),
            ValueError,
            "viewmats must be finite, .* in view 0",
        ),
        ("viewmats", lambda a: a.astype(int), TypeError, "viewmats must be floating point"),
        ("Ks", lambda a: a[:1], ValueError, "Ks must have one matrix per view, got 1 for 2 views"),
        (
            "Ks",
            lambda a: a * np.array([[0], [1], [1]], "f4"),
            ValueError,
            "got singular intrinsics",
        ),
        ("Ks", lambda a: a * np.float32(np.nan), ValueError, "got singular intrinsics in view 0"),
        ("width", lambda a: 0, ValueError, "width must be from 1 to 2\\^24, got 0 to 0"),
        ("width", lambda a: 640.0, TypeError, "width must be a whole number"),
        (
            "height",
            lambda a: np.array([1, 2, 3]),
            ValueError,
            r"height must be one number or \(2,\)",
        ),
    ],
)
def test_wrong_arrays_are_named(name: str, change: Any, error: Any, message: str) -> None:
    scene = random_scene(1, 50, 2)
    with pytest.raises(error, match=message):
        cull(dataclasses.replace(scene, **{name: change(getattr(scene, name))}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"camera_model": "ftheta"}, "camera_model must be .* or fisheye, got 'ftheta'"),
        ({"near": 0.0}, "near must be positive for pinhole cameras, got 0.0"),
        ({"near": 2.0, "far": 1.0}, "near must be less than far, got 2.0 and 1.0"),
        ({"far": float("nan")}, "near must be less than far"),
        ({"eps2d": -0.1}, "eps2d must be finite and at least 0, got -0.1"),
        ({"radius_clip": float("nan")}, "radius_clip must be a number, got nan"),
        ({"rects": np.zeros((3, 4), int)}, r"rects must have shape \(2, 4\), got \(3, 4\)"),
        (
            {"rects": np.array([[0, 0, 640, 460], [5, 0, 5, 9]])},
            r"rects must be .* got \[5, 0, 5, 9\] for the 640 x 460 pixels of view 1",
        ),
        ({"rects": np.array([[0, 0, 641, 460]] * 2)}, "within the image"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cull(random_scene(1, 50, 2), **options)


def test_rects_of_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="rects must be whole numbers, got float64"):
        cull(random_scene(1, 50, 2), rects=np.zeros((2, 4)))


def test_unaligned_arrays_are_refused() -> None:
    scene = random_scene(1, 50, 1)
    means = np.frombuffer(b"\0" + scene.means.tobytes(), "f4", offset=1).reshape(50, 3)
    message = r"means must be aligned to 4 bytes, got an address 1 beyond; pass a copy"
    with pytest.raises(ValueError, match=message):
        cull(dataclasses.replace(scene, means=means))
    cull(dataclasses.replace(scene, means=means.copy()))


def test_too_many_rows_are_refused() -> None:
    # 2^31 rows of one zero: no memory behind them. The count is checked before the strides.
    scene = random_scene(1, 50, 1)
    many = dataclasses.replace(scene, means=np.broadcast_to(np.float32(0), (2**31, 3)))
    with pytest.raises(
        ValueError, match="means must have fewer than 2\\^31 - 1 rows, got 2147483648"
    ):
        cull(many)


def test_other_devices_are_refused() -> None:
    scene = random_scene(1, 50, 2)
    tensors = [
        torch.from_numpy(a).to("meta") if isinstance(a, np.ndarray) else a for a in scene.arguments
    ]
    with pytest.raises(ValueError, match="arrays must be on the CPU or a CUDA device, got meta"):
        gs_cull.cull(*tensors)


def test_build_info_and_version_agree() -> None:
    info = gs_cull.build_info()
    assert info["version"] == gs_cull.__version__ == "0.1.0"
    assert info["simd_used"] in info["simd_compiled"]
    assert (info["cuda_toolkit"] is None) == (info["cuda_architectures"] is None)
