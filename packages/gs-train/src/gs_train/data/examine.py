# SPDX-License-Identifier: Apache-2.0
"""What a capture must be for training to begin, found before any image is made."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data.check_depths import check_depths
from gs_train.data.colmap_records import FloatArray, Image, Model
from gs_train.data.depths import DepthMap, find_depths
from gs_train.data.distortion import Pinhole, is_distorted, undistorted_pinhole
from gs_train.data.files import open_file, readable
from gs_train.data.frame import Frame
from gs_train.data.left_out import without_missing
from gs_train.data.masks import Mode, alpha_line, find_masks, uses_alpha
from gs_train.data.photographs import (
    Checked,
    Found,
    check_masks,
    check_photographs,
    look_at_photographs,
)
from gs_train.data.pixels import BrokenPhotographError
from gs_train.data.ranges import FARTHEST_POINT, in_reach, require_cameras
from gs_train.data.readers.source import PointsOf, Source
from gs_train.data.resized import Size, model_of_sizes
from gs_train.errors import InputError
from gs_train.machine.usable_cores import usable_cores
from gs_train.names import printable


@dataclass(frozen=True)
class Examined:
    """A capture before any image is made: what :func:`gs_train.data.load_capture` refuses before it
    makes one is refused.

    Attributes:
        source: as it was read.
        model: with a camera of its own size for every photograph.
        points, colors, train, test, notes: as of :class:`gs_train.data.Capture`, without lines
            about alpha channels and broken photographs.
        checked: the photographs.
        masks: the file of each photograph's mask, None without one.
        broken_masks: why masks cannot be read, by index.
        with_alpha: photographs that may have transparent pixels and have no file of a mask.
        depths: the depth map of each photograph, None without one.
        depth_sizes: widths and heights of these.
        pinholes: what each camera becomes, by camera id.
        changed: those of the notes that are about photographs left out and made smaller.
    """

    source: Source
    model: Model
    points: FloatArray
    colors: NDArray[np.uint8]
    train: tuple[int, ...]
    test: tuple[int, ...]
    checked: Checked
    masks: Sequence[Path | None]
    broken_masks: dict[int, BrokenPhotographError]
    with_alpha: frozenset[int]
    depths: Sequence[DepthMap | None]
    depth_sizes: Sequence[Size | None]
    pinholes: dict[int, Pinhole]
    notes: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def broken(self) -> AbstractSet[int]:
        """Indices of images whose photograph or mask cannot be read."""
        return self.checked.broken | self.broken_masks.keys()

    def is_to_be_made(self, image: Image) -> bool:
        """Whether an image is to be undistorted or reduced."""
        camera, pinhole = self.model.cameras[image.camera_id], self.pinholes[image.camera_id]
        is_other = (pinhole.width, pinhole.height) != (camera.width, camera.height)
        return is_other or is_distorted(camera)

    @property
    def made(self) -> list[int]:
        """Indices of images that are to be undistorted or reduced, the broken ones left out."""
        return [
            index
            for index, image in enumerate(self.model.images)
            if index not in self.broken and self.is_to_be_made(image)
        ]


def examine(
    source: Source,
    *,
    max_side: int | None,
    test_every: int,
    test_list: str | Path | None,
    max_pixels: int,
    skip_broken: bool,
    mask: Mode,
    depths: bool = False,
    allow_missing: bool = False,
    looks: Callable[[], Sequence[Found]] | None = None,
) -> Examined:
    """The checks of :func:`gs_train.data.load_capture`, in its order, and no image made.

    Args:
        looks: gives what :func:`look_at_photographs` found, where somebody has looked already.

    Raises:
        InputError: see :func:`gs_train.data.load_capture`.
    """
    folder, every_name = source.image_folder, [image.name for image in source.model.images]

    def look() -> Sequence[Found]:
        if looks is not None:
            return looks()
        return look_at_photographs(folder, source.model, photographs, max_pixels=max_pixels)

    photographs, left_out = source.photographs, ""
    found: Sequence[Found] | None = None
    if allow_missing:
        source, found, left_out = without_missing(source, look())
    model = source.model
    names = [image.name for image in model.images]
    path = None if test_list is None else Path(test_list)
    train, test = split_of(names, test_every, path, source.held_out, listable=every_name)
    _, points, colors, notes = frame_and_points(model, source.points)
    if found is None:
        found = look()
    checked = check_photographs(
        folder, model, found, max_pixels=max_pixels, skip_broken=skip_broken
    )
    masks, masked = find_masks(source, mask)
    broken_masks = check_masks(
        model, checked.sizes, masks, max_pixels=max_pixels, skip_broken=skip_broken
    )
    with_alpha = frozenset(index for index in checked.with_alpha if masks[index] is None)
    if with_alpha and uses_alpha(mask):
        masked.append(alpha_line(len(with_alpha), len(names), mask))
    maps, told = find_depths(source, train, wanted=depths)
    maps, depth_sizes, broken_depths = check_depths(
        model, checked.sizes, maps, max_pixels=max_pixels, skip_broken=skip_broken
    )
    model, scaled = model_of_sizes(model, checked.sizes)
    pinholes = pinholes_of(model, max_side)
    changed = (*([left_out] if left_out else []), *reduced_line(model, pinholes, max_side))
    return Examined(
        source,
        model,
        points,
        colors,
        train,
        test,
        checked,
        masks,
        broken_masks,
        with_alpha,
        maps,
        depth_sizes,
        pinholes,
        (
            *notes,
            *scaled,
            *changed,
            *source.notes,
            *map(printable, (*masked, *told)),
            *broken_depths,
        ),
        changed,
    )


def frame_and_points(
    model: Model, points_of: PointsOf
) -> tuple[Frame, FloatArray, NDArray[np.uint8], list[str]]:
    """The frame that a model's cameras suggest, and the points that are in reach there.

    Returns:
        The frame, (P, 3) float64 positions with P > 0, (P, 3) uint8 colours, and a line about
        points that were left out, if any.

    Raises:
        InputError: the points cannot be read, none is in reach, or a camera is not.
    """
    names = [image.name for image in model.images]
    poses = np.stack([image.world_to_camera for image in model.images])
    frame = require_cameras(str(model.folder), names, poses)
    points, colors = points_of(frame)
    with np.errstate(over="ignore"):  # which leaves the point out
        near = in_reach(frame.points_in(points))
    if not near.any():
        raise InputError(
            f"{model.folder} must hold 3D points to start from, got {len(points)}"
            + (f", all further than {FARTHEST_POINT:g} times the cameras" if len(points) else "")
            + "; triangulate some (`colmap point_triangulator`) or import a point cloud into the "
            "model"
        )
    if near.all():
        return frame, points, colors, []
    note = (
        f"{int((~near).sum()):,} of {len(points):,} points are left out: not finite, or "
        f"further away than {FARTHEST_POINT:g} times the cameras, which is no place in float32"
    )
    return frame, points[near], colors[near], [note]


def pinholes_of(model: Model, max_side: int | None) -> dict[int, Pinhole]:
    """What each camera that took an image becomes, by camera id.

    Raises:
        InputError: an image cannot become that of a pinhole camera.

    Cost: as :func:`undistorted_pinhole` says of each camera, several at a time: COLMAP may give
        every image its own.
    """

    def pinhole(image: Image) -> Pinhole:
        camera = model.cameras[image.camera_id]
        try:
            if is_distorted(camera):
                return undistorted_pinhole(camera, max_side)
        except InputError as error:
            raise InputError(f"{model.folder}: image {image.name}: {error}") from None
        return Pinhole.of(camera, max_side)

    first: dict[int, Image] = {}
    for image in model.images:
        first.setdefault(image.camera_id, image)
    with ThreadPoolExecutor(min(8, usable_cores()), thread_name_prefix="gs-lenses") as pool:
        return dict(zip(first, pool.map(pinhole, first.values())))


def reduced_line(model: Model, pinholes: Mapping[int, Pinhole], max_side: int | None) -> list[str]:
    """A line about photographs that ``max_side`` makes smaller; none without any.

    Args:
        model: with a camera of its own size for every photograph.
        pinholes: of :func:`pinholes_of`.
    """
    cameras = [model.cameras[image.camera_id] for image in model.images]
    large = [c for c in cameras if max_side is not None and max(c.width, c.height) > max_side]
    if not large:
        return []
    largest = max(large, key=lambda camera: camera.width * camera.height)
    made = pinholes[largest.id]
    return [
        f"{len(large)} of {len(cameras)} photographs are made smaller, {largest.width}x"
        f"{largest.height} to {made.width}x{made.height} (--max-side {max_side}; --max-side off "
        "keeps their size)"
    ]


def split_of(
    names: Sequence[str],
    every: int,
    path: Path | None,
    held_out: AbstractSet[str] | None = None,
    *,
    listable: Sequence[str] | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices of the training and of the held-out ones of these names; see
    :func:`gs_train.data.load_capture`.

    Args:
        held_out: what the capture's own files hold out, instead of every so many-th; a list at
            ``path`` has the last word.

        listable: names that a list at ``path`` may hold; None: ``names``.

    Raises:
        InputError: the list of held-out ones cannot be read or names others, or none is left to
            train on.
    """
    if held_out is not None and path is None:
        test = tuple(index for index, name in enumerate(names) if name in held_out)
    else:
        test = _test_indices(names, every, path, names if listable is None else listable)
    train = tuple(sorted(set(range(len(names))) - set(test)))
    if not train:
        raise InputError(
            f"training must be left at least one image, got {len(names)} in all and "
            f"{len(test)} of them for testing; --test-every 0 or a shorter --test-list tests fewer"
        )
    return train, test


def _test_indices(
    names: Sequence[str], every: int, path: Path | None, listable: Sequence[str]
) -> tuple[int, ...]:
    if path is None:
        return tuple(range(0, len(names), every)) if every else ()
    with readable(path), open_file(path) as file:
        data = file.read()
    if b"\0" in data:
        raise InputError(f"test_list must be a text file in UTF-8, got {path}")
    text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")  # as names are
    lines = [line.strip() for line in text.split("\n")]  # a name may hold other breaks
    wanted = {line for line in lines if line and not line.startswith("#")}
    unknown = sorted(wanted - set(listable))
    if unknown:
        raise InputError(
            f"{path} must list names of the model's images, got {len(unknown)} unknown "
            f"(first {unknown[0]})"
        )
    return tuple(index for index, name in enumerate(names) if name in wanted)
