# SPDX-License-Identifier: Apache-2.0
"""Numbers of a capture that float64 holds and float32, or a camera, cannot: refused or left out."""

from __future__ import annotations

import dataclasses
import functools
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_captures import LENS, PINHOLE, write_capture

from gs_train.cli import main
from gs_train.data.colmap_records import Camera
from gs_train.data.distortion import Pinhole, is_distorted, undistorted_pinhole
from gs_train.data.examine import frame_and_points
from gs_train.data.point_ply import read_point_ply
from gs_train.data.ranges import FARTHEST_CAMERA, FARTHEST_POINT
from gs_train.data.readers.choose import read_source
from gs_train.errors import InputError
from gs_train.files.ply import load_ply
from gs_train.scene.initialize import rows_from_points

FX, CX = 8 + 24, 8 + 40  # of the first camera of cameras.bin
QW, TX = 8 + 4, 8 + 36  # of the first image of images.bin
X = 8 + 8  # of the first point of points3D.bin

POINTS = np.random.default_rng(0).normal(0, 1, (150, 3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = [(f"{i:02}.png", LENS if i == 3 else PINHOLE) for i in range(6)]
    return write_capture(tmp_path / "data", images, points=POINTS)


def put(folder: Path, file: str, offset: int, value: float) -> None:
    path = folder / "sparse/0" / file
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = struct.pack("<d", value)
    path.write_bytes(data)


@functools.cache
def pinhole(camera: Camera) -> Pinhole:
    return undistorted_pinhole(camera) if is_distorted(camera) else Pinhole.of(camera, None)


def load(folder: Path) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, list[str]]:
    """Poses and intrinsics as training has them, points there, and what was said of them."""
    source = read_source(folder)
    frame, points, _, notes = frame_and_points(source.model, source.points)
    poses = np.stack([frame.pose_in(image.world_to_camera) for image in source.model.images])
    cameras = source.model.cameras.values()
    return poses, [pinhole(camera).K for camera in cameras], frame.points_in(points), notes


@pytest.mark.parametrize("value", [1e39, 1e300, 1e-300, 5e-324, 0.0, -0.0, -60.0, 1e7, 1e-4])
def test_a_focal_length_that_no_camera_has_is_refused(folder: Path, value: float) -> None:
    put(folder, "cameras.bin", FX, value)
    with pytest.raises(InputError, match=r"camera 1 must have a focal length of 0.064 to 640000 p"):
        load(folder)


@pytest.mark.parametrize("value", [1e39, -1e39, 1e7, -1e300])
def test_a_principal_point_far_outside_the_image_is_refused(folder: Path, value: float) -> None:
    put(folder, "cameras.bin", CX, value)
    with pytest.raises(InputError, match="must have its principal point within 640000 pixels"):
        load(folder)


@pytest.mark.parametrize("value", [1e39, -1e300, 1e19])
def test_a_translation_beyond_float32_is_refused(folder: Path, value: float) -> None:
    put(folder, "images.bin", TX, value)
    with pytest.raises(InputError, match=r"image '00.png' must have a translation of at most"):
        load(folder)


@pytest.mark.parametrize("value", [1e200, 5e-324, 0.0, 1e13])
def test_a_quaternion_that_is_no_rotation_is_refused(folder: Path, value: float) -> None:
    put(folder, "images.bin", QW, value)  # x, y, z are 0
    with pytest.raises(InputError, match=r"image '00.png' must have a quaternion of a length from"):
        load(folder)


def test_a_camera_too_far_from_the_others_is_named(folder: Path) -> None:
    put(folder, "images.bin", TX, 100 * FARTHEST_CAMERA)
    with pytest.raises(InputError, match=r"within 1e\+06 times .*, got 1 further out \(first 00"):
        load(folder)


@pytest.mark.parametrize("value", [1e155, 1e308, -1e39, 1e12])
def test_an_absurd_point_is_left_out_and_counted(folder: Path, value: float) -> None:
    put(folder, "points3D.bin", X, value)
    _, _, points, notes = load(folder)
    assert len(points) == len(POINTS) - 1
    assert [note.split(":")[0] for note in notes] == ["1 of 150 points are left out"]


def test_points_a_million_scenes_away_stay(folder: Path) -> None:
    put(folder, "points3D.bin", X, 1e6)
    _, _, points, notes = load(folder)
    assert len(points) == len(POINTS)
    assert notes == []
    rows = rows_from_points(points, np.zeros((150, 3), np.uint8), sh_degree=0, seed=0)
    assert all(np.isfinite(values.numpy()).all() for values in rows.values())


@pytest.mark.parametrize("offset", [1e4, 1e7])
@pytest.mark.parametrize("unit", [1e-2, 1.0, 1e6])
def test_a_capture_with_large_offsets_or_another_unit_keeps_all_points(
    offset: float, unit: float, folder: Path, tmp_path: Path
) -> None:
    moved = write_capture(tmp_path / "moved", [("a.png", PINHOLE)], points=POINTS * unit + offset)
    images = []
    for image in read_source(folder).model.images:
        pose = image.world_to_camera.copy()
        pose[:3, 3] = pose[:3, 3] * unit - offset
        images.append(dataclasses.replace(image, world_to_camera=pose))
    source = read_source(moved)
    model = dataclasses.replace(source.model, images=tuple(images))
    _, points, _, notes = frame_and_points(model, source.points)
    assert (len(points), notes) == (len(POINTS), [])


def test_points_that_are_all_out_of_reach_are_refused(tmp_path: Path) -> None:
    folder = write_capture(tmp_path, [("a.png", PINHOLE), ("b.png", PINHOLE)], points=POINTS * 1e40)
    with pytest.raises(InputError, match=r"got 150, all further than 1e\+09 times the cameras"):
        load(folder)


def test_a_run_with_an_absurd_point_says_so_and_writes_all_its_gaussians(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder, "points3D.bin", X, 1e155)
    out = tmp_path / "run"
    command = ["fit", str(folder), "--out", str(out), "--renderer", "cpu", "--steps", "1"]
    assert main([*command, "--resort-every", "0"]) == 0
    assert "1 of 150 points are left out" in capsys.readouterr().err
    rows = load_ply(out / "point_cloud/iteration_1/point_cloud.ply")
    assert len(rows["means"]) == 149


def test_far_points_of_a_ply_file_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.ply"
    rows = ["0 0 0", "1e155 0 0", "0 -1e300 0", "1 1 1e6", "nan 0 0"]
    header = "ply\nformat ascii 1.0\nelement vertex 5\n"
    header += "".join(f"property double {name}\n" for name in "xyz") + "end_header\n"
    path.write_text(header + "\n".join(rows) + "\n")
    cloud = read_point_ply(path, transform=lambda points: points * 1e10)
    assert cloud.points.tolist() == [[0, 0, 0]]
    assert cloud.n_dropped == 4
    assert read_point_ply(path).n_dropped == 3


FIELDS = [
    *(("cameras.bin", 8 + 24 + 8 * i) for i in range(4)),
    *(("cameras.bin", 8 + 56 + 24 + 8 * i) for i in range(4)),
    *(("images.bin", 8 + 4 + 8 * i) for i in range(7)),
    *(("points3D.bin", X + 8 * i) for i in range(3)),
]
EXTREMES = [10.0**e for e in (-300, -40, -20, -7, -3, 3, 6, 9, 12, 18, 20, 38, 39, 100, 155, 308)]
NUMBERS = st.one_of(st.floats(), st.sampled_from([*EXTREMES, *(-x for x in EXTREMES), 0.0, -0.0]))


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.lists(st.tuples(st.sampled_from(FIELDS), NUMBERS), min_size=1, max_size=3))
def test_any_number_anywhere_is_refused_or_means_something_in_float32(
    folder: Path, changes: list[tuple[tuple[str, int], float]]
) -> None:
    saved = {path: path.read_bytes() for path in (folder / "sparse/0").iterdir()}
    try:
        for (file, offset), value in changes:
            put(folder, file, offset, value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                poses, intrinsics, points, _ = load(folder)
            except InputError:
                return
        for values in (poses, *intrinsics, points):
            single = values.astype(np.float32)
            assert np.isfinite(single).all()
        assert np.isfinite(np.square(np.square(points.astype(np.float32)))).all()
        assert np.abs(points).max() <= FARTHEST_POINT
        rotations = poses[:, :3, :3]
        np.testing.assert_allclose(np.linalg.det(rotations), 1, atol=1e-9)
        assert all(K[0, 0] > 0 and K[1, 1] > 0 for K in intrinsics)
    finally:
        for path, data in saved.items():
            path.write_bytes(data)
