# SPDX-License-Identifier: Apache-2.0
"""A capture: posed photographs and the points to start from, checked and ready to train on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import FloatArray, Image
from gs_train.data.depths import DepthMap, GivenDepth
from gs_train.data.distortion import Pinhole
from gs_train.data.examine import examine
from gs_train.data.masks import (
    GivenMask,
    Mask,
    Mode,
    color_of_transparent,
    mask_of,
    unused_alpha_line,
    uses_alpha,
)
from gs_train.data.photographs import MOST_PIXELS
from gs_train.data.pixel_file import PixelSize
from gs_train.data.pixels import decode_rgb
from gs_train.data.prepare import (
    Job,
    Progress,
    cached_path,
    depth_job,
    mask_job,
    prepare_images,
)
from gs_train.data.readers.choose import read_source
from gs_train.errors import InputError
from gs_train.losses.background import BackgroundKind
from gs_train.losses.channels import n_channels
from gs_train.losses.depth import depth_bytes
from gs_train.names import printable
from gs_train.renderers.protocol import MetricDepth


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
        depth: map of the photograph, if any.
        behind: grey value, 0 to 255, that transparent pixels of the file are blended with.
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
    depth: DepthMap | GivenDepth | None = None
    behind: int = 0

    @property
    def n_channels(self) -> int:
        """Of what `read_image` returns."""
        return n_channels(is_masked=self.mask is not None, has_map=self.depth is not None)

    @property
    def pixel_size(self) -> PixelSize:
        """Of what `read_image` returns."""
        size = self.height, self.width
        return size if self.n_channels == 3 else (*size, self.n_channels)

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

    @property
    def has_depths(self) -> bool:
        """Whether a view has a depth map."""
        return any(view.depth is not None for view in self.views)


def load_capture(
    folder: str | Path,
    *,
    cache_dir: str | Path,
    max_side: int | None = None,
    test_every: int = 8,
    test_list: str | Path | None = None,
    max_pixels: int = MOST_PIXELS,
    skip_broken: bool = False,
    allow_missing: bool = False,
    mask: Mode = "auto",
    depths: bool = False,
    background: BackgroundKind = "black",
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
        allow_missing: images whose photograph is missing or no whole image are left out of the
            capture, before it is split; a line counts them.
        mask: what is done with masks, see :data:`gs_train.data.masks.Mode`.
        depths: whether training photographs have depth maps with them: those that a transforms.json
            names, else those of ``depths/``; see :mod:`gs_train.data.depths`.
        background: ``white`` makes transparent pixels white where alpha channels are no masks;
            anything else makes them black.
        progress: called with (images made, images to make) while images are made.

    Returns:
        The capture.

    Raises:
        InputError: anything about the data that the user can correct. All but pixels that are
            damaged within a file is found before ``cache_dir`` is touched.

    Cost: a few reads of each image file; about 0.2 s for 75 images and 44 thousand points. Making
        images costs as `prepare_images` says.
    """
    cache_dir = Path(cache_dir)
    if max_side is not None and max_side < 1:
        raise InputError(f"max_side must be at least 1 pixel, got {max_side}")
    if test_every < 0:
        raise InputError(f"test_every must be 0 or more, got {test_every}")
    found = examine(
        read_source(Path(folder)),
        max_side=max_side,
        test_every=test_every,
        test_list=test_list,
        max_pixels=max_pixels,
        skip_broken=skip_broken,
        mask=mask,
        depths=depths,
        allow_missing=allow_missing,
    )
    model, broken = found.model, set(found.broken)
    jobs, mask_jobs, masks = {}, {}, {}
    transparent = found.with_alpha if not uses_alpha(mask) else frozenset()
    behind = dict.fromkeys(transparent, 255 if color_of_transparent(background) == "white" else 0)
    depth_jobs, maps = {}, dict(enumerate(found.depths))
    for index, (image, path) in enumerate(zip(model.images, found.source.photographs)):
        if index in broken:
            continue
        camera, pinhole = model.cameras[image.camera_id], found.pinholes[image.camera_id]
        mask_of_view = mask_of(
            found.masks[index], path, has_alpha=index in found.with_alpha, mode=mask
        )
        if found.is_to_be_made(image):
            grey = behind.get(index, 0)
            made = cached_path(cache_dir, image.name, path, camera, pinhole, behind=grey)
            jobs[index] = Job(path, made, camera, pinhole, behind=grey)
            if mask_of_view is not None:
                job = mask_job(mask_of_view, cache_dir, image.name, camera, pinhole)
                mask_jobs[index] = job
                mask_of_view = replace(mask_of_view, path=job.target, kind="plane")
        masks[index] = mask_of_view
        own_size = pinhole.width, pinhole.height
        depth = maps[index]
        if depth is not None and (index in jobs or found.depth_sizes[index] != own_size):
            is_metric = isinstance(depth.of, MetricDepth)
            job = depth_job(depth.path, cache_dir, image.name, camera, pinhole, is_metric=is_metric)
            depth_jobs[index], maps[index] = job, replace(depth, path=job.target)
    every_job = (*jobs.values(), *mask_jobs.values(), *depth_jobs.values())
    all_jobs = {job.target: job for job in every_job}
    undecodable = prepare_images(
        list(all_jobs.values()), cache_dir, skip_broken=skip_broken, progress=progress
    )
    for of_kind in (jobs, mask_jobs):
        broken |= {index for index, job in of_kind.items() if job.target in undecodable}
    maps |= {index: None for index, job in depth_jobs.items() if job.target in undecodable}
    if broken.issuperset(found.train):
        raise InputError(
            f"training must be left one photograph that can be read, got {len(broken)} "
            f"broken of {len(model.images)}"
        )
    notes = list(found.notes)
    if found.with_alpha and not uses_alpha(mask):
        notes.append(unused_alpha_line(len(found.with_alpha), background))
    notes += [found.checked.note] if found.checked.note else []
    notes += [f"--skip-broken: {printable(str(error))}" for error in found.broken_masks.values()]
    notes += [f"--skip-broken: {printable(str(error))}" for error in undecodable.values()]
    views = tuple(
        view_of(
            image,
            found.pinholes[image.camera_id],
            path,
            jobs.get(index),
            masks.get(index),
            maps[index],
            behind.get(index, 0),
        )
        for index, (image, path) in enumerate(zip(model.images, found.source.photographs))
    )
    return Capture(
        found.source.folder,
        views,
        found.points,
        found.colors,
        found.train,
        found.test,
        frozenset(broken),
        tuple(notes),
    )


def read_image(view: CaptureView) -> NDArray[np.uint8]:
    """The pixels of a view.

    Returns:
        (view.height, view.width, 3) uint8 RGB, contiguous and writable: not to be written to where
        the array comes from ``view.pixels``. Of a view with a mask (view.height, view.width, 4);
        the fourth value is `KEPT`, `IGNORED` or `CARVED` of :mod:`gs_train.losses.mask`. Of a view
        with a depth map two values more: the low and the high byte of the map's.

    Raises:
        BrokenPhotographError: the file, or that of mask or depth map, is gone, truncated or
            corrupt, or has changed its size.
        InputError: ``view.pixels`` gave something else than such an array.
    """
    colours = _read_colours(view)
    if view.n_channels == 3:
        return colours
    pixels = np.empty((view.height, view.width, view.n_channels), np.uint8)
    pixels[..., :3] = colours
    size = view.width, view.height
    if view.mask is not None:
        pixels[..., 3] = view.mask.states(size)
    if view.depth is not None:
        pixels[..., -2:] = depth_bytes(view.depth.values(size))
    return pixels


def _read_colours(view: CaptureView) -> NDArray[np.uint8]:
    if view.pixels is None:
        return decode_rgb(view.path, size=(view.width, view.height), behind=view.behind)
    given = np.asarray(view.pixels())
    shape = (view.height, view.width, 3)
    if given.dtype != np.uint8 or given.shape != shape:
        raise InputError(
            f"pixels of {view.name} must be uint8 of shape {shape}, got {given.dtype} of "
            f"{given.shape}"
        )
    return np.require(given, requirements=("C", "W"))


def view_of(
    image: Image,
    pinhole: Pinhole,
    path: Path,
    job: Job | None = None,
    mask: Mask | None = None,
    depth: DepthMap | None = None,
    behind: int = 0,
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
        depth=depth,
        behind=behind,
    )
