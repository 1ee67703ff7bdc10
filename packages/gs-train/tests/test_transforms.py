# SPDX-License-Identifier: Apache-2.0
"""Captures with a transforms file: every spelling is the same capture as with a COLMAP model."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_captures import PINHOLE
from transforms_files import (
    COLORS,
    LENS,
    NAMES,
    POINTS,
    TURN,
    frames,
    matrix_of,
    poses,
    write_colmap,
    write_photographs,
    write_points,
    write_transforms,
    write_turned,
)

from gs_train.cli import main
from gs_train.data import Capture, PhotoReader, load_capture, read_image
from gs_train.data.colmap_records import Camera
from gs_train.data.readers.choose import read_source
from gs_train.errors import InputError


def load(path: Path, **options: Any) -> Capture:
    return load_capture(path, cache_dir=path.parent / "cache", **options)


def write(folder: Path, top: dict[str, Any], names: tuple[str, ...] = NAMES[:3]) -> Path:
    """Photographs beside a transforms.json with ``top``, and frames where it has none."""
    write_photographs(folder, names)
    write_transforms(folder / "transforms.json", {"frames": frames(names), **top})
    return folder


def camera(folder: Path, index: int = 0) -> Camera:
    model = read_source(folder).model
    return model.cameras[model.images[index].camera_id]


def assert_same(capture: Capture, other: Capture) -> None:
    """Cameras, photographs, points and split, to the rounding of float64."""
    assert [view.name for view in capture.views] == [view.name for view in other.views]
    for view, twin in zip(capture.views, other.views):
        np.testing.assert_allclose(view.world_to_camera, twin.world_to_camera, atol=1e-14)
        np.testing.assert_array_equal(view.K, twin.K)
        np.testing.assert_array_equal(read_image(view), read_image(twin))
    np.testing.assert_allclose(capture.points, other.points, atol=1e-14)
    np.testing.assert_array_equal(capture.colors, other.colors)
    assert (capture.train, capture.test) == (other.train, other.test)


# ------------------------------------------------------------------------------- the same capture


@pytest.mark.parametrize("turned", [False, True])
def test_a_transforms_file_gives_the_capture_of_the_colmap_model_it_was_made_of(
    turned: bool, tmp_path: Path
) -> None:
    capture = load(write_turned(tmp_path / "turned", turned=turned))
    assert_same(capture, load(write_colmap(tmp_path / "colmap")))
    undone = "applied_transform of transforms.json is undone: the scene is trained and exported in"
    assert [note[: len(undone)] for note in capture.notes] == ([undone] if turned else [])


def test_a_scale_that_was_applied_after_the_turn_is_undone_first(tmp_path: Path) -> None:
    turn = TURN.copy()
    turn[:, 3] = 5, -2, 1
    moved = 0.25 * turn
    written = frames(NAMES)
    for frame, pose in zip(written, poses()):
        frame["transform_matrix"] = matrix_of(pose, moved)  # a scale of the camera's axes, too
    top = {**LENS, "frames": written, "ply_file_path": "sub/cloud.ply"}
    folder = write(
        tmp_path / "a",
        {**top, "applied_transform": [*turn.tolist(), [0, 0, 0, 1]], "applied_scale": 0.25},
        NAMES,
    )
    (folder / "sub").mkdir()
    write_points(folder / "sub/cloud.ply", POINTS @ moved[:, :3].T + moved[:, 3])
    capture, colmap = load(folder), load(write_colmap(tmp_path / "colmap"))
    np.testing.assert_allclose(capture.points, colmap.points, atol=1e-13)
    for view, twin in zip(capture.views, colmap.views):
        np.testing.assert_allclose(view.world_to_camera, twin.world_to_camera, atol=1e-13)


def test_georeferenced_points_keep_the_digits_that_float32_has_not(tmp_path: Path) -> None:
    away = np.array([465000.0, 5247000.0, 430.0])
    written = frames(NAMES)
    for frame in written:
        for row, shift in zip(frame["transform_matrix"], away):
            row[3] += shift
    folder = write(tmp_path / "a", {**LENS, "frames": written, "ply_file_path": "p.ply"}, NAMES)
    write_points(folder / "p.ply", POINTS + away)
    np.testing.assert_array_equal(load(folder).points, POINTS + away)


def test_points_count_from_the_cameras_and_those_left_out_are_said(tmp_path: Path) -> None:
    away = np.array([0, 5e9, 0])  # a northing in millimetres
    written = frames(NAMES)
    for frame in written:
        frame["transform_matrix"][1][3] += away[1]
    folder = write(tmp_path / "a", {**LENS, "frames": written, "ply_file_path": "p.ply"}, NAMES)
    points = POINTS + away
    points[:3, 0] = math.nan, math.inf, 1e300
    write_points(folder / "p.ply", points)
    capture = load(folder)
    np.testing.assert_array_equal(capture.points, points[3:])
    np.testing.assert_array_equal(capture.colors, COLORS[3:])
    assert capture.notes[0].startswith("3 of 60 points are left out: not finite, or further away")


def test_a_folder_with_both_is_read_as_colmap_and_the_file_in_its_place_as_itself(
    tmp_path: Path,
) -> None:
    folder = write_colmap(tmp_path / "a")
    write_turned(folder)
    both, alone = load(folder), load(folder / "transforms.json")
    assert both.notes == (
        "transforms.json found, not used: cameras are those of the COLMAP model; name the file in "
        "place of the folder to use it",
    )
    assert_same(alone, both)
    assert alone.folder == folder


# ------------------------------------------------------------------------------- intrinsics

ANGLE = 2 * math.atan(32 / 60)  # of 64 pixels at a focal length of 60
SIZE = {"w": 64.0, "h": 48}
SPELLINGS: dict[str, tuple[dict[str, Any], str, tuple[float, ...]]] = {
    "whole": (LENS, "PINHOLE", (60, 61, 32, 24)),
    "angle": ({"camera_angle_x": ANGLE, **SIZE}, "PINHOLE", (60, 60, 32, 24)),
    "angle without size": ({"camera_angle_x": ANGLE}, "PINHOLE", (60, 60, 32, 24)),
    "angles": (
        {"camera_angle_x": ANGLE, "camera_angle_y": 2 * math.atan(24 / 61), **SIZE},
        "PINHOLE",
        (60, 61, 32, 24),
    ),
    "length before angle": (
        {"camera_angle_x": 1.0, "camera_angle_y": 1.0, "fl_x": 60, "cx": 31.5, **SIZE},
        "PINHOLE",
        (60, 60, 31.5, 24),
    ),
    "named": (
        {**LENS, "camera_model": "SIMPLE_PINHOLE", "k1": 0, "k2": None},
        "PINHOLE",
        (60, 61, 32, 24),
    ),
    "tangential": ({**LENS, "p2": 0.002}, "OPENCV", (60, 61, 32, 24, 0, 0, 0, 0.002)),
    "radial": (
        {**LENS, "camera_model": "OPENCV", "k1": -0.1, "k2": 0.02, "k4": 0.0},
        "OPENCV",
        (60, 61, 32, 24, -0.1, 0.02, 0, 0),
    ),
    "sixth power": (
        {**LENS, "k1": -0.1, "k3": 0.01},
        "FULL_OPENCV",
        (60, 61, 32, 24, -0.1, 0, 0, 0, 0.01, 0, 0, 0),
    ),
    "rational": (
        {**LENS, "camera_model": "FULL_OPENCV", "k1": 0.3, "k4": 0.2, "k6": 0.1, "p1": 0.01},
        "FULL_OPENCV",
        (60, 61, 32, 24, 0.3, 0, 0.01, 0, 0, 0.2, 0, 0.1),
    ),
    "fisheye": (
        {**LENS, "camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k4": 0.01, "p1": 0.5},
        "OPENCV_FISHEYE",
        (60, 61, 32, 24, 0.1, 0, 0, 0.01),
    ),
    "fisheye of instant-ngp": (
        {**LENS, "is_fisheye": True, "k2": 0.1},
        "OPENCV_FISHEYE",
        (60, 61, 32, 24, 0, 0.1, 0, 0),
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("place", ["file", "frame"])
def test_intrinsics_are_read_in_every_spelling(spelling: str, place: str, tmp_path: Path) -> None:
    keys, model, params = SPELLINGS[spelling]
    written = frames(NAMES[:3])
    if place == "frame":
        written = [{**frame, **keys} for frame in written]
    folder = write(tmp_path / "a", {"frames": written, **(keys if place == "file" else {})})
    found = camera(folder)
    assert (found.model, found.width, found.height) == (model, 64, 48)
    np.testing.assert_allclose(found.params, params, rtol=1e-15)
    assert len(read_source(folder).model.cameras) == 1


def test_a_frame_goes_before_its_file_and_an_angle_of_a_frame_before_lengths_of_the_file(
    tmp_path: Path,
) -> None:
    written = frames(NAMES[:3])
    written[1]["camera_angle_x"] = ANGLE / 2
    written[2].update(fl_x=70, cx=30, w=64)
    folder = write(tmp_path / "a", {**LENS, "frames": written})
    assert camera(folder, 0).params == (60, 61, 32, 24)
    assert camera(folder, 1).params[:2] == pytest.approx([32 / math.tan(ANGLE / 4)] * 2)
    assert camera(folder, 2).params == (70, 70, 30, 24)


def test_sizes_come_from_each_photograph_where_no_file_gives_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"camera_angle_x": ANGLE})
    write_photographs(folder, ["01.png"], Camera(2, "PINHOLE", 32, 20, (1, 1, 1, 1)))
    (folder / "02.png").unlink()
    sizes = [(camera(folder, i).width, camera(folder, i).height) for i in range(3)]
    assert sizes == [(64, 48), (32, 20), (64, 48)]
    assert camera(folder, 1).params == pytest.approx((30, 30, 16, 10))
    assert load(folder, skip_broken=True).broken == {2}


def test_a_lens_is_undistorted_and_the_photograph_is_what_a_run_remembers(tmp_path: Path) -> None:
    capture = load(write(tmp_path / "a", {**LENS, "k1": -0.1}))
    assert all(view.path.parent == tmp_path / "cache" for view in capture.views)
    photographs = [tmp_path / "a" / name for name in NAMES[:3]]
    assert [view.photograph for view in capture.views] == photographs
    remembered = PhotoReader(capture).fingerprint()["photographs"]
    assert [entry[0] for entry in remembered] == [path.stat().st_size for path in photographs]


# ------------------------------------------------------------------------------- photographs


def test_names_without_an_ending_find_their_photographs_and_keep_their_names(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a"
    write_photographs(folder, ["train/r_0.png", "train/r_1.JPG", "train/v1.5.jpeg"])
    written = frames(["./train/r_0", "train/r_1", "./train/v1.5"])
    write_transforms(folder / "transforms.json", {"camera_angle_x": ANGLE, "frames": written})
    capture = load(folder)
    assert [view.name for view in capture.views] == ["r_0", "r_1", "v1.5"]
    assert [view.path.name for view in capture.views] == ["r_0.png", "r_1.JPG", "v1.5.jpeg"]
    assert {view.path.parent.name for view in capture.views} == {"train"}


def test_photographs_may_lie_elsewhere_and_are_named_from_the_folder_that_holds_all(
    tmp_path: Path,
) -> None:
    write_photographs(tmp_path / "city", ["train/0000.png", "test/0000.png"])
    written = frames(["../../train/0000.png", str(tmp_path / "city/test/0000.png")])
    place = tmp_path / "city/pose/block/transforms.json"
    write_transforms(place, {**LENS, "frames": written})
    capture = load(place.parent)
    assert [view.name for view in capture.views] == ["test/0000.png", "train/0000.png"]
    read_image(capture.views[1])


@pytest.mark.parametrize("inside", ["", "rgb", "block_1/rgb"])
def test_matrix_city_numbers_its_photographs_and_scales_its_rotations(
    inside: str, tmp_path: Path
) -> None:
    names = [f"{inside}/{i:04}.png".lstrip("/") for i in (0, 3, 12)]
    write_photographs(tmp_path / "a", names)
    written = []
    for number, pose in zip((0, 3, 12), poses(3)):
        matrix = np.array(matrix_of(pose))
        matrix[:3, :3] *= 0.01
        frame = {"frame_index": number, "rot_mat": matrix.tolist()}
        written.append({**frame, "path": "block_1"} if "block" in inside else frame)
    top = {"camera_angle_x": ANGLE, "frames": written}
    write_transforms(tmp_path / "a/transforms.json", top)
    capture = load(tmp_path / "a")
    assert [view.name for view in capture.views] == ["0000.png", "0003.png", "0012.png"]
    for view, pose in zip(capture.views, poses(3)):
        np.testing.assert_allclose(view.world_to_camera, pose, atol=1e-14)


def test_missing_photographs_are_counted_in_one_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", LENS)
    (folder / "01.png").unlink()
    with pytest.raises(InputError, match=r"got 1 missing \(first 01.png\); put them back"):
        load(folder)


# ------------------------------------------------------------------------------- the split


def split(capture: Capture) -> tuple[list[str], list[str]]:
    names = [view.name for view in capture.views]
    return [names[i] for i in capture.train], [names[i] for i in capture.test]


@pytest.mark.parametrize("kind", ["test", "val"])
def test_a_file_of_test_frames_is_the_split(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    for name, held_out in (("train", NAMES[:4]), (kind, NAMES[4:6])):
        names = [f"{name}/{photograph}" for photograph in held_out]
        write_photographs(folder, names)
        top = {**LENS, "frames": frames(names)}
        write_transforms(folder / f"transforms_{name}.json", top)
    capture = load(folder, test_every=2)
    train, test = split(capture)
    assert train == [f"train/{name}" for name in NAMES[:4]]
    assert test == [f"{kind}/{name}" for name in NAMES[4:6]]
    line = f"transforms_{kind}.json holds out its 2 images: --test-every is not used"
    assert line in capture.notes
    (tmp_path / "list.txt").write_text("train/01.png\n")
    assert split(load(folder, test_list=tmp_path / "list.txt"))[1] == ["train/01.png"]
    assert len(load(folder / "transforms_train.json").views) == 4


def test_validation_frames_beside_test_frames_are_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    for name in ("train", "test", "val"):
        write_photographs(folder, [f"{name}/0.png"])
        top = {**LENS, "frames": frames([f"{name}/0"])}
        write_transforms(folder / f"transforms_{name}.json", top)
    capture = load(folder)
    assert split(capture) == (["train/0"], ["test/0"])
    taken = "frames are those of transforms_train.json and transforms_test.json"
    assert f"transforms_val.json found, not used: {taken}" in capture.notes


def test_lists_of_names_in_the_file_are_the_split(tmp_path: Path) -> None:
    lists = {"train_filenames": ["00.png", "02.png"], "val_filenames": ["01.png"]}
    folder = write(tmp_path / "a", {**LENS, **lists}, NAMES[:4])
    capture = load(folder)
    assert split(capture) == (["00.png", "02.png"], ["01.png"])
    listed = "they are not in train_filenames and not held out"
    assert f"1 frames are left out: {listed}" in capture.notes
    folder = write(tmp_path / "b", {**LENS, "test_filenames": ["03.png"]}, NAMES[:4])
    assert split(load(folder)) == (["00.png", "01.png", "02.png"], ["03.png"])


# ------------------------------------------------------------------------------- what is told


def test_without_points_training_starts_from_random_ones_around_the_cameras(
    tmp_path: Path,
) -> None:
    capture = load(write(tmp_path / "a", LENS))
    assert capture.points.shape == (20_000, 3)
    assert np.unique(capture.colors).tolist() == [128]
    said = "transforms.json has no ply_file_path: training starts from 20,000 random points"
    assert capture.notes == (said,)
    np.testing.assert_array_equal(load(tmp_path / "a").points, capture.points)


def test_masks_and_depths_that_frames_name_are_told(tmp_path: Path) -> None:
    written = frames(NAMES[:3])
    written[0].update(mask_path="m.png", depth_file_path="d.png")
    written[2].update(mask_path="m.png")
    top = {**LENS, "frames": written, "ply_file_path": "p.ply"}
    folder = write(tmp_path / "a", top)
    (folder / "masks").mkdir()
    write_points(folder / "p.ply")
    assert load(folder).notes == (
        "mask_path of 2 frames found, not used: every pixel is trained on",
        "depth_file_path of 1 frames found, not used: training sees colours alone",
        "masks/ found, not used: every pixel is trained on",
    )


# ------------------------------------------------------------------------------- what is refused


def _frame(**keys: Any) -> dict[str, Any]:
    """The keys of a file whose second frame is broken; None takes a key away."""
    written = frames(NAMES[:3])
    written[1] = {key: v for key, v in {**written[1], **keys}.items() if v is not None}
    return {**LENS, "frames": written}


MIRRORED = np.diag([1.0, 1, -1, 1]).tolist()
SKEWED = np.diag([1.0, 1.1, 1, 1]).tolist()
ASIDE = [[1, 0, 0, 1e10], [0, 1, 0, 0], [0, 0, 1, 0]]
FAR = [[1, 0, 0, 1e19], [0, 1, 0, 0], [0, 0, 1, 0]]
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no frames": ({"frames": []}, r"transforms.json must hold a list of frames, got \[\]"),
    "frames are a number": ({"frames": 3}, "must hold a list of frames, got 3"),
    "a frame is a text": ({"frames": ["a.png"]}, "frame 0 must have keys, got 'a.png'"),
    "no name": (_frame(file_path=None), "frame 1 must name its photograph with file_path, got no"),
    "half a number": (_frame(file_path=None, frame_index=0.5), "must name its photograph with"),
    "name is a number": (_frame(file_path=7), "file_path must be the name of a file, got 7"),
    "name is empty": (_frame(file_path=""), "file_path must be the name of a file, got ''"),
    "name has a NUL": (_frame(file_path="a\0b"), "file_path must be the name of a file, got 'a"),
    "name is half a letter": (_frame(file_path="\ud800"), "file_path must be the name of a file"),
    "name is very long": (_frame(file_path="a" * 300), "must be readable, got: File name too lo"),
    "named twice": (_frame(file_path="./00.png"), "must not repeat a photograph, got 00.png twi"),
    "no pose": (_frame(transform_matrix=None), "frame 1 must have a transform_matrix, got none"),
    "pose of two rows": (_frame(transform_matrix=[[1, 0, 0, 0]] * 2), "must be 3 or 4 rows of 4"),
    "ragged pose": (_frame(transform_matrix=[[1], [1, 2]]), "must be 3 or 4 rows of 4 finite"),
    "pose of texts": (_frame(transform_matrix=[["a"] * 4] * 3), "must be 3 or 4 rows of 4"),
    "pose with NaN": (_frame(transform_matrix=[[math.nan] * 4] * 3), "4 finite numbers"),
    "pose with a last row": (_frame(transform_matrix=[[1, 0, 0, 0]] * 4), "fourth row 0 0 0 1"),
    "pose of zeros": (_frame(transform_matrix=[[0] * 4] * 3), "must begin with a rotation, not"),
    "mirrored pose": (_frame(transform_matrix=MIRRORED), "must begin with a rotation, not mirr"),
    "skewed pose": (_frame(transform_matrix=SKEWED), "rotation, not mirrored and even to 0.005"),
    "camera too far": (_frame(transform_matrix=FAR), r"hold numbers within 1e\+18, got 1e\+19"),
    "other axes": ({**LENS, "from_mitsuba": True}, "poses with OpenGL's axes, got from_mitsuba"),
    "mirrored world": (
        {**LENS, "applied_transform": MIRRORED},
        "applied_transform must be a rotation, not mirrored, with a scale and a shift, got",
    ),
    "world of a text": ({**LENS, "applied_transform": "x"}, "applied_transform must be 3 or 4 row"),
    "scale of zero": ({**LENS, "applied_scale": 0}, "applied_scale must be 1e-09 to 1e.09, got 0"),
    "scale of a typo": ({**LENS, "applied_scale": 1e300}, "applied_scale must be 1e-09 to 1e.09"),
    "far before the scale": (
        {**_frame(transform_matrix=ASIDE), "applied_scale": 1e-9},
        r"transform_matrix must have a translation of at most 1e\+18, got",
    ),
    "no focal length": (SIZE, "frame 0 must have a focal length, fl_x in pixels or camera_angle_"),
    "focal length of zero": ({**LENS, "fl_x": 0}, "must have a focal length of 0.064 to 640000"),
    "focal length is a text": ({**LENS, "fl_x": "60"}, "fl_x must be a number, got '60'"),
    "focal length is true": ({**LENS, "fl_x": True}, "fl_x must be a number, got True"),
    "infinite": ({**LENS, "cx": math.inf}, "cx must be finite, got inf"),
    "huge": ({**LENS, "cx": 10**400}, "cx must be finite, got 1000"),
    "angle of degrees": ({"camera_angle_x": 50, **SIZE}, "above 0 and below pi radians, got 50"),
    "half a pixel": ({**LENS, "w": 64.5}, "w must be 1 to 1048576 whole pixels, got 64.5"),
    "no pixels": ({**LENS, "h": 0}, "h must be 1 to 1048576 whole pixels, got 0"),
    "panorama": (
        {**LENS, "camera_model": "EQUIRECTANGULAR"},
        "camera_model must be one of FULL_OPENCV, .*, SIMPLE_RADIAL, got 'EQUIRECTANGULAR'; und",
    ),
    "model is a list": ({**LENS, "camera_model": [1]}, r"camera_model must be one of .* got \[1\]"),
    "eighth power": ({**LENS, "k4": 0.1}, "k4 of a camera that is no fisheye must be 0, got 0.1"),
    "wild lens": ({**LENS, "k1": 1e9}, r"distortion parameters within 1e\+06, got 1e\+09"),
    "split is a text": ({**LENS, "train_filenames": "a"}, "train_filenames must be a list of file"),
    "split of others": (
        {**LENS, "train_filenames": ["00.png"], "val_filenames": ["01.png", "x.png", "y.png"]},
        r"val_filenames must list photographs of its frames, got 2 unknown \(first x.png\)",
    ),
    "nobody trains": ({**LENS, "train_filenames": []}, "must name its frames in train_filenames"),
    "points are gone": ({**LENS, "ply_file_path": "p.ply"}, "p.ply must be readable, got: No such"),
    "another shape": ({**LENS, "w": 32, "h": 32}, r"of another shape than the camera \(first 00.p"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_transforms_file_is_one_line(case: str, tmp_path: Path) -> None:
    keys, message = BROKEN[case]
    folder = write(tmp_path / "a", keys)
    with pytest.raises(InputError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


RAW: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (lambda p: p.write_text("{'frames': 3}"), "must be JSON in UTF-8, got: Expecting"),
    "cut short": (lambda p: p.write_bytes(p.read_bytes()[:-40]), "must be JSON in UTF-8, got: "),
    "other letters": (lambda p: p.write_bytes(b'{"a": "\xff"}'), "must be JSON in UTF-8, got: "),
    "a list": (lambda p: p.write_text("[1]"), r"must hold a list of frames, got \[1\]"),
    "endless": (lambda p: p.write_text("[" * 100_000), "must be JSON in UTF-8, got: "),
    "empty points": (
        lambda p: write_points(p.parent / "p.ply", np.empty((0, 3)), np.empty((0, 3), np.uint8)),
        "p.ply must hold points to start from, got none that is finite and within 1e.09 times",
    ),
}


@pytest.mark.parametrize("case", RAW)
def test_a_file_of_other_content_is_one_line(case: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {**LENS, "ply_file_path": "p.ply"})
    damage, message = RAW[case]
    damage(folder / "transforms.json")
    with pytest.raises(InputError, match=message):
        load(folder)


def test_sizes_that_nothing_tells_are_one_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"camera_angle_x": ANGLE})
    for name in NAMES[:3]:
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"00.png must be an image that can be read, because its"):
        load(folder, skip_broken=True)


def test_a_path_that_is_no_capture_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sparse/0 or itself, or a transforms.json, got none in"):
        load(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"a folder, or a transforms file that ends with .json"):
        load(tmp_path / "a.txt")
    with pytest.raises(InputError, match="a folder with a COLMAP model, got no folder at"):
        load(tmp_path / "b.json")


WILD = [
    *(None, True, False, 0, -1, 2, 0.5, 1e-300, 1e308, -1e308, math.nan, math.inf, 10**400),
    *("", "x", ".", "..", "/", "a\0b", "\ud800", "00.png", "a\nb", "p" * 300, "x/" * 3000),
    *([], {}, [[]], [None], ["00.png"], [[1e308] * 4] * 3, [[1e200] * 4] * 4, [[0.0] * 4] * 3),
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a tree of JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_value_anywhere_in_the_file_loads_or_is_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("wild")
    written = frames(NAMES[:3])
    written[0].update(LENS, mask_path="m.png", k1=0.01, camera_model="OPENCV")
    written[1].update(path=".", frame_index=1)
    top = {
        **{"w": 64, "h": 48, "camera_angle_x": ANGLE, "k1": 0.0, "is_fisheye": False},
        **{"applied_transform": TURN.tolist(), "applied_scale": 0.5, "ply_file_path": "p.ply"},
        **{"train_filenames": ["00.png", "01.png"], "val_filenames": ["02.png"], "frames": written},
    }
    for _ in range(data.draw(st.integers(1, 2), "damages")):
        places = list(_places(top))
        where, key = places[data.draw(st.integers(0, len(places) - 1), "place")]
        where[key] = copy.deepcopy(data.draw(st.sampled_from(WILD), "value"))
    write(folder, top)
    write_points(folder / "p.ply")
    try:
        capture = load(folder, skip_broken=True)
    except InputError:
        return
    for view in capture.views:
        assert np.isfinite(view.world_to_camera).all()
        assert np.isfinite(view.K).all()
    assert all("\n" not in note for note in capture.notes)


# ------------------------------------------------------------------------------- the commands


def test_a_turned_capture_is_planned_trained_scored_and_exported_as_it_was_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = write_turned(tmp_path / "turned"), tmp_path / "run"
    undone = "applied_transform of transforms.json is undone"
    assert main(["plan", str(folder), "--renderer", "cpu", "--json"]) == 0
    assert undone in capsys.readouterr().err
    command = ["fit", str(folder), "--out", str(run), "--renderer", "cpu", "--steps", "1"]
    assert main(command) == 0
    assert undone in capsys.readouterr().err
    shutil.move(folder, tmp_path / "moved")
    moved = ["--data", str(tmp_path / "moved")]
    assert main(["eval", str(run), "--renderer", "cpu", *moved]) == 0
    assert main(["export", str(run), "--frame", "capture", *moved]) == 0
    export = run / "export/inria"
    listed = {item["img_name"]: item for item in json.loads((export / "cameras.json").read_text())}
    for name, pose in zip(NAMES, poses()):
        item = listed[name.removesuffix(".png")]
        np.testing.assert_allclose(item["position"], np.linalg.inv(pose)[:3, 3], atol=1e-12)
        np.testing.assert_allclose(item["rotation"], pose[:3, :3].T, atol=1e-12)
    # The capture's own file has other axes than a viewer of Inria's expects.
    assert f"source_path='{export}'" in (export / "cfg_args").read_text()
    from gs_train.files.ply import load_ply

    means = load_ply(export / "point_cloud/iteration_1/point_cloud.ply")["means"].numpy()
    nearest = np.linalg.norm(means[:, None] - POINTS, axis=2).min(axis=1)
    assert nearest.max() < 0.05  # one step away from the points; turned ones would be metres away
    assert len(means) == len(POINTS) == len(COLORS)
    assert (PINHOLE.width, PINHOLE.height) == (LENS["w"], LENS["h"])
