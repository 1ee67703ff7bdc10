# SPDX-License-Identifier: Apache-2.0
"""Starting from a file of points: reading, thinning, and the distance of neighbours."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from gs_train.cli import main
from gs_train.data.point_ply import read_point_ply
from gs_train.errors import InputError
from gs_train.files.ply import load_ply
from gs_train.rows.morton import morton_order
from gs_train.scene.initialize import rows_from_cloud, rows_from_points
from gs_train.scene.neighbours import neighbour_spacing
from gs_train.scene.thinning import thinned_order

TYPES = {"f4": "float", "f8": "double", "u1": "uchar", "u2": "ushort", "i4": "int"}


def _surface(n: int, seed: int = 0) -> np.ndarray:
    """Points whose density varies a thousandfold, on a bumpy surface with a clump and repeats."""
    random = np.random.default_rng(seed)
    points = random.random((n, 3)) ** 3 * 100
    points[:, 2] = np.sin(points[:, 0]) + random.normal(0, 0.01, n)
    points[: n // 10] = points[n // 2] + random.normal(0, 1e-3, (n // 10, 3))
    points[-n // 20 :] = points[0]
    return points.astype(np.float32)


def _sorted(points: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(points[morton_order(torch.from_numpy(points)).numpy()])


def _write(path: Path, records: np.ndarray, order: str = "<", before: bytes = b"") -> Path:
    lines = ["ply", f"format binary_{'little' if order == '<' else 'big'}_endian 1.0"]
    if before:
        lines += ["element camera 1", "property uchar a"]
    lines += [f"element vertex {len(records)}"]
    for name in records.dtype.names:
        lines.append(f"property {TYPES[records.dtype[name].str[1:]]} {name}")
    lines += ["element face 1", "property list uchar int vertex_indices", "end_header", ""]
    records = records.astype(records.dtype.newbyteorder(order))
    path.write_bytes("\n".join(lines).encode() + before + records.tobytes())
    return path


def _records(n: int = 1000) -> np.ndarray:
    random = np.random.default_rng(1)
    kinds = [("x", "f8"), ("red", "u1"), ("z", "f4"), ("y", "f4"), ("green", "u1"), ("blue", "u1")]
    records = np.zeros(n, kinds)
    for name, kind in kinds:
        records[name] = random.random(n) if kind[0] == "f" else random.integers(0, 256, n)
    return records


# ---------------------------------------------------------------------- neighbours


@pytest.mark.parametrize("n", [4, 5, 8, 9, 17, 1000, 20_000])
def test_spacing_is_that_of_an_exact_search(n: int) -> None:
    points = _sorted(_surface(n))
    distances = cKDTree(points.astype(np.float64)).query(points, k=4)[0][:, 1:]
    expected = np.sqrt((distances**2).mean(axis=1))
    # One rounding to float32: no approximation.
    np.testing.assert_allclose(neighbour_spacing(points), expected, rtol=6e-8, atol=0)


def test_spacing_does_not_depend_on_the_order_of_points() -> None:
    points = _sorted(_surface(3000))
    order = np.random.default_rng(0).permutation(len(points))
    shuffled = neighbour_spacing(np.ascontiguousarray(points[order]))
    np.testing.assert_array_equal(shuffled, neighbour_spacing(points)[order])


def test_spacing_of_few_points_is_infinite_and_of_none_is_empty() -> None:
    assert np.isinf(neighbour_spacing(_surface(3))).all()
    assert len(neighbour_spacing(np.empty((0, 3), np.float32))) == 0


def test_rows_are_those_of_the_reconstruction_s_points() -> None:
    points = _sorted(_surface(500))
    colors = np.random.default_rng(0).integers(0, 256, (500, 3), dtype=np.uint8)
    options = {"sh_degree": 2, "opacity": 0.3, "scale": 1.5, "seed": 4}
    cloud, plain = (
        make(points, colors, **options)  # type: ignore[operator]
        for make in (rows_from_cloud, rows_from_points)
    )
    assert cloud.keys() == plain.keys()
    for name, values in plain.items():
        assert cloud[name].shape == values.shape
        torch.testing.assert_close(cloud[name].contiguous(), values, rtol=3e-7, atol=3e-7)
    for name in ("scales", "opacities", "shN"):
        assert 0 in cloud[name].stride(), name  # no memory for what is the same


def test_clouds_that_cannot_be_started_from_are_refused() -> None:
    grey = np.zeros((5, 3), np.uint8)
    with pytest.raises(InputError, match="point cloud must have at least 4 points, got 3"):
        rows_from_cloud(np.zeros((3, 3), np.float32), grey[:3], sh_degree=0, seed=0)
    with pytest.raises(InputError, match="points must not all coincide, got 5 times"):
        rows_from_cloud(np.ones((5, 3), np.float32), grey, sh_degree=0, seed=0)


# ---------------------------------------------------------------------- thinning


def test_all_points_are_taken_where_they_fit() -> None:
    points = _surface(1000)
    for limit in (None, 1000, 5000):
        order = thinned_order(points, limit)
        np.testing.assert_array_equal(order, morton_order(torch.from_numpy(points)).numpy())


@pytest.mark.parametrize("limit", [1, 7, 100, 999])
def test_thinning_reaches_the_limit_and_keeps_the_order(limit: int) -> None:
    points = np.random.default_rng(0).random((1000, 3)).astype(np.float32)
    order = thinned_order(points, limit)
    assert len(order) == limit == len(set(order.tolist()))
    place = {int(i): k for k, i in enumerate(morton_order(torch.from_numpy(points)).tolist())}
    places = [place[int(i)] for i in order]
    assert places == sorted(places)


def test_thinning_takes_from_the_dense_and_leaves_the_sparse() -> None:
    """A grid of distant points survives a clump of a hundred times as many."""
    random = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(8.0)] * 3), -1).reshape(-1, 3)
    clump = 3.4 + 0.01 * random.random((51_200, 3))
    points = np.concatenate([clump, grid]).astype(np.float32)
    order = thinned_order(points, 1000)
    assert len(order) == 1000
    assert set(range(51_200, 51_712)) <= set(order.tolist())


def test_points_that_coincide_are_one() -> None:
    points = np.repeat(np.random.default_rng(0).random((10, 3)), 50, axis=0).astype(np.float32)
    assert len(thinned_order(points, 100)) == 10


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("chunk", [1 << 20, 300])
def test_points_are_read_by_name(tmp_path: Path, order: str, chunk: int) -> None:
    records = _records()
    seen: list[tuple[int, int]] = []
    cloud = read_point_ply(
        _write(tmp_path / "p.ply", records, order, before=b"\7"),
        report=lambda *done: seen.append(done),
        piece_rows=chunk,
    )
    for column, name in enumerate("xyz"):
        np.testing.assert_array_equal(cloud.points[:, column], records[name].astype(np.float32))
    for column, name in enumerate(("red", "green", "blue")):
        np.testing.assert_array_equal(cloud.colors[:, column], records[name])
    assert seen[-1] == (1000, 1000)


@pytest.mark.parametrize("chunk", [1 << 20, 300])
def test_text_is_read_too(tmp_path: Path, chunk: int) -> None:
    records = _records()
    path = _text(tmp_path / "p.ply", records)
    cloud = read_point_ply(path, piece_rows=chunk)
    np.testing.assert_array_equal(cloud.points[:, 0], records["x"].astype(np.float32))
    np.testing.assert_array_equal(cloud.colors[:, 2], records["blue"])


def _text(path: Path, records: np.ndarray, lost: int = 0) -> Path:
    lines = ["ply", "format ascii 1.0", "comment made up", "element edge 2"]
    lines += ["property list uchar int v", f"element vertex {len(records)}"]
    for name in records.dtype.names:
        lines.append(f"property {TYPES[records.dtype[name].str[1:]]} {name}")
    lines += ["end_header", "1 2", "2 3 4"]
    lines += [" ".join(repr(value) for value in row) for row in records.tolist()]
    path.write_text("\n".join(lines[: len(lines) - lost]) + "\n")
    return path


def test_large_offsets_leave_before_values_are_rounded(tmp_path: Path) -> None:
    records = _records()
    records["x"] += 5e6
    path = _write(tmp_path / "p.ply", records)
    cloud = read_point_ply(path, transform=lambda points: points - (5e6, 0, 0))
    np.testing.assert_allclose(cloud.points[:, 0], records["x"] - 5e6, atol=1e-7)


@pytest.mark.parametrize(
    ("names", "kind", "value", "expected"),
    [
        (("diffuse_red", "diffuse_green", "diffuse_blue"), "u1", 17, 17),
        (("r", "g", "b"), "f4", 0.5, 128),
        (("red", "green", "blue"), "u2", 0xABCD, 0xAB),
        (("red", "green", "nir"), "u1", 17, 128),  # no colour: grey
    ],
)
def test_colours_have_many_names_and_types(
    tmp_path: Path, names: tuple[str, ...], kind: str, value: float, expected: int
) -> None:
    records = np.zeros(5, [*((name, "f4") for name in "xyz"), *((name, kind) for name in names)])
    for name in names:
        records[name] = value
    cloud = read_point_ply(_write(tmp_path / "p.ply", records))
    assert (cloud.colors == expected).all()


def test_points_that_are_not_finite_are_left_out_and_counted(tmp_path: Path) -> None:
    records = _records()
    records["y"][[3, 500]] = np.nan, np.inf
    cloud = read_point_ply(_write(tmp_path / "p.ply", records))
    assert (len(cloud.points), cloud.n_dropped) == (998, 2)
    kept = np.delete(np.arange(1000), [3, 500])
    np.testing.assert_array_equal(cloud.colors[:, 0], records["red"][kept])


def test_files_that_are_no_points_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.ply"
    with pytest.raises(InputError, match=r"p.ply must be readable, got: No such file"):
        read_point_ply(path)
    path.write_bytes(b"solid\n")
    with pytest.raises(InputError, match="must be a PLY file: it does not start with 'ply'"):
        read_point_ply(path)
    _write(path, np.zeros(5, [("x", "f4"), ("red", "u1")]))
    with pytest.raises(InputError, match="but it lacks y, z"):
        read_point_ply(path)
    _write(path, _records())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is truncated: its header announces 1,000 vertices"):
        read_point_ply(path)
    with pytest.raises(InputError, match="must have 1,000 vertices as its header says, got others"):
        read_point_ply(_text(path, _records(), lost=1))
    path.write_text(path.read_text().replace("2 3 4\n", "2 3 4\nx "))
    with pytest.raises(InputError, match="must have 1,000 vertices as its header says, got others"):
        read_point_ply(path)


def test_whole_numbers_of_text_are_finite(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = _text(tmp_path / "p.ply", _records())
    lines = path.read_text().splitlines()
    first = lines.index("end_header") + 3
    blue = [*_records().dtype.names].index("blue")
    for value in ("inf", "nan"):
        numbers = lines[first].split()
        numbers[blue] = value
        path.write_text("\n".join([*lines[:first], " ".join(numbers), *lines[first + 1 :]]))
        with pytest.raises(InputError, match="must have 1,000 vertices as its header says"):
            read_point_ply(path)
    assert not recwarn.list


# ---------------------------------------------------------------------- the command line


@pytest.mark.parametrize("preset", ["none", "best"])
def test_a_run_starts_from_the_points_of_a_file(
    tiny_capture: Path, tmp_path: Path, preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gs_train.data.colmap import largest, models_in, read_points

    points, colors = read_points(largest(models_in(tiny_capture)))
    rgb = ("red", "green", "blue")
    kinds = [*((name, "f8") for name in "xyz"), *((name, "u1") for name in rgb)]
    records = np.zeros(len(points), kinds)
    for names, values in (("xyz", points), (rgb, colors)):
        for column, name in enumerate(names):
            records[name] = values[:, column]
    records["x"][7] = np.nan
    ply = _write(tmp_path / "points.ply", records)
    out = tmp_path / "run"
    options = ["--renderer", "cpu", "--steps", "1", "--offload", preset, "--cap", "500"]
    options += ["--lr.means", "0", "--test-every", "0", "--init", str(ply)]
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 0
    assert "1 points left out: not finite" in capsys.readouterr().err
    rows = load_ply(out / "point_cloud" / "iteration_1" / "point_cloud.ply")
    assert len(rows["means"]) == 500
    distance = cKDTree(np.delete(points, 7, axis=0)).query(rows["means"].numpy())[0]
    assert distance.max() < 1e-5
    ply.unlink()  # the checkpoint has what came of it
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", "2"]) == 0


def test_a_file_without_points_is_refused(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    ply = _write(tmp_path / "points.ply", _records()[:3])
    command = ["fit", str(tiny_capture), "--out", str(out), "--renderer", "cpu", "--init", str(ply)]
    assert main(command) == 2
    assert "must hold at least 4 points, got 3" in capsys.readouterr().err
    assert not out.exists()
