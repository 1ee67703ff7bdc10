# SPDX-License-Identifier: Apache-2.0
"""``gs-train export``: every layout, cropped or not, holds the rows of the exported PLY file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import gaussforge
import numpy as np
import pytest
import torch
import trimesh
from georeferenced import UTM, write_moved

from gs_train.cli import main
from gs_train.files.ply import load_ply
from gs_train.rows.visible import caught_up_chunks

FILES = {
    "inria": "point_cloud/iteration_2/point_cloud.ply",
    "gsplat": "ply/point_cloud_2.ply",
    "spz": "point_cloud_2.spz",
    "gltf": "point_cloud_2.glb",
}
CROP = ("-1.3", "-1e0", "-3", "0.4", "0.5", "-.9")


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a georeferenced capture, whose exports are in a local frame; not to be written to."""
    folder = tmp_path_factory.mktemp("away")
    capture = write_moved(tiny_capture, folder / "capture", UTM)
    out = folder / "run"
    options = ["--renderer", "cpu", "--steps", "2", "--antialiased"]
    assert main(["fit", str(capture), "--out", str(out), *options]) == 0
    return out


@pytest.fixture(scope="module")
def means(run: Path) -> np.ndarray:
    """(N, 3) positions as the PLY file of the run has them."""
    return load_ply(run / FILES["inria"])["means"].numpy()


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The only line that a command prints which ends with 2."""

    def of(*command: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in command]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("gs-train: error: ")

    return of


def _positions(file: Path) -> np.ndarray:
    """As another program reads the file, in the frame of PLY files."""
    if file.suffix == ".ply":
        return load_ply(file)["means"].numpy()
    if file.suffix == ".spz":
        data = gaussforge.GaussForge().read(file.read_bytes(), "spz", strict=True)["data"]
        found = np.frombuffer(data["positions"], np.float32).reshape(-1, 3)
    else:
        (cloud,) = trimesh.load_scene(file).geometry.values()
        found = np.asarray(cloud.vertices)
    return found * [1, -1, -1]


@pytest.mark.parametrize("layout", FILES)
def test_a_layout_holds_the_rows_of_the_run(
    run: Path,
    means: np.ndarray,
    tmp_path: Path,
    layout: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    assert main(["export", str(run), "--layout", layout, "--to", str(tmp_path)]) == 0
    frame, wrote = capsys.readouterr().err.splitlines()
    assert "are written in a local frame" in frame
    assert wrote == f"wrote {len(means):,} Gaussians to {tmp_path}"
    np.testing.assert_allclose(_positions(tmp_path / FILES[layout]), means, rtol=0, atol=1e-6)
    beside = (tmp_path / FILES[layout]).with_name("transform.json")
    assert json.loads(beside.read_text())["shift"][1] < -5e6
    if layout in ("spz", "gltf"):
        files = sorted(path.name for path in tmp_path.iterdir())
        assert files == [FILES[layout], "transform.json"]


@pytest.mark.parametrize("layout", FILES)
def test_a_crop_holds_what_a_filter_of_the_ply_holds(
    run: Path,
    means: np.ndarray,
    tmp_path: Path,
    layout: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    command = ["export", str(run), "--layout", layout, "--to", str(tmp_path), "--crop", *CROP]
    assert main(command) == 0
    low, high = np.array(CROP, float).reshape(2, 3)
    keep = ((means >= low) & (means <= high)).all(axis=1)
    assert 20 < keep.sum() < len(means) - 20
    wrote = capsys.readouterr().err.splitlines()[-1]
    assert wrote == (
        f"wrote {keep.sum():,} Gaussians to {tmp_path}, without {(~keep).sum():,} outside --crop"
    )
    cropped = _positions(tmp_path / FILES[layout])
    np.testing.assert_allclose(cropped, means[keep], rtol=0, atol=1e-6)
    if layout == "gsplat":
        saved = torch.load(tmp_path / "ckpts" / "ckpt_1_rank0.pt", weights_only=True)["splats"]
        rows = load_ply(tmp_path / FILES[layout])
        for name, values in rows.items():
            assert torch.equal(saved[name], values), name
            assert saved[name].untyped_storage().nbytes() == values.numel() * 4


def test_rows_that_are_not_finite_are_in_no_file_of_a_layout(
    run: Path, means: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_a_hole(model):
        for chunk in caught_up_chunks(model):
            chunk["opacities"][[3, 7]] = torch.nan
            yield chunk

    monkeypatch.setattr("gs_train.commands.export.caught_up_chunks", with_a_hole)
    assert main(["export", str(run), "--layout", "gsplat", "--to", str(tmp_path)]) == 0
    saved = torch.load(tmp_path / "ckpts" / "ckpt_1_rank0.pt", weights_only=True)["splats"]
    rows = load_ply(tmp_path / FILES["gsplat"])
    assert len(rows["means"]) == len(means) - 2
    for name, values in rows.items():
        assert torch.equal(saved[name], values), name


@pytest.mark.parametrize("layout", ["spz", "gltf"])
def test_a_line_says_how_many_scales_a_layout_does_not_hold(
    run: Path,
    means: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    layout: str,
) -> None:
    def with_extremes(model):
        for chunk in caught_up_chunks(model):
            chunk["scales"][3] = -30.0
            chunk["scales"][7, 1] = 8.0
            chunk["scales"][9] = torch.nan  # which is not written at all
            yield chunk

    monkeypatch.setattr("gs_train.commands.export.caught_up_chunks", with_extremes)
    assert main(["export", str(run), "--layout", layout, "--to", str(tmp_path)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "log scales" in line]
    line = (
        f"--layout spz holds log scales from -10 to 5.938: 2 of {len(means) - 1:,} Gaussians have "
        "others, written as the nearest of these"
    )
    assert said == ([line] if layout == "spz" else [])


def test_spz_says_that_the_run_was_antialiased(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--layout", "spz", "--to", str(tmp_path)]) == 0
    data = (tmp_path / FILES["spz"]).read_bytes()
    info = gaussforge.GaussForge().get_model_info(data, "spz")["data"]["rendering"]
    assert info == {"shDegree": 3, "antialiased": True}


def test_spz_does_not_round_a_georeferenced_scene_away(
    run: Path, tmp_path: Path, error: Callable[..., str]
) -> None:
    said = error("export", run, "--layout", "spz", "--frame", "capture", "--to", tmp_path / "new")
    assert said.startswith("SPZ must have steps between positions below the size of a Gaussian, ")
    assert "24 bits for coordinates up to 5.24701e+06 have steps of 0.63: " in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layout", FILES)
def test_a_crop_beside_the_scene_is_one_line_and_no_file(
    run: Path, means: np.ndarray, tmp_path: Path, layout: str, error: Callable[..., str]
) -> None:
    crop = ["--crop", "7", "7", "7", "8", "8", "8.5"]
    said = error("export", run, "--layout", layout, *crop, "--to", tmp_path / "new")
    low, high = (" ".join(f"{value:g}" for value in end) for end in (means.min(0), means.max(0)))
    assert said == (
        "--crop must hold a Gaussian, got 7 7 7 to 8 8 8.5; in a local frame all "
        f"{len(means):,} lie in {low} to {high}"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("crop", "said"),
    [
        ("0 0 0 1 1 inf", "--crop must be six finite numbers, got 0 0 0 1 1 inf"),
        ("-1 -1 1 1 1 -1", "--crop must have ZMIN below ZMAX, got 1 and -1"),
    ],
)
def test_a_crop_that_is_no_box_is_refused_before_a_run_is_read(
    tmp_path: Path, crop: str, said: str, error: Callable[..., str]
) -> None:
    assert error("export", tmp_path / "none", "--gpus", 2, "--crop", *crop.split()) == said


def test_a_missing_package_is_found_before_anything_is_written(
    run: Path, tmp_path: Path, error: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    said = error("export", run, "--layout", "spz", "--to", tmp_path / "new")
    assert said.endswith("which is not installed: pip install 'gs-train[spz]'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layout", ["spz", "gltf"])
def test_rows_of_two_frames_are_not_put_side_by_side(
    run: Path, tmp_path: Path, layout: str, error: Callable[..., str]
) -> None:
    suffix = FILES[layout][-4:]
    (tmp_path / f"another{suffix}").write_text("")
    said = error("export", run, "--layout", layout, "--to", tmp_path)
    assert f"holds another{suffix} in another frame than the local one" in said
