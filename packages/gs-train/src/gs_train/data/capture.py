# SPDX-License-Identifier: Apache-2.0
"""A capture: posed photographs and the points to start from, checked and ready to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap import find_model, read_model, read_points
from gs_train.data.colmap_records import Camera, FloatArray, Image, Model
from gs_train.data.distortion import Pinhole, is_distorted, undistorted_pinhole
from gs_train.data.pixels import decode_rgb, image_size
from gs_train.data.prepare import Job, Progress, cached_path, prepare_images
from gs_train.errors import InputError


@dataclass(frozen=True)
class CaptureView:
    """One posed pinhole image on disk.

    Attributes:
        name: posix path relative to the image folder, unique within the capture.
        path: the file to read: the photograph itself, or what was made from it.
        world_to_camera: (4, 4) float64; x right, y down, z forward.
        K: (3, 3) float64 pixels; the centre of the first pixel is (0.5, 0.5).
        width, height: pixels of the file at ``path``.
    """

    name: str
    path: Path
    world_to_camera: FloatArray
    K: FloatArray
    width: int
    height: int


@dataclass(frozen=True)
class Capture:
    """What `load_capture` returns.

    Attributes:
        folder: the capture's folder.
        views: sorted by name.
        points: (P, 3) float64, the model's frame; P > 0, all finite.
        colors: (P, 3) uint8 RGB.
        train: ascending indices into ``views``; not empty.
        test: ascending indices into ``views``; disjoint from ``train``, together all.
    """

    folder: Path
    views: tuple[CaptureView, ...]
    points: FloatArray
    colors: NDArray[np.uint8]
    train: tuple[int, ...]
    test: tuple[int, ...]


def load_capture(
    folder: str | Path,
    *,
    cache_dir: str | Path,
    max_side: int | None = None,
    test_every: int = 8,
    test_list: str | Path | None = None,
    progress: Progress | None = None,
) -> Capture:
    """Read a COLMAP capture: ``images/`` and a model in ``sparse/0`` or ``sparse``.

    Images from cameras with distortion are undistorted and images with a side above ``max_side``
    reduced, once, into ``cache_dir``; all others are used where they are. An image must have
    exactly its camera's size: reduced copies of the photographs (``images_2``, ``images_4``) would
    hide which size is trained on, so they are refused, and ``max_side`` makes them. EXIF
    orientation is ignored, as COLMAP does.

    Args:
        folder: the capture.
        cache_dir: where made images go; not created when none is needed.
        max_side: pixels; the longest side of any image is at most this. None keeps sizes.
        test_every: every so many-th of the sorted names is for testing, the first one included; 0
            for none.
        test_list: a text file with the test images instead, one name a line; blank lines and lines
            that start with ``#`` are skipped.
        progress: called with (images made, images to make) while images are made.

    Returns:
        The capture.

    Raises:
        InputError: anything about the data that the user can correct. All but undecodable pixels
            is found before ``cache_dir`` is touched.

    Cost: one header read per image; about 0.2 s for 75 images and 44 thousand points. Making
        images costs what `prepare_images` says.
    """
    folder, cache_dir = Path(folder), Path(cache_dir)
    if max_side is not None and max_side < 1:
        raise InputError(f"max_side must be at least 1 pixel, got {max_side}")
    if test_every < 0:
        raise InputError(f"test_every must be 0 or more, got {test_every}")

    model = read_model(find_model(folder))
    names = [image.name for image in model.images]
    test = test_indices(names, test_every, None if test_list is None else Path(test_list))
    train = tuple(sorted(set(range(len(names))) - set(test)))
    if not train:
        raise InputError(
            f"training must be left at least one image, got {len(names)} in all and "
            f"{len(test)} of them for testing; test fewer images"
        )
    points, colors = read_points(model.folder)
    if not len(points):
        raise InputError(
            f"{model.folder} must hold 3D points to start from, got 0; triangulate some "
            "(`colmap point_triangulator`) or import a point cloud into the model"
        )
    pinholes = _pinholes(model, max_side)
    _check_images(folder / "images", model)

    views, jobs = [], []
    for image in model.images:
        camera, pinhole = model.cameras[image.camera_id], pinholes[image.camera_id]
        path = folder / "images" / image.name
        if is_distorted(camera) or (pinhole.width, pinhole.height) != (camera.width, camera.height):
            source, path = path, cached_path(cache_dir, image.name, path, camera, pinhole)
            jobs.append(Job(source, path, camera, pinhole))
        views.append(_view(image, path, pinhole))
    prepare_images(jobs, cache_dir, progress=progress)
    return Capture(folder, tuple(views), points, colors, train, test)


def read_image(view: CaptureView) -> NDArray[np.uint8]:
    """The pixels of a view.

    Returns:
        (view.height, view.width, 3) uint8 RGB.

    Raises:
        InputError: the file is gone, truncated or corrupt, or has changed its size.
    """
    pixels = decode_rgb(view.path)
    if pixels.shape != (view.height, view.width, 3):
        raise InputError(
            f"{view.path} must be {view.width}x{view.height} as when the capture was loaded, got "
            f"{pixels.shape[1]}x{pixels.shape[0]}"
        )
    return pixels


def _view(image: Image, path: Path, pinhole: Pinhole) -> CaptureView:
    return CaptureView(
        image.name, path, image.world_to_camera, pinhole.K, pinhole.width, pinhole.height
    )


def _pinholes(model: Model, max_side: int | None) -> dict[int, Pinhole]:
    """What each camera that took an image becomes, by camera id."""
    used = sorted({image.camera_id for image in model.images})
    cameras = [model.cameras[id] for id in used]
    return {
        camera.id: undistorted_pinhole(camera, max_side)
        if is_distorted(camera)
        else Pinhole.of(camera, max_side)
        for camera in cameras
    }


def _check_images(folder: Path, model: Model) -> None:
    """One error for all images that are missing, unreadable or of another size than the camera."""
    if not folder.is_dir():
        raise InputError(f"data must hold its photographs in {folder}, got no such folder")
    missing, unreadable, resized = [], [], []
    for image in model.images:
        camera = model.cameras[image.camera_id]
        try:
            size = image_size(folder / image.name)
        except FileNotFoundError:
            missing.append(image.name)
        except InputError:
            unreadable.append(image.name)
        else:
            if size != (camera.width, camera.height):
                resized.append(f"{image.name}: {_sizes(size, camera)}")
    problems = [
        f"{len(found)} {kind} (first {found[0]})"
        for kind, found in (
            ("missing", missing),
            ("unreadable", unreadable),
            ("of another size than the camera", resized),
        )
        if found
    ]
    if problems:
        raise InputError(
            f"{folder} must hold the {len(model.images)} images of the model, got "
            + ", ".join(problems)
        )


def _sizes(size: tuple[int, int], camera: Camera) -> str:
    """Both sizes, with the remedy when the image is a reduced copy of the photograph."""
    width, height = size
    text = f"{width}x{height}, camera {camera.id} has {camera.width}x{camera.height}"
    is_copy = width < camera.width and abs(height - camera.height * width / camera.width) < 1
    if not is_copy:
        return text
    return f"{text}; use the photographs and --max-side {max(size)}"


def test_indices(names: Sequence[str], every: int, path: Path | None) -> tuple[int, ...]:
    """The held-out ones of these names; see :func:`load_capture`."""
    if path is None:
        return tuple(range(0, len(names), every)) if every else ()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"test_list must be a readable text file, got {path}: {reason}") from error
    wanted = {line for line in lines if line and not line.startswith("#")}
    unknown = sorted(wanted - set(names))
    if unknown:
        raise InputError(
            f"{path} must list names of the model's images, got {len(unknown)} unknown "
            f"(first {unknown[0]})"
        )
    return tuple(index for index, name in enumerate(names) if name in wanted)
