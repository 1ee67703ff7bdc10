# SPDX-License-Identifier: Apache-2.0
"""A capture made of arrays, or of anything that gives arrays, instead of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gs_train.data.capture import Capture, CaptureView
from gs_train.data.colmap_records import FloatArray
from gs_train.data.examine import split_of
from gs_train.data.frame import Frame
from gs_train.data.given_depths import given_depths
from gs_train.data.masks import MASK_DTYPES, GivenMask
from gs_train.data.random_points import N_RANDOM_POINTS, random_points
from gs_train.data.ranges import (
    FARTHEST_COORDINATE,
    FARTHEST_POINT,
    LARGEST_SIDE,
    in_reach,
    require_cameras,
    require_intrinsics,
)

FROM_PYTHON = Path("(given from Python)")
"""In place of a folder: of a capture that has none, and of a run's ``data`` then."""

_MOST_SKEW = 1e-4
"""Of a rotation times its transpose from the identity: float32 rotations are off by 1e-6."""


_HELD = (list, tuple, np.ndarray, type(None))
"""What gives arrays without reading them anew."""


def capture_from_arrays(
    images: Sequence[Any],
    viewmats: ArrayLike,
    Ks: ArrayLike,
    *,
    masks: Sequence[Any] | None = None,
    mask: Literal["ignore", "carve"] = "ignore",
    depths: Sequence[Any] | None = None,
    depth_params: ArrayLike | None = None,
    depth_unit: float | None = None,
    points: ArrayLike | None = None,
    colors: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    sizes: Iterable[tuple[int, int]] | None = None,
    test_every: int = 8,
    test: Iterable[str] | None = None,
) -> Capture:
    """A capture of V photographs that the caller holds, or reads one at a time.

    Args:
        images: V photographs, each (H, W, 3) uint8 RGB without lens distortion: a list of arrays,
            one array (V, H, W, 3), or any object of length V with a photograph as ``images[i]``.
            ``images[i]`` is called whenever a photograph is decoded, from several
            threads at a time, and must always give the same pixels. What such an object gives and
            memory cannot hold is kept in a file, as decoded photographs are.
        viewmats: (V, 4, 4) world to camera; x right, y down, z forward.
        Ks: (V, 3, 3), or (3, 3) for all, pixels; the centre of the first pixel is (0.5, 0.5).
        masks: V masks, each (H, W) bool or uint8 where False and 0 hide the photograph's pixel, or
            None for a photograph without a mask: a list, one array (V, H, W), or an object as
            ``images`` may be. Each is read once here. None: no photograph has a mask.
        mask: ignore leaves hidden pixels out of the loss and the scores; carve also trains them to
            be transparent.
        depths: V depth maps, each (H, W) uint16, or None for a photograph without a map: a list,
            one array (V, H, W), or an object as ``images`` may be. Each is read once here. They are
            looked at with ``depth_weight``, and those of held-out views are not used.
        depth_params: (V, 2), or (2,) for all: scale, above 0, and offset of each map. ``value /
            65536 * scale + offset`` is an inverse depth: one over the distance along the optical
            axis, in units of ``viewmats``.
        depth_unit: instead of ``depth_params``, for maps of depths: ``value * depth_unit`` is the
            distance along the optical axis in units of ``viewmats``, and 0 is unknown.
        points: (P, 3) positions in the world, P >= 4, to start from. None: 20,000 random points in
            the cube around the cameras' common focus that holds the cameras.
        colors: (P, 3) uint8 RGB of the points; None: grey.
        names: V different names; None: ``view_0`` and so on, with leading zeros.
        sizes: V pairs (width, height); None: each photograph is read once here to see.
        test_every: every so many-th view by sorted name is held out, the first included; 0: none.
        test: names of the held-out views instead.

    Returns:
        The capture, its views sorted by name.

    Raises:
        TypeError: an array's dtype differs from the above.
        ValueError: an array's shape or a number is out of range, or names disagree.
        InputError: cameras are too far apart for float32, or no view is left to train on.

    Cost: copies only arrays that are not contiguous or may not be written to.
    """
    n = len(images)
    if n < 1:
        raise ValueError("images must hold at least one photograph, got 0")
    poses = _numbers(viewmats, "viewmats", (n, 4, 4))
    intrinsics = np.asarray(Ks)
    intrinsics = np.stack([intrinsics] * n) if intrinsics.shape == (3, 3) else intrinsics
    intrinsics = _numbers(intrinsics, "Ks", (n, 3, 3))
    labels = [f"view_{i:0{len(str(n - 1))}}" for i in range(n)] if names is None else list(names)
    _check_names(labels, n)
    shapes = [_size_of(images[i], i) for i in range(n)] if sizes is None else _sizes(sizes, n)
    for i, (width, height) in enumerate(shapes):
        _check_camera(labels[i], poses[i], intrinsics[i], max(width, height))
    states = [None] * n if masks is None else _masks(masks, mask, shapes)
    maps = given_depths(depths, depth_params, depth_unit, shapes)
    order = sorted(range(n), key=lambda i: labels[i])
    frame = require_cameras("viewmats", [labels[i] for i in order], poses[order])
    places, notes = _points(points, frame)
    views = tuple(
        CaptureView(
            name=labels[i],
            path=FROM_PYTHON / labels[i],
            world_to_camera=poses[i],
            K=intrinsics[i],
            width=shapes[i][0],
            height=shapes[i][1],
            pixels=partial(images.__getitem__, i),
            mask=states[i],
            depth=maps[i],
        )
        for i in order
    )
    train_, test_ = _split([labels[i] for i in order], test_every, test)
    views = tuple(
        view if i in train_ else replace(view, depth=None) for i, view in enumerate(views)
    )
    near = in_reach(frame.points_in(places))
    chosen = _colors(colors, len(places))[near]
    if not near.any():
        raise ValueError(f"points must hold places near the cameras, got {len(places)} far away")
    if not near.all():
        notes.append(
            f"{int((~near).sum()):,} of {len(places):,} points are left out: further away than "
            f"{FARTHEST_POINT:g} times the cameras, they are no places in float32"
        )
    return Capture(
        FROM_PYTHON,
        views,
        places[near],
        chosen,
        train_,
        test_,
        notes=tuple(notes),
        in_memory=all(isinstance(given, _HELD) for given in (images, masks, depths)),
    )


def _numbers(values: ArrayLike, name: str, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be numbers, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} must be {shape}, got {array.shape}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return array


def _check_names(names: Sequence[str], n: int) -> None:
    if len(names) != n or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"names must be {n} texts, one for each image, got {list(names)!r:.80}")
    if len(set(names)) < n:
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ValueError(f"names must be different, got {twice!r:.80} more than once")


def _size_of(image: Any, index: int) -> tuple[int, int]:
    array = np.asarray(image)
    if array.dtype != np.uint8:
        raise TypeError(f"images must be uint8, got {array.dtype} of image {index}")
    if array.ndim != 3 or array.shape[2] != 3:
        raise ValueError(f"images must be (H, W, 3), got {array.shape} of image {index}")
    return array.shape[1], array.shape[0]


def _masks(
    masks: Sequence[Any], mode: str, sizes: Sequence[tuple[int, int]]
) -> list[GivenMask | None]:
    """Of photographs of these widths and heights."""
    if mode not in ("ignore", "carve"):
        raise ValueError(f"mask must be ignore or carve, got {mode!r:.80}")
    if len(masks) != len(sizes):
        raise ValueError(f"masks must be {len(sizes)}, one for each image, got {len(masks)}")
    found: list[GivenMask | None] = []
    for i, (width, height) in enumerate(sizes):
        given = masks[i]
        if given is not None:
            array = np.asarray(given)
            if array.dtype not in MASK_DTYPES:
                raise TypeError(f"masks must be bool or uint8, got {array.dtype} of mask {i}")
            if array.shape != (height, width):
                raise ValueError(f"masks must be {(height, width)}, got {array.shape} of mask {i}")
            given = GivenMask(partial(masks.__getitem__, i), carves=mode == "carve")
        found.append(given)
    return found


def _sizes(sizes: Iterable[tuple[int, int]], n: int) -> list[tuple[int, int]]:
    """Given sizes, as whole numbers."""
    pairs = np.array([tuple(pair) for pair in sizes])
    if pairs.dtype.kind not in "iu":
        raise TypeError(f"sizes must be whole numbers, got {pairs.dtype}")
    if pairs.shape != (n, 2):
        raise ValueError(f"sizes must be {n} pairs, one for each image, got {pairs.shape}")
    if pairs.min() < 1 or pairs.max() > LARGEST_SIDE:
        raise ValueError(f"sizes must be 1 to {LARGEST_SIDE:,}, got {pairs.min()} to {pairs.max()}")
    return [(int(width), int(height)) for width, height in pairs]


def _check_camera(name: str, pose: FloatArray, K: FloatArray, longest_side: int) -> None:
    rotation = pose[:3, :3]
    off = float(np.abs(rotation @ rotation.T - np.eye(3)).max())
    if off > _MOST_SKEW or np.linalg.det(rotation) < 0:
        raise ValueError(f"viewmats must begin with a rotation, that of {name} is none")
    if not np.array_equal(pose[3], (0, 0, 0, 1)):
        raise ValueError(f"viewmats must end with 0 0 0 1, got {pose[3].tolist()} of {name}")
    if np.abs(pose[:3, 3]).max() > FARTHEST_COORDINATE:
        raise ValueError(f"viewmats must be within {FARTHEST_COORDINATE:g}, that of {name} is not")
    if not (K[0, 1] == K[1, 0] == 0 and np.array_equal(K[2], (0, 0, 1))):
        raise ValueError(f"Ks must be [fx 0 cx, 0 fy cy, 0 0 1], got {K.tolist()} of {name}")
    require_intrinsics(f"Ks of {name}", K, (), longest_side)


def _points(points: ArrayLike | None, frame: Frame) -> tuple[FloatArray, list[str]]:
    """Places in the world to start from, and a line where they are made up."""
    if points is not None:
        array = np.asarray(points)
        return _numbers(array, "points", (max(4, len(array) if array.ndim else 0), 3)), []
    note = f"points are not given: training starts from {N_RANDOM_POINTS:,} random ones"
    return random_points(frame), [note]


def _colors(colors: ArrayLike | None, n: int) -> NDArray[np.uint8]:
    if colors is None:
        return np.full((n, 3), 128, np.uint8)
    array = np.asarray(colors)
    if array.dtype != np.uint8:
        raise TypeError(f"colors must be uint8, got {array.dtype}")
    if array.shape != (n, 3):
        raise ValueError(f"colors must be ({n}, 3), one for each point, got {array.shape}")
    return array


def _split(
    names: Sequence[str], test_every: int, test: Iterable[str] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if test is None:
        if test_every < 0:
            raise ValueError(f"test_every must be 0 or more, got {test_every}")
        return split_of(names, test_every, None)
    held_out = set(test)
    unknown = sorted(held_out - set(names))
    if unknown:
        raise ValueError(f"test must hold names of views, got {unknown[0]!r:.80}")
    train = tuple(i for i, name in enumerate(names) if name not in held_out)
    if not train:
        raise ValueError(f"test must leave a view to train on, got all {len(names)}")
    return train, tuple(i for i, name in enumerate(names) if name in held_out)
