# SPDX-License-Identifier: Apache-2.0
"""A capture: posed photographs and the points to start from, checked and ready to train on."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import FloatArray, Image, Model
from gs_train.data.distortion import Pinhole, is_distorted, undistorted_pinhole
from gs_train.data.files import open_file, readable
from gs_train.data.frame import Frame
from gs_train.data.masks import (
    GivenMask,
    Mask,
    Mode,
    alpha_line,
    find_masks,
    mask_of,
    uses_alpha,
)
from gs_train.data.photographs import MOST_PIXELS, check_masks, check_photographs
from gs_train.data.pixel_file import PixelSize
from gs_train.data.pixels import decode_rgb
from gs_train.data.prepare import Job, Progress, cached_path, mask_job, prepare_images
from gs_train.data.ranges import FARTHEST_POINT, in_reach, require_cameras
from gs_train.data.readers.choose import read_source
from gs_train.data.readers.source import PointsOf
from gs_train.data.resized import model_of_sizes
from gs_train.errors import InputError
from gs_train.losses.mask import CHANNELS
from gs_train.names import printable


@dataclass(frozen=True)
class CaptureView:
    """One posed pinhole image, on disk or in the caller's hands.

    Attributes:
        name: posix path relative to the image folder, unique within the capture.
        path: the file to read: the photograph itself, or an image made from the photograph. With
            ``pixels``, only the name of the photograph in messages.
        world_to_camera: (4, 4) float64; x right, y down, z forward.
        K: (3, 3) float64 pixels; the centre of the first pixel is (0.5, 0.5).
        width, height: pixels of the photograph.
        pixels: gives (height, width, 3) uint8 RGB, always the same, from any thread; None: the file
            at ``path`` is decoded.
        photograph: the photograph, where ``path`` is an image made from it; else None.
        mask: of the photograph, if any.
    """

    name: str
    path: Path
    world_to_camera: FloatArray
    K: FloatArray
    width: int
    height: int
    pixels: Callable[[], Any] | None = None
    photograph: Path | None = None
    mask: Mask | GivenMask | None = None

    @property
    def pixel_size(self) -> PixelSize:
        """Of what `read_image` returns."""
        size = self.height, self.width
        return size if self.mask is None else (*size, CHANNELS)

    @property
    def is_made(self) -> bool:
        """Whether an image made from the photograph is read in its place."""
        return self.photograph is not None


@dataclass(frozen=True)
class Capture:
    """A capture, as `load_capture` and `capture_from_arrays` return: photographs, poses, points.

    Attributes:
        folder: the capture's folder; `gs_train.data.arrays.FROM_PYTHON` where there is none.
        views: sorted by name.
        points: (P, 3) float64, the model's frame; P > 0, all finite and in reach of float32 in
            the training frame (:mod:`gs_train.data.ranges`).
        colors: (P, 3) uint8 RGB.
        train: ascending indices into ``views``; not empty.
        test: ascending indices into ``views``; disjoint from ``train``, together all.
        broken: indices of views whose photograph cannot be read; some of ``train`` are whole.
        notes: printable lines about content of the capture that is not used or was left out.
        in_memory: the photographs are arrays that the caller holds: a run keeps none of them in a
            file.
    """

    folder: Path
    views: tuple[CaptureView, ...]
    points: FloatArray
    colors: NDArray[np.uint8]
    train: tuple[int, ...]
    test: tuple[int, ...]
    broken: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    in_memory: bool = False

    @property
    def mask(self) -> Mode:
        """What becomes of pixels that masks of its views hide; ``off`` where no view has a mask."""
        masks = [view.mask for view in self.views if view.mask is not None]
        if not masks:
            return "off"
        return "carve" if any(mask.carves for mask in masks) else "ignore"


def load_capture(
    folder: str | Path,
    *,
    cache_dir: str | Path,
    max_side: int | None = None,
    test_every: int = 8,
    test_list: str | Path | None = None,
    max_pixels: int = MOST_PIXELS,
    skip_broken: bool = False,
    mask: Mode = "auto",
    progress: Progress | None = None,
) -> Capture:
    """Read a capture: ``images/`` and a COLMAP model in ``sparse/0`` or ``sparse``, or photographs
    with a transforms.json.

    Images from cameras with distortion are undistorted and images with a side above ``max_side``
    reduced, once, into ``cache_dir``; all other images are used in place. An image must have its
    camera's shape: where it is smaller or larger, intrinsics are scaled, and a line says so. EXIF
    orientation is ignored, as COLMAP does.

    Args:
        folder: the capture: its folder, or a transforms file.
        cache_dir: where made images go; not created when none is needed.
        max_side: pixels; the longest side of any image is at most this. None keeps sizes.
        test_every: every so many-th of the sorted names is for testing, the first one included; 0
            for none. Not used where the capture's files say which images are for testing.
        test_list: a text file with the test images instead, one name a line; blank lines and lines
            that start with ``#`` are skipped.
        max_pixels: of one photograph; a larger photograph is refused before memory is taken.
        skip_broken: photographs that are missing, no image or break off are listed in the result's
            ``broken``; their views stay, so that the split is that of the whole capture.
        mask: what is done with masks, see :data:`gs_train.data.masks.Mode`.
        progress: called with (images made, images to make) while images are made.

    Returns:
        The capture.

    Raises:
        InputError: anything about the data that the user can correct. All but pixels that are
            damaged within a file is found before ``cache_dir`` is touched.

    Cost: a few reads of each image file; about 0.2 s for 75 images and 44 thousand points. Making
        images costs as `prepare_images` says.
    """
    folder, cache_dir = Path(folder), Path(cache_dir)
    if max_side is not None and max_side < 1:
        raise InputError(f"max_side must be at least 1 pixel, got {max_side}")
    if test_every < 0:
        raise InputError(f"test_every must be 0 or more, got {test_every}")

    source = read_source(folder)
    model = source.model
    names = [image.name for image in model.images]
    train, test = split_of(
        names, test_every, None if test_list is None else Path(test_list), source.held_out
    )
    _, points, colors, notes = frame_and_points(model, source.points)
    checked = check_photographs(
        source.image_folder,
        model,
        source.photographs,
        max_pixels=max_pixels,
        skip_broken=skip_broken,
    )
    broken = set(checked.broken)
    masks, masked = find_masks(source, mask)
    sizes = checked.sizes
    broken_masks = check_masks(model, sizes, masks, max_pixels=max_pixels, skip_broken=skip_broken)
    broken |= broken_masks.keys()
    with_alpha = {index for index in checked.with_alpha if masks[index] is None}
    if with_alpha and uses_alpha(mask):
        masked.append(alpha_line(len(with_alpha), len(names), mask))
    model, scaled = model_of_sizes(model, sizes)
    pinholes = pinholes_of(model, max_side)

    jobs, mask_jobs, found = {}, {}, {}
    for index, (image, path) in enumerate(zip(model.images, source.photographs)):
        camera, pinhole = model.cameras[image.camera_id], pinholes[image.camera_id]
        is_other = (pinhole.width, pinhole.height) != (camera.width, camera.height)
        if index in broken:
            continue
        is_made = is_distorted(camera) or is_other
        if is_made:
            made = cached_path(cache_dir, image.name, path, camera, pinhole)
            jobs[index] = Job(path, made, camera, pinhole)
        own = mask_of(masks[index], path, has_alpha=index in with_alpha, mode=mask)
        if own is not None and is_made:
            mask_jobs[index] = mask_job(own, cache_dir, image.name, camera, pinhole)
            own = replace(own, path=mask_jobs[index].target, kind="plane")
        found[index] = own
    all_jobs = {job.target: job for job in (*jobs.values(), *mask_jobs.values())}
    undecodable = prepare_images(
        list(all_jobs.values()), cache_dir, skip_broken=skip_broken, progress=progress
    )
    for of_kind in (jobs, mask_jobs):
        broken |= {index for index, job in of_kind.items() if job.target in undecodable}
    if broken.issuperset(train):
        raise InputError(
            f"training must be left one photograph that can be read, got {len(broken)} "
            f"broken of {len(names)}"
        )
    notes += (*scaled, *source.notes, *map(printable, masked))
    if with_alpha and not uses_alpha(mask):
        notes.append(
            f"alpha channels found in {len(with_alpha)} photographs, not used: what is "
            "transparent is trained on as black (--mask carve or ignore uses them)"
        )
    notes += [checked.note] if checked.note else []
    notes += [f"--skip-broken: {printable(str(error))}" for error in broken_masks.values()]
    notes += [f"--skip-broken: {printable(str(error))}" for error in undecodable.values()]
    views = tuple(
        view_of(image, pinholes[image.camera_id], path, jobs.get(index), found.get(index))
        for index, (image, path) in enumerate(zip(model.images, source.photographs))
    )
    return Capture(
        source.folder, views, points, colors, train, test, frozenset(broken), tuple(notes)
    )


def read_image(view: CaptureView) -> NDArray[np.uint8]:
    """The pixels of a view.

    Returns:
        (view.height, view.width, 3) uint8 RGB, contiguous and writable: not to be written to where
        the array comes from ``view.pixels``. Of a view with a mask (view.height, view.width, 4);
        the fourth value is `KEPT`, `IGNORED` or `CARVED` of :mod:`gs_train.losses.mask`.

    Raises:
        BrokenPhotographError: the file, or that of the mask, is gone, truncated or corrupt, or has
            changed its size.
        InputError: ``view.pixels`` gave something else than such an array.
    """
    colours = _read_colours(view)
    if view.mask is None:
        return colours
    pixels = np.empty((view.height, view.width, CHANNELS), np.uint8)
    pixels[..., :3] = colours
    pixels[..., 3] = view.mask.states((view.width, view.height))
    return pixels


def _read_colours(view: CaptureView) -> NDArray[np.uint8]:
    if view.pixels is None:
        return decode_rgb(view.path, size=(view.width, view.height))
    given = np.asarray(view.pixels())
    shape = (view.height, view.width, 3)
    if given.dtype != np.uint8 or given.shape != shape:
        raise InputError(
            f"pixels of {view.name} must be uint8 of shape {shape}, got {given.dtype} of "
            f"{given.shape}"
        )
    return np.require(given, requirements=("C", "W"))


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


def view_of(
    image: Image, pinhole: Pinhole, path: Path, job: Job | None = None, mask: Mask | None = None
) -> CaptureView:
    """The view of the photograph at ``path``, or of the image that ``job`` makes from it."""
    return CaptureView(
        image.name,
        path if job is None else job.target,
        image.world_to_camera,
        pinhole.K,
        pinhole.width,
        pinhole.height,
        photograph=None if job is None else path,
        mask=mask,
    )


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
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="gs-lenses") as pool:
        return dict(zip(first, pool.map(pinhole, first.values())))


def split_of(
    names: Sequence[str], every: int, path: Path | None, held_out: AbstractSet[str] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Indices of the training and of the held-out ones of these names; see :func:`load_capture`.

    Args:
        held_out: what the capture's own files hold out, instead of every so many-th; a list at
            ``path`` has the last word.

    Raises:
        InputError: the list of held-out ones cannot be read or names others, or none is left to
            train on.
    """
    if held_out is not None and path is None:
        test = tuple(index for index, name in enumerate(names) if name in held_out)
    else:
        test = _test_indices(names, every, path)
    train = tuple(sorted(set(range(len(names))) - set(test)))
    if not train:
        raise InputError(
            f"training must be left at least one image, got {len(names)} in all and "
            f"{len(test)} of them for testing; --test-every 0 or a shorter --test-list tests fewer"
        )
    return train, test


def _test_indices(names: Sequence[str], every: int, path: Path | None) -> tuple[int, ...]:
    if path is None:
        return tuple(range(0, len(names), every)) if every else ()
    with readable(path), open_file(path) as file:
        data = file.read()
    if b"\0" in data:
        raise InputError(f"test_list must be a text file in UTF-8, got {path}")
    text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")  # as names are
    lines = [line.strip() for line in text.split("\n")]  # a name may hold other breaks
    wanted = {line for line in lines if line and not line.startswith("#")}
    unknown = sorted(wanted - set(names))
    if unknown:
        raise InputError(
            f"{path} must list names of the model's images, got {len(unknown)} unknown "
            f"(first {unknown[0]})"
        )
    return tuple(index for index, name in enumerate(names) if name in wanted)
