# SPDX-License-Identifier: Apache-2.0
"""COLMAP models: ours against pycolmap, and every way in which a file can be broken."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.data import colmap_binary
from gs_train.data.colmap import largest, models_in, read_model, read_points
from gs_train.data.colmap_records import CAMERA_MODELS, Camera
from gs_train.data.colmap_writer import NamedPose, Observations, write_model
from gs_train.errors import InputError

DATA = Path(os.environ.get("GS_DATA", Path(__file__).resolve().parents[4] / "shared/data"))

CAMERAS = [
    Camera(1, "PINHOLE", 640, 480, (500.0, 510.0, 320.0, 240.0)),
    Camera(7, "OPENCV", 800, 600, (700.0, 701.0, 400.5, 300.25, 0.1, -0.02, 1e-3, -2e-3)),
]


def some_pose(rng: np.random.Generator) -> np.ndarray:
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation = q * np.sign(np.diag(r))
    rotation[:, 0] *= np.sign(np.linalg.det(rotation))
    pose = np.eye(4)
    pose[:3, :3] = rotation
    pose[:3, 3] = rng.normal(size=3)
    return pose


def write_small(
    folder: Path, *, n_images: int = 5, n_points: int = 40, n_seen: int = 150, seed: int = 0
) -> tuple[list[NamedPose], np.ndarray, np.ndarray, Observations]:
    rng = np.random.default_rng(seed)
    images = [
        NamedPose(f"side {i % 2}/{n_images - i:03}.jpg", (1, 7)[i % 2], some_pose(rng))
        for i in range(n_images)
    ]
    points = rng.normal(size=(n_points, 3))
    colors = rng.integers(0, 256, (n_points, 3)).astype(np.uint8)
    n_seen = n_seen if n_images * n_points else 0
    seen = Observations(
        rng.integers(0, max(n_images, 1), n_seen),
        rng.integers(0, max(n_points, 1), n_seen),
        rng.uniform(0, 480, (n_seen, 2)),
    )
    write_model(folder, CAMERAS, images, points=points, colors=colors, observations=seen)
    return images, points, colors, seen


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_small(tmp_path / "sparse/0")
    return tmp_path / "sparse/0"


def as_text(model: Path) -> Path:
    import pycolmap

    folder = model.with_name(f"{model.name}_text")
    folder.mkdir()
    pycolmap.Reconstruction(str(model)).write_text(str(folder))
    return folder


def test_camera_models_are_those_of_colmap() -> None:
    import pycolmap

    ours = {name: (id, n_params) for id, (name, n_params) in enumerate(CAMERA_MODELS)}
    ids = pycolmap.CameraModelId.__members__
    theirs = {
        name: (int(id), len(pycolmap.Camera.create_from_model_name(1, name, 10.0, 8, 6).params))
        for name, id in ids.items()
        if int(id) >= 0
    }
    assert ours == theirs


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_a_model_reads_as_pycolmap_reads_it(tmp_path: Path, text: bool) -> None:
    import pycolmap

    folder = tmp_path / "sparse/0"
    _, points, colors, seen = write_small(folder)
    oracle = pycolmap.Reconstruction(str(folder))
    if text:
        folder = as_text(folder)

    model = read_model(folder)
    xyz, rgb = read_points(folder)

    assert set(model.cameras) == set(oracle.cameras) == {1, 7}
    for id, camera in model.cameras.items():
        theirs = oracle.cameras[id]
        assert (camera.model, camera.width, camera.height) == (
            theirs.model_name,
            theirs.width,
            theirs.height,
        )
        assert camera.params == tuple(theirs.params)
        np.testing.assert_array_equal(camera.K, theirs.calibration_matrix())
    assert [image.name for image in model.images] == sorted(i.name for i in oracle.images.values())
    for image in model.images:
        theirs = oracle.images[image.id]
        assert (image.name, image.camera_id) == (theirs.name, theirs.camera_id)
        # Both go through a quaternion: a few roundings of numbers around 1.
        np.testing.assert_allclose(
            image.world_to_camera[:3], theirs.cam_from_world().matrix(), atol=1e-14
        )
        assert len(theirs.points2D) == int((seen.image == image.id - 1).sum())
    order = np.lexsort(xyz.T)
    np.testing.assert_array_equal(xyz[order], points[np.lexsort(points.T)])
    np.testing.assert_array_equal(rgb[order], colors[np.lexsort(points.T)])


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_a_model_of_rigs_has_the_pose_of_each_camera(tmp_path: Path, text: bool) -> None:
    import pycolmap

    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 2, 3, 4
    options.num_points3D = 50
    options.sensor_from_rig_translation_stddev = 0.3
    options.sensor_from_rig_rotation_stddev = 10.0  # degrees
    oracle = pycolmap.synthesize_dataset(options)
    (oracle.write_text if text else oracle.write_binary)(str(tmp_path))
    assert (tmp_path / ("rigs.txt" if text else "rigs.bin")).stat().st_size > 100

    model = read_model(tmp_path)

    assert len(model.cameras) == 6
    assert len(model.images) == 2 * 3 * 4
    off_rigs = []
    for image in model.images:
        theirs = oracle.images[image.id]
        assert (image.name, image.camera_id) == (theirs.name, theirs.camera_id)
        # Both go through a quaternion, and text through 17 digits.
        np.testing.assert_allclose(
            image.world_to_camera[:3], theirs.cam_from_world().matrix(), atol=1e-13
        )
        of_rig = theirs.frame.rig_from_world.matrix()
        off_rigs.append(np.abs(image.world_to_camera[:3] - of_rig).max())
    assert sum(off > 0.01 for off in off_rigs) == 2 * 2 * 4  # all but the rigs' reference cameras


@pytest.mark.parametrize("model", ["SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "FULL_OPENCV"])
def test_intrinsics_follow_the_model(model: str) -> None:
    import pycolmap

    theirs = pycolmap.Camera.create_from_model_name(1, model, 100.0, 64, 48)
    theirs.params = np.arange(1.0, len(theirs.params) + 1)
    ours = Camera(1, model, 64, 48, tuple(theirs.params))
    np.testing.assert_array_equal(ours.K, theirs.calibration_matrix())
    n_shared = 4 if model == "FULL_OPENCV" else 3
    assert ours.distortion == tuple(theirs.params[n_shared:])


@pytest.mark.parametrize("scene", ["fox", "caliterra"])
def test_real_captures_read_as_pycolmap_reads_them(scene: str) -> None:
    import pycolmap

    if not (DATA / scene).is_dir():
        pytest.skip(f"needs the capture {DATA / scene} (set GS_DATA)")
    folder = largest(models_in(DATA / scene))
    model = read_model(folder)
    points, colors = read_points(folder)
    oracle = pycolmap.Reconstruction(str(folder))
    by_name = {image.name: image for image in oracle.images.values()}
    assert [image.name for image in model.images] == sorted(by_name)
    for image in model.images:
        np.testing.assert_allclose(
            image.world_to_camera[:3], by_name[image.name].cam_from_world().matrix(), atol=1e-13
        )
    theirs = [oracle.points3D[id] for id in sorted(oracle.points3D)]
    expected = np.array([(*point.xyz, *point.color) for point in theirs])
    ours = np.concatenate([points, colors], axis=1)
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], expected[np.lexsort(expected.T)])


@given(n_points=st.integers(0, 12), n_seen=st.integers(0, 60), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_points_read_back_whatever_the_chunk_boundaries(
    tmp_path_factory: pytest.TempPathFactory, n_points: int, n_seen: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("model")
    _, points, colors, _ = write_small(folder, n_points=n_points, n_seen=n_seen, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        for chunk in (51, 64, 200, 1 << 20):
            patch.setattr(colmap_binary, "CHUNK_BYTES", chunk)
            xyz, rgb = read_points(folder)
            np.testing.assert_array_equal(xyz, points)
            np.testing.assert_array_equal(rgb, colors)


def test_tracks_and_2d_points_are_not_held(tmp_path: Path) -> None:
    write_small(tmp_path, n_images=3, n_points=2, n_seen=400_000)
    size = sum((tmp_path / f"{part}.bin").stat().st_size for part in ("images", "points3D"))
    assert size > 12e6
    read_points(tmp_path)  # compiled now
    tracemalloc.start()
    read_model(tmp_path)
    read_points(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < colmap_binary.CHUNK_BYTES + (1 << 20)


def test_images_of_a_text_model_may_have_no_2d_points(tmp_path: Path) -> None:
    (tmp_path / "cameras.txt").write_text("# comment\n1 SIMPLE_PINHOLE 8 6 5 4 3\n")
    (tmp_path / "images.txt").write_text(
        "# comment\n2 2 0 0 0 1 2 3 1 b with space.jpg\n\n1 1 0 0 0 0 0 0 1 a.jpg"
    )
    (tmp_path / "points3D.txt").write_text("# nothing\n")
    model = read_model(tmp_path)
    assert [image.name for image in model.images] == ["a.jpg", "b with space.jpg"]
    np.testing.assert_array_equal(model.images[1].world_to_camera[:3, 3], [1, 2, 3])
    np.testing.assert_array_equal(model.images[1].world_to_camera[:3, :3], np.eye(3))
    assert read_points(tmp_path)[0].shape == (0, 3)


# ------------------------------------------------------------------------------ finding a model


def test_the_model_with_most_images_is_found(tmp_path: Path) -> None:
    for name, n_images in (("0", 2), ("1", 5), ("10", 5), ("2", 3)):
        write_small(tmp_path / "sparse" / name, n_images=n_images)
    assert largest(models_in(tmp_path)) == tmp_path / "sparse/1"


def test_text_models_count_too(tmp_path: Path) -> None:
    write_small(tmp_path / "sparse/0", n_images=2)
    write_small(tmp_path / "sparse/1", n_images=4)
    as_text(tmp_path / "sparse/1")
    for file in (tmp_path / "sparse/1").iterdir():
        file.unlink()
    assert largest(models_in(tmp_path)) == tmp_path / "sparse/1_text"


def test_a_model_directly_in_sparse_is_found(tmp_path: Path) -> None:
    write_small(tmp_path / "sparse")
    assert largest(models_in(tmp_path)) == tmp_path / "sparse"


def test_a_folder_without_a_whole_model_has_none(tmp_path: Path) -> None:
    assert models_in(tmp_path / "absent") == []
    (tmp_path / "sparse/0").mkdir(parents=True)
    (tmp_path / "sparse/0/cameras.bin").touch()
    assert models_in(tmp_path) == []


# ------------------------------------------------------------------------------ broken files


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_a_file_cut_anywhere_is_an_input_error(model: Path, part: str) -> None:
    path = model / f"{part}.bin"
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 37), 0, 3, len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=rf"{part}.bin.* truncated or corrupt"):
            read_points(model) if part == "points3D" else read_model(model)


@pytest.mark.parametrize("part", ["cameras", "images", "points3D"])
def test_an_absurd_count_is_refused_before_any_memory_is_taken(model: Path, part: str) -> None:
    path = model / f"{part}.bin"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])
    with pytest.raises(InputError, match=rf"{part}.bin must hold the {1 << 60} .* room for \d+ at"):
        read_points(model) if part == "points3D" else read_model(model)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def test_an_absurd_track_length_is_an_input_error(model: Path) -> None:
    overwrite(model / "points3D.bin", 8 + 43, struct.pack("<Q", 1 << 61))
    with pytest.raises(
        InputError, match=r"points3D.bin must have at least \d+ bytes to hold point"
    ):
        read_points(model)


def test_an_absurd_number_of_2d_points_is_an_input_error(model: Path) -> None:
    name = b"side 0/005.jpg\0"
    overwrite(model / "images.bin", 8 + 64 + len(name), struct.pack("<Q", 1 << 61))
    with pytest.raises(
        InputError, match=r"images.bin must have at least \d+ bytes .* image 0 of 5"
    ):
        read_model(model)


def test_a_name_without_end_is_an_input_error(model: Path) -> None:
    overwrite(model / "images.bin", 8 + 64, b"x" * 5000)
    with pytest.raises(InputError, match=r"the name of image 0 of 5 must end within 4096 bytes"):
        read_model(model)


@pytest.mark.parametrize("id", [-1, 18, 1 << 30])
def test_an_unknown_camera_model_id_is_an_input_error(model: Path, id: int) -> None:
    overwrite(model / "cameras.bin", 8 + 4, struct.pack("<i", id))
    with pytest.raises(InputError, match=rf"model id of camera 1 must be 0 to 17, got {id}"):
        read_model(model)


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (
            8 + 8,
            struct.pack("<Q", 0),
            r"camera 1 must have sides of 1 to 1048576 pixels, got 0x480",
        ),
        (8 + 16, struct.pack("<Q", 1 << 40), r"must have sides of 1 to 1048576 pixels, got 640x1"),
        (8 + 24, struct.pack("<d", np.nan), r"parameters of camera 1 must be finite, got \(nan"),
        (
            8 + 32,
            struct.pack("<d", -3.0),
            r"camera 1 must have a focal length of 0.64 to 6.4e\+06 pixels, got -3",
        ),
        (8 + 56, struct.pack("<i", 1), r"must not repeat a camera id, got 1 twice"),
    ],
)
def test_a_corrupt_camera_is_an_input_error(
    model: Path, offset: int, data: bytes, message: str
) -> None:
    overwrite(model / "cameras.bin", offset, data)
    with pytest.raises(InputError, match=message):
        read_model(model)


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (8 + 4, struct.pack("<d", np.nan), r"pose of image 'side 0/005.jpg' must be finite"),
        (8 + 36, struct.pack("<d", np.inf), r"pose of image 'side 0/005.jpg' must be finite"),
        (8 + 4, struct.pack("<4d", 0, 0, 0, 0), r"image 'side 0/005.jpg' must have a quaternion"),
        (8 + 60, struct.pack("<I", 9), r"camera of image side 0/005.jpg must be .*, got id 9"),
        (8 + 64, b"/", r"name must be a path inside the image folder, got '/ide 0/005.jpg'"),
        (8 + 64, b"../", r"name must be a path inside the image folder, got '../"),
        (8 + 64, bytes(9), r"name must be a path inside the image folder, got ''"),
    ],
)
def test_a_corrupt_image_is_an_input_error(
    model: Path, offset: int, data: bytes, message: str
) -> None:
    overwrite(model / "images.bin", offset, data)
    with pytest.raises(InputError, match=message):
        read_model(model)


def test_a_repeated_image_name_is_an_input_error(tmp_path: Path) -> None:
    images = [NamedPose("a.jpg", 1, np.eye(4))] * 2
    none = Observations(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2)))
    write_model(
        tmp_path,
        CAMERAS,
        images,
        points=np.zeros((0, 3)),
        colors=np.zeros((0, 3), np.uint8),
        observations=none,
    )
    with pytest.raises(InputError, match=r"must not repeat an image name, got a.jpg twice"):
        read_model(tmp_path)


def test_no_images_is_an_input_error(tmp_path: Path) -> None:
    write_small(tmp_path, n_images=0)
    with pytest.raises(InputError, match=r"images.bin must hold at least one registered image"):
        read_model(tmp_path)


def test_points_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    write_small(tmp_path, n_seen=0)
    for index, value in ((3, np.nan), (8, -np.inf)):
        overwrite(tmp_path / "points3D.bin", 8 + 51 * index + 16, struct.pack("<d", value))
    with pytest.raises(InputError, match=r"points must be finite, got NaN or Inf in 2 of 40"):
        read_points(tmp_path)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("cameras", "1 PINHOLE 64\n", r"cameras.txt:1: line must be 'CAMERA_ID MODEL .* '1 PINHO"),
        ("cameras", "1 PINHOLE 64 48 9 9 1\n", r"\(PINHOLE\) must have 4 parameters, got 3"),
        ("cameras", "1 LENSLET 64 48 9 9 1\n", r"must be one that COLMAP defines, got 'LENSLET'"),
        ("images", "\n1 1 0 0 0 0 0\n", r"images.txt:2: line must be 'IMAGE_ID QW"),
        ("images", "1 1 0 0 zero 0 0 0 1 a.jpg\n\n", r"images.txt:1: line must be 'IMAGE_ID QW"),
        ("images", "1 1 0 0 nan 0 0 0 1 a.jpg\n\n", r"images.txt:1: pose of image 'a.jpg' must be"),
        ("images", "# none\n", r"images.txt must hold at least one registered image, got 0"),
        ("points3D", "1 0 0 0 1 2 3 0 1 0\n2 0.5 0.1\n", r"points3D.txt:2: line must be 'POINT3D"),
        ("points3D", "1 0 0 0 1 2 300 0\n", r"points3D.txt:1: line must be 'POINT3D_ID X Y Z"),
        ("points3D", "1 0 nan 0 1 2 3 0\n", r"points must be finite, got NaN or Inf in 1 of 1"),
    ],
)
def test_a_corrupt_text_file_is_an_input_error(
    model: Path, part: str, content: str, message: str
) -> None:
    folder = as_text(model)
    (folder / f"{part}.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        read_points(folder) if part == "points3D" else read_model(folder)
