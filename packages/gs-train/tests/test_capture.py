# SPDX-License-Identifier: Apache-2.0
"""Captures: what is loaded, what is made, and one clear line for everything that is wrong."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captures import LENS, PINHOLE, TALL, damage_the_middle, photograph, write_capture

from gs_train.data import load_capture, pixels, prepare, read_image
from gs_train.data.colmap_records import Camera
from gs_train.data.colmap_writer import Observations, write_model
from gs_train.data.distortion import undistort, undistorted_pinhole
from gs_train.errors import InputError

DATA = Path(os.environ.get("GS_DATA", Path(__file__).resolve().parents[4] / "shared/data"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pinhole photographs."""
    return write_capture(tmp_path / "data", [(f"{i:02}.png", PINHOLE) for i in range(10)])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# ------------------------------------------------------------------------------- what is loaded


def test_pinhole_images_are_used_where_they_are(folder: Path, cache: Path) -> None:
    capture = load_capture(folder, cache_dir=cache, progress=lambda *_: pytest.fail("no work"))
    assert [view.name for view in capture.views] == [f"{i:02}.png" for i in range(10)]
    for index, view in enumerate(capture.views):
        assert view.path == folder / "images" / view.name
        assert (view.width, view.height) == (64, 48)
        np.testing.assert_array_equal(view.K, PINHOLE.K)
        np.testing.assert_array_equal(view.world_to_camera[:3, 3], [index, 2, 3])
        np.testing.assert_array_equal(read_image(view), photograph(PINHOLE, index))
    np.testing.assert_array_equal(capture.points, np.arange(12.0).reshape(4, 3))
    assert capture.colors.dtype == np.uint8
    assert not cache.exists()


def test_several_cameras_sizes_and_sub_folders_load_together(tmp_path: Path, cache: Path) -> None:
    images = [("left/b.png", PINHOLE), ("a.png", TALL), ("left/deep er/c.png", LENS)]
    capture = load_capture(write_capture(tmp_path / "data", images), cache_dir=cache)
    assert [view.name for view in capture.views] == ["a.png", "left/b.png", "left/deep er/c.png"]
    assert [(v.width, v.height) for v in capture.views[:2]] == [(30, 50), (64, 48)]
    for view in capture.views:
        assert read_image(view).shape == (view.height, view.width, 3)
    assert capture.views[2].path.parent == cache / "left/deep er"
    assert len(files(cache)) == 1


def test_distorted_images_are_undistorted_once(tmp_path: Path, cache: Path) -> None:
    folder = write_capture(tmp_path / "data", [(f"{i}.png", LENS) for i in range(3)])
    capture = load_capture(folder, cache_dir=cache)
    pinhole = undistorted_pinhole(LENS)
    for index, view in enumerate(capture.views):
        np.testing.assert_array_equal(view.K, pinhole.K)
        expected = undistort(photograph(LENS, index), LENS, pinhole)
        # JPEG of quality 98: a grey value or two, more at single pixels.
        assert np.abs(read_image(view).astype(int) - expected).mean() < 1.5
    before = [path.stat().st_mtime_ns for path in files(cache)]
    again = load_capture(folder, cache_dir=cache, progress=lambda *_: pytest.fail("made again"))
    assert [view.path for view in again.views] == [view.path for view in capture.views]
    assert [path.stat().st_mtime_ns for path in files(cache)] == before


def test_images_are_reduced_to_the_longest_side_with_exact_intrinsics(
    tmp_path: Path, cache: Path
) -> None:
    camera = Camera(1, "PINHOLE", 101, 67, (90.0, 91.0, 50.0, 33.0))
    folder = write_capture(tmp_path / "data", [("a.png", camera), ("b.png", TALL)])
    capture = load_capture(folder, cache_dir=cache, max_side=50, test_every=0)
    a, b = capture.views
    assert (a.width, a.height) == (50, 33)
    x, y = 50 / 101, 33 / 67
    np.testing.assert_allclose(a.K, [[90 * x, 0, 50 * x], [0, 91 * y, 33 * y], [0, 0, 1]])
    assert b.path == folder / "images/b.png"  # small enough already
    # Half the size averages what is seen: the mean colour stays.
    means = read_image(a).mean((0, 1)), photograph(camera, 0).mean((0, 1))
    np.testing.assert_allclose(*means, atol=1.5)


def test_reducing_keeps_every_detail_in_place(tmp_path: Path, cache: Path) -> None:
    # At a ratio of 1.5, unevenly weighted filters move details by up to half a pixel.
    camera = Camera(1, "PINHOLE", 240, 180, (200.0, 200.0, 120.0, 90.0))
    folder = write_capture(tmp_path / "data", [("a.png", camera)])
    u = np.arange(240) + 0.5
    ramp = np.broadcast_to(u[None, :, None], (180, 240, 3)).astype(np.uint8)
    Image.fromarray(ramp).save(folder / "images/a.png")
    view = load_capture(folder, cache_dir=cache, max_side=160, test_every=0).views[0]
    row = read_image(view)[60, :, 0].astype(float)
    expected = (np.arange(160) + 0.5) * 1.5 - 0.5
    # Integer ramps round to half a grey value, and JPEG adds one.
    assert np.abs(row - expected)[2:-2].max() < 2


def test_exif_orientation_is_ignored(folder: Path, cache: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees"
    path = folder / "images/00.png"
    Image.fromarray(photograph(PINHOLE, 0)).save(path, exif=exif)
    capture = load_capture(folder, cache_dir=cache)
    np.testing.assert_array_equal(read_image(capture.views[0]), photograph(PINHOLE, 0))


def test_images_that_the_model_does_not_name_are_ignored(folder: Path, cache: Path) -> None:
    (folder / "images/unregistered.jpg").write_bytes(b"not even an image")
    assert len(load_capture(folder, cache_dir=cache).views) == 10


# ------------------------------------------------------------------------------- the cache


def test_other_settings_and_changed_sources_make_other_files(folder: Path, cache: Path) -> None:
    first = load_capture(folder, cache_dir=cache, max_side=32).views
    other = load_capture(folder, cache_dir=cache, max_side=30).views
    assert not {view.path for view in first} & {view.path for view in other}

    source = folder / "images/03.png"
    Image.fromarray(255 - photograph(PINHOLE, 3)).save(source)
    os.utime(source, ns=(time.time_ns(), time.time_ns() + 10**9))
    changed = load_capture(folder, cache_dir=cache, max_side=32).views
    assert [a.path == b.path for a, b in zip(first, changed)] == [i != 3 for i in range(10)]
    assert np.abs(read_image(changed[3]).astype(int) - read_image(first[3])).mean() > 20


def test_a_damaged_cached_image_is_made_again(folder: Path, cache: Path) -> None:
    path = load_capture(folder, cache_dir=cache, max_side=32).views[4].path
    whole = path.read_bytes()
    path.write_bytes(b"")
    load_capture(folder, cache_dir=cache, max_side=32)
    assert path.read_bytes() == whole


def test_progress_counts_the_images_that_are_made(folder: Path, cache: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_capture(folder, cache_dir=cache, max_side=32, progress=lambda *call: calls.append(call))
    assert calls == [(done, 10) for done in range(11)]


def test_nothing_half_written_stays_after_a_failure(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(self: Image.Image, file: object, **_: object) -> None:
        file.write(b"half of a")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(InputError, match=r"the disk became full while writing .*\.jpg"):
        load_capture(folder, cache_dir=cache, max_side=32)
    assert files(cache) == []


def test_too_little_disk_space_is_found_before_anything_is_written(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 99, 99))
    with pytest.raises(InputError, match=r"must have 7,680 bytes free for 10 undist.*, got 99;"):
        load_capture(folder, cache_dir=cache, max_side=32)
    assert not cache.exists()


def test_a_source_that_cannot_be_decoded_stops_making_and_is_named(
    folder: Path, cache: Path
) -> None:
    path = folder / "images/05.png"
    damage_the_middle(path)
    with pytest.raises(InputError, match=r"images/05.png must be a readable image, got: "):
        load_capture(folder, cache_dir=cache, max_side=32)
    assert all(not path.name.startswith(".") for path in files(cache))


def test_work_in_threads_is_bounded_by_memory(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    real = prepare.ThreadPoolExecutor

    def pool(n_threads: int, **options: object) -> object:
        counts.append(n_threads)
        return real(n_threads, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(64)))
    load_capture(folder, cache_dir=cache, max_side=32)
    monkeypatch.setattr(prepare, "_WORKING_BYTES", 3 * 9 * 64 * 48)
    load_capture(folder, cache_dir=cache, max_side=31)
    assert counts == [8, 3]


# ------------------------------------------------------------------------------- the split


def test_every_eighth_image_is_for_testing_the_first_included(folder: Path, cache: Path) -> None:
    capture = load_capture(folder, cache_dir=cache)
    assert capture.test == (0, 8)
    assert capture.train == (1, 2, 3, 4, 5, 6, 7, 9)
    assert load_capture(folder, cache_dir=cache, test_every=4).test == (0, 4, 8)
    capture = load_capture(folder, cache_dir=cache, test_every=0)
    assert (capture.test, capture.train) == ((), tuple(range(10)))


def test_a_list_names_the_test_images(folder: Path, cache: Path, tmp_path: Path) -> None:
    names = tmp_path / "test.txt"
    names.write_text("\ufeff07.png\n\n# not this: 01.png\n 02.png \r\n07.png\n", encoding="utf-8")
    capture = load_capture(folder, cache_dir=cache, test_list=names)
    assert capture.test == (2, 7)
    assert capture.train == (0, 1, 3, 4, 5, 6, 8, 9)


def test_unknown_names_in_the_list_are_counted_and_named(
    folder: Path, cache: Path, tmp_path: Path
) -> None:
    names = tmp_path / "test.txt"
    names.write_text("02.png\nno.png\nnor this.png\n")
    with pytest.raises(InputError, match=r"test.txt must list .*, got 2 unknown \(first no.png\)"):
        load_capture(folder, cache_dir=cache, test_list=names)


def test_a_list_that_cannot_be_read_is_an_input_error(
    folder: Path, cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"absent must be readable, got: No such file"):
        load_capture(folder, cache_dir=cache, test_list=tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"test_list must be a text file in UTF-8, got .*binary"):
        load_capture(folder, cache_dir=cache, test_list=tmp_path / "binary")


def test_no_training_image_left_is_an_input_error(tmp_path: Path, cache: Path) -> None:
    folder = write_capture(tmp_path / "data", [("a.png", PINHOLE)])
    with pytest.raises(InputError, match=r"training must be left at least one image, got 1 in all"):
        load_capture(folder, cache_dir=cache)
    with pytest.raises(InputError, match=r"at least one image"):
        load_capture(folder, cache_dir=cache, test_every=1)


# ------------------------------------------------------------------------------- bad input


def test_images_that_are_wrong_are_counted_by_kind_in_one_line(folder: Path, cache: Path) -> None:
    images = folder / "images"
    (images / "02.png").unlink()
    (images / "04.png").unlink()
    (images / "05.png").write_bytes(b"GIF89a, or so it says")
    Image.new("RGB", (10, 9)).save(images / "07.png")
    with pytest.raises(InputError) as caught:
        load_capture(folder, cache_dir=cache, max_side=32)
    assert str(caught.value) == (
        f"{images} must hold the 10 images of the model, got 2 missing (first 02.png; "
        "04.png), 1 broken (first 05.png: no JPEG, PNG, TIFF, WEBP, BMP, PPM or JPEG2000 image), "
        "1 of another shape than the camera (first 07.png: 10x9, camera 1 has 64x48); put them "
        "back, leave them out of a new run with --allow-missing, or go on without the missing and "
        "broken: gs-train fit --skip-broken, with --resume where the run exists"
    )
    assert not cache.exists()


def test_an_image_turned_by_software_is_of_another_shape(folder: Path, cache: Path) -> None:
    Image.new("RGB", (48, 64)).save(folder / "images/07.png")
    with pytest.raises(InputError, match=r"first 07.png: 48x64, camera 1 has 64x48\)"):
        load_capture(folder, cache_dir=cache)


def test_no_image_folder_is_an_input_error(folder: Path, cache: Path) -> None:
    (folder / "images").rename(folder / "photos")
    with pytest.raises(InputError, match=r"must hold its photographs in .*images, got no such"):
        load_capture(folder, cache_dir=cache)


def test_no_capture_is_an_input_error(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InputError, match=r"data must be a folder with a COLMAP model, got no fold"):
        load_capture(tmp_path / "absent", cache_dir=cache)


def test_no_points_is_an_input_error(tmp_path: Path, cache: Path) -> None:
    folder = write_capture(
        tmp_path / "data", [("a.png", PINHOLE), ("b.png", PINHOLE)], points=np.zeros((0, 3))
    )
    with pytest.raises(InputError, match=r"must hold 3D points to start from, got 0; triangulate"):
        load_capture(folder, cache_dir=cache)


def test_points_that_are_not_finite_are_an_input_error(tmp_path: Path, cache: Path) -> None:
    points = np.ones((5, 3))
    points[1, 2], points[3, 0] = np.nan, np.inf
    folder = write_capture(
        tmp_path / "data", [("a.png", PINHOLE), ("b.png", PINHOLE)], points=points
    )
    with pytest.raises(InputError, match=r"points must be finite, got NaN or Inf in 2 of 5"):
        load_capture(folder, cache_dir=cache)


def test_an_unsupported_camera_model_is_named(tmp_path: Path, cache: Path) -> None:
    panorama = Camera(9, "EQUIRECTANGULAR", 64, 48, (64.0, 48.0))
    folder = write_capture(tmp_path / "data", [("a.png", PINHOLE), ("b.png", panorama)])
    with pytest.raises(InputError, match=r"model of camera 9 .* got EQUIRECTANGULAR; cut each"):
        load_capture(folder, cache_dir=cache)


def test_an_unused_camera_may_have_any_model(folder: Path, cache: Path) -> None:
    model = folder / "sparse/0/cameras.bin"
    unused = Camera(9, "EQUIRECTANGULAR", 64, 48, (64.0, 48.0))
    empty = np.empty(0, np.int64)
    other = folder / "other"
    write_model(
        other,
        [PINHOLE, unused],
        [],
        points=np.zeros((0, 3)),
        colors=np.zeros((0, 3), np.uint8),
        observations=Observations(empty, empty, np.empty((0, 2))),
    )
    shutil.copy(other / "cameras.bin", model)
    assert len(load_capture(folder, cache_dir=cache).views) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_side": 0}, "max_side must be at least 1 pixel, got 0"),
        ({"test_every": -1}, "test_every must be 0 or more, got -1"),
    ],
)
def test_options_out_of_range_are_refused(
    folder: Path, cache: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_capture(folder, cache_dir=cache, **options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- pixels


def save_and_decode(image: Image.Image, path: Path, **options: object) -> np.ndarray:
    image.save(path, **options)
    return pixels.decode_rgb(path)


def test_greyscale_becomes_three_equal_channels(tmp_path: Path) -> None:
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8)
    result = save_and_decode(Image.fromarray(grey), tmp_path / "a.png")
    np.testing.assert_array_equal(result, np.repeat(grey[:, :, None], 3, axis=2))


def test_sixteen_bits_are_rounded_to_eight(tmp_path: Path) -> None:
    grey = np.array([[0, 128, 129, 65535, 257 * 7, 257 * 7 + 128, 257 * 7 + 129]], np.uint16)
    result = save_and_decode(Image.fromarray(grey), tmp_path / "a.png")
    np.testing.assert_array_equal(result[0, :, 1], [0, 0, 1, 255, 7, 7, 8])
    assert result.dtype == np.uint8


def test_palettes_are_looked_up(tmp_path: Path) -> None:
    rgb = photograph(PINHOLE, 0) // 128 * 255
    result = save_and_decode(Image.fromarray(rgb).quantize(8), tmp_path / "a.png")
    np.testing.assert_array_equal(result, rgb)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_blended_with_black(tmp_path: Path, mode: str) -> None:
    image = Image.new("RGBA", (3, 1), (200, 200, 200, 255))
    image.putpixel((1, 0), (200, 200, 200, 128))
    image.putpixel((2, 0), (200, 200, 200, 0))
    result = save_and_decode(image.convert(mode), tmp_path / "a.png")
    np.testing.assert_array_equal(result[0, :, 0], [200, 100, 0])


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    image = Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    result = save_and_decode(image, tmp_path / "a.tif")
    np.testing.assert_array_equal(result[0, 0], [255, 0, 0])


def test_floating_point_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"a.tif must be a readable image, got: pixels must be int"
    ):
        save_and_decode(Image.new("F", (2, 2)), tmp_path / "a.tif")


def test_decoded_pixels_are_contiguous_and_writable(folder: Path) -> None:
    result = pixels.decode_rgb(folder / "images/00.png")
    assert result.flags.c_contiguous
    assert result.flags.writeable


def test_a_photograph_damaged_within_is_named_when_it_is_read(folder: Path, cache: Path) -> None:
    damage_the_middle(folder / "images/03.png")
    view = load_capture(folder, cache_dir=cache).views[3]
    with pytest.raises(InputError, match=r"images/03.png must be a readable image, got: "):
        read_image(view)


def test_an_image_that_changes_its_size_later_is_named(folder: Path, cache: Path) -> None:
    view = load_capture(folder, cache_dir=cache).views[3]
    Image.new("RGB", (32, 24)).save(view.path)
    with pytest.raises(InputError, match=r"03.png must .*, got: 32x24, not 64x48 as when"):
        read_image(view)


def test_an_image_that_vanishes_later_is_named(folder: Path, cache: Path) -> None:
    view = load_capture(folder, cache_dir=cache).views[3]
    view.path.unlink()
    with pytest.raises(InputError, match=r"03.png must be a readable image, got: .*No such file"):
        read_image(view)


# ------------------------------------------------------------------------------- real captures


@pytest.mark.parametrize(
    ("scene", "size", "n_points", "n_train"),
    [("fox", (540, 960), 14666, 43), ("caliterra", (1436, 1076), 43559, 65)],
)
def test_real_captures_load(
    scene: str, size: tuple[int, int], n_points: int, n_train: int, cache: Path
) -> None:
    if not (DATA / scene).is_dir():
        pytest.skip(f"needs the capture {DATA / scene} (set GS_DATA)")
    capture = load_capture(DATA / scene, cache_dir=cache)
    assert {(view.width, view.height) for view in capture.views} == {size}
    assert capture.points.shape == capture.colors.shape == (n_points, 3)
    assert len(capture.train) == n_train
    assert read_image(capture.views[0]).shape == (size[1], size[0], 3)
    assert not cache.exists()
