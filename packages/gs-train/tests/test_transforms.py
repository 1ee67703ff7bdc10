# SPDX-License-Identifier: Apache-2.0
"""Captures with a transforms file: every spelling is the same capture as with a COLMAP model."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_captures import PINHOLE
from transforms_files import (
    ANGLE,
    COLORS,
    LENS,
    NAMES,
    POINTS,
    SIZE,
    TURN,
    frames,
    load,
    matrix_of,
    poses,
    write,
    write_colmap,
    write_photographs,
    write_points,
    write_transforms,
    write_turned,
)

from gs_train.cli import main
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.data import Capture, PhotoReader, read_image
from gs_train.data.colmap_records import Camera
from gs_train.data.readers.choose import read_source
from gs_train.errors import InputError
from gs_train.options.config import FitConfig


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


@pytest.mark.parametrize("shutter", [[0.0, 0.0, 0.5, 0.0], 1])
@pytest.mark.parametrize("is_of_frame", [False, True])
def test_a_rolling_shutter_is_one_line(shutter: Any, is_of_frame: bool, tmp_path: Path) -> None:
    written = frames(NAMES[:3])
    top = {**LENS, "frames": written, "rolling_shutter": [0, 0, 0, 0]}
    (written[1] if is_of_frame else top)["rolling_shutter"] = shutter
    notes = load(write(tmp_path / "a", top)).notes
    rows = "all rows of a photograph count as exposed at once"
    assert [note for note in notes if "shutter" in note] == [
        f"rolling_shutter of transforms.json is not used: {rows}"
    ]


def test_keys_that_say_no_to_a_lens_and_to_a_shutter_change_nothing(tmp_path: Path) -> None:
    keys = {"latlong": False, "equirectangular": None, "orthographic": 0, "ftheta_p0": None}
    plain = write(tmp_path / "a", LENS)
    said = write(tmp_path / "b", {**LENS, **keys, "rolling_shutter": [0.0, 0, 0, 0]})
    assert_same(load(said), load(plain))
    assert load(said).notes == load(plain).notes


SPELLINGS: dict[str, tuple[dict[str, Any], str, tuple[float, ...]]] = {
    "whole": (LENS, "PINHOLE", (60, 61, 32, 24)),
    "angle": ({"camera_angle_x": ANGLE, **SIZE}, "PINHOLE", (60, 60, 32, 24)),
    "angle without size": ({"camera_angle_x": ANGLE}, "PINHOLE", (60, 60, 32, 24)),
    "angles": (
        {"camera_angle_x": ANGLE, "camera_angle_y": 2 * math.atan(24 / 61), **SIZE},
        "PINHOLE",
        (60, 61, 32, 24),
    ),
    "degrees": (
        {"x_fov": math.degrees(ANGLE), "y_fov": math.degrees(2 * math.atan(24 / 61)), **SIZE},
        "PINHOLE",
        (60, 61, 32, 24),
    ),
    "degrees of one side": ({"x_fov": math.degrees(ANGLE), **SIZE}, "PINHOLE", (60, 60, 32, 24)),
    "radians before degrees": (
        {"camera_angle_x": ANGLE, "x_fov": 10, **SIZE},
        "PINHOLE",
        (60, 60, 32, 24),
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
    assert load(folder, mask="off").notes == (
        "mask_path of 2 frames found, not used: every pixel is trained on",
        "depth_file_path of 1 frames found, not used: --depth-weight START:END trains on depth "
        "maps",
    )


# ------------------------------------------------------------------------------- the commands


def test_a_turned_capture_is_planned_trained_scored_and_exported_as_it_was_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = write_turned(tmp_path / "turned"), tmp_path / "run"
    undone = "applied_transform of transforms.json is undone"
    planned = capture_without_photographs(FitConfig(data=folder, out=run))
    assert planned.notes[0].startswith(undone)
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
