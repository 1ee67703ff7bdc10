# SPDX-License-Identifier: Apache-2.0
"""Photographs of another size than the cameras that were reconstructed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captures import LENS, PINHOLE, TALL, photograph, write_capture

from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data import Capture, load_capture, read_image
from gs_train.data.colmap_records import CAMERA_MODELS, Camera
from gs_train.data.distortion import distort
from gs_train.data.lenses import DISTORTED_MODELS
from gs_train.data.resized import has_shape_of, resized
from gs_train.errors import InputError
from gs_train.options.config import FitConfig

NAMES = [f"{i:02}.png" for i in range(4)]
POINTS = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))


def load(folder: Path, **options: object) -> Capture:
    return load_capture(folder, cache_dir=folder.parent / "cache", **options)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = [(name, PINHOLE) for name in NAMES]
    return write_capture(tmp_path / "data", images, points=POINTS)


def reduce(path: Path, size: tuple[int, int], to: Path | None = None) -> None:
    to = to or path
    to.parent.mkdir(exist_ok=True)
    with Image.open(path) as image:
        image.resize(size, Image.Resampling.BOX).save(to)


@pytest.mark.parametrize("model", sorted(DISTORTED_MODELS | {"SIMPLE_PINHOLE", "PINHOLE"}))
@pytest.mark.parametrize("size", [(160, 119), (1281, 960)])
def test_a_resized_camera_sees_every_direction_where_the_resized_photograph_has_it(
    model: str, size: tuple[int, int]
) -> None:
    n = dict(CAMERA_MODELS)[model]
    shared = model.startswith(("SIMPLE", "RADIAL"))
    head = (300.0, 318.0, 245.0) if shared else (300.0, 302.0, 318.0, 245.0)
    tail = (0.02, -0.01, 1e-3, -2e-3, *[1e-3] * 12)[: n - len(head)]
    camera = Camera(3, model, 640, 480, (*head, *tail))
    small = resized(camera, size, 7)
    assert (small.id, small.width, small.height) == (7, *size)
    ratios = size[0] / 640, size[1] / 480
    np.testing.assert_allclose(small.K, np.diag([*ratios, 1]) @ camera.K, rtol=1e-15)
    if model in DISTORTED_MODELS:
        points = np.random.default_rng(0).uniform(-0.7, 0.7, (100, 2))
        expected = distort(camera, points) * ratios
        np.testing.assert_allclose(distort(small, points), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("size", "is_it"),
    [
        *[
            ((64, 48), True),
            ((32, 24), True),
            ((21, 16), True),
            ((21, 15), True),
            ((128, 96), True),
        ],
        *[((48, 64), False), ((64, 47), False), ((60, 48), False), ((32, 20), False)],
    ],
)
def test_the_shape_is_that_of_both_sides_to_a_pixel(size: tuple[int, int], is_it: bool) -> None:
    assert has_shape_of(size, PINHOLE) == is_it


@pytest.mark.parametrize("by", [2, 3, 4, 8])
@pytest.mark.parametrize("sides", [(1003, 1500), (1500, 1003), (4000, 3000), (999, 1999)])
@pytest.mark.parametrize("rounding", [math.floor, round, math.ceil])
def test_a_reduced_copy_has_the_shape_whichever_way_its_sides_were_rounded(
    rounding: Callable[[float], int], sides: tuple[int, int], by: int
) -> None:
    camera = Camera(1, "PINHOLE", *sides, (900.0, 900.0, sides[0] / 2, sides[1] / 2))
    small = rounding(sides[0] / by), rounding(sides[1] / by)
    assert has_shape_of(small, camera)
    assert has_shape_of(sides, dataclasses.replace(camera, width=small[0], height=small[1]))


def test_reduced_photographs_have_scaled_intrinsics_and_one_line(folder: Path) -> None:
    reduce(folder / "images/01.png", (16, 12))
    reduce(folder / "images/03.png", (128, 96))
    capture = load(folder)
    for view, scale in zip(capture.views, (1, 0.25, 1, 2)):
        expected = np.diag([scale, scale, 1]) @ PINHOLE.K
        np.testing.assert_array_equal(view.K, expected)
        assert read_image(view).shape == (48 * scale, 64 * scale, 3)
    assert capture.notes == (
        "2 of 4 photographs have another size than their camera (first 01.png: 16x12, camera 1 has "
        "64x48): intrinsics are scaled",
    )


def test_a_missing_photograph_has_the_size_of_the_others_of_its_camera(folder: Path) -> None:
    for name in NAMES:
        reduce(folder / "images" / name, (32, 24))
    whole = load(folder)
    (folder / "images/00.png").unlink()
    capture = load(folder, skip_broken=True)
    assert [view.width for view in capture.views] == [32] * 4
    for view, twin in zip(capture.views, whole.views):
        np.testing.assert_array_equal(view.K, twin.K)


def test_a_larger_photograph_than_allowed_is_refused_undecoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce(folder / "images/01.png", (128, 96))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(InputError, match=r"at most 3,072 pixels, got 128x96 of camera 1 \(f"):
        load(folder, max_pixels=64 * 48)


def test_small_copies_of_photographs_above_the_limit_are_taken(folder: Path) -> None:
    for name in NAMES:
        reduce(folder / "images" / name, (32, 24))
    assert len(load(folder, max_pixels=32 * 24).views) == len(NAMES)


def test_a_copy_that_breaks_off_is_broken(folder: Path) -> None:
    path = folder / "images/01.png"
    reduce(path, (32, 24))
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(InputError, match=r"got 1 broken \(first 01.png: "):
        load(folder)


@pytest.mark.parametrize(("camera", "by"), [(LENS, 2), (TALL, 2), (LENS, 4)])
def test_reduced_copies_alone_are_the_photographs(camera: Camera, by: int, tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "data", [(name, camera) for name in NAMES])
    full = load(folder)
    small = (camera.width // by, camera.height // by)
    for name in NAMES:
        reduce(folder / "images" / name, small, folder / f"images_{by}" / name)
    (folder / "images_8").mkdir()
    (folder / "images").rename(tmp_path / "elsewhere")
    capture = load(folder)
    assert capture.notes[0].startswith("4 of 4 photographs have another size than their camera")
    assert capture.notes[1:] == (
        f"images/ is not there: photographs are those of images_{by}/",
        "images_8/ found, not used: --max-side reduces the photographs in images/",
    )
    for view, twin in zip(capture.views, full.views):
        np.testing.assert_allclose(view.K[:2], twin.K[:2] / by, rtol=0.04)  # sides are whole
        assert view.photograph is None or view.photograph.parent == folder / f"images_{by}"
    assert photograph(camera, 0).shape[:2] == (camera.height, camera.width)


def test_a_plan_counts_the_pixels_of_the_photographs_as_they_are(folder: Path) -> None:
    for name in NAMES:
        reduce(folder / "images" / name, (32, 24))
    planned = capture_without_photographs(FitConfig(data=folder, out=folder.parent / "run"))
    for view, twin in zip(planned.views, load(folder).views):
        assert (view.width, view.height) == (twin.width, twin.height) == (32, 24)
        np.testing.assert_array_equal(view.K, twin.K)
    assert planned.notes[0].startswith("4 of 4 photographs have another size than their camera")
