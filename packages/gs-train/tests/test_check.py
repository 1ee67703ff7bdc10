# SPDX-License-Identifier: Apache-2.0
"""``gs-train check``: what a capture holds, and what ``fit`` would do with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_captures import LENS, PINHOLE, photograph, write_capture
from transforms_files import write_turned

from gs_train.cli import main
from gs_train.data.colmap_writer import NamedPose, Observations, write_model

Captured = pytest.CaptureFixture[str]


def check(folder: Path, captured: Captured, *options: str, status: int = 0) -> dict[str, Any]:
    assert main(["check", str(folder), "--renderer", "cpu", "--json", *options]) == status
    result: dict[str, Any] = json.loads(captured.readouterr().out)
    return result


@pytest.fixture
def copy(tiny_capture: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_capture, tmp_path / "data"))


def test_a_good_capture_is_told_in_a_table(tiny_capture: Path, capsys: Captured) -> None:
    before = sorted(tiny_capture.rglob("*"))
    assert main(["check", str(tiny_capture), "--renderer", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line[:14].strip() for line in lines if line[:14].strip()]
    assert titles == [
        *("capture", "images", "photographs", "points", "tracks", "reprojection", "overlap"),
        "fit would",
    ]
    assert "photographs   all there, of their cameras' sizes" in lines
    assert any("render with cpu on cpu, offload none: all of it fits" in line for line in lines)
    assert sorted(tiny_capture.rglob("*")) == before


def test_it_says_what_fit_does(tiny_capture: Path, tmp_path: Path, capsys: Captured) -> None:
    options = ["--max-side", "32", "--cap", "900", "--test-every", "4", "--batch-size", "2"]
    found = check(tiny_capture, capsys, *options, "--steps", "1")["fit"]
    run = ["fit", str(tiny_capture), "--out", str(tmp_path / "run"), "--renderer", "cpu"]
    assert main([*run, *options, "--steps", "1"]) == 0
    said = capsys.readouterr().err
    n = f"{found['n_rows']:,} Gaussians"
    assert f"{found['n_train']} training and {found['n_test']} test images, {n} after 0" in said
    # What fits where is the same, and how much memory is free is not.
    assert f"offload {found['preset']}: {found['reason'].partition(' (')[0]} (" in said
    assert found["largest"] == [32, 24]
    made = [path for path in (tmp_path / "run/cache").rglob("*") if path.is_file()]
    assert found["n_made"] == len(made) == 12
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert found["preset"] == metrics["preset"]


def test_no_photograph_is_decoded(
    tiny_capture: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    assert check(tiny_capture, capsys)["photographs"]["unreadable"]["n"] == 0


def test_photographs_are_counted_by_what_is_wrong(copy: Path, capsys: Captured) -> None:
    names = sorted(path.name for path in (copy / "images").iterdir())
    (copy / "images" / names[0]).unlink()
    (copy / "images" / names[1]).write_text("no image")
    for name, size in ((names[2], (32, 24)), (names[3], (48, 64))):
        Image.new("RGBA", size).save(copy / "images" / name, format="PNG")
    result = check(copy, capsys, status=2)
    found = result["photographs"]
    assert found["missing"] == {"n": 1, "names": [names[0]]}
    assert found["unreadable"] == {"n": 1, "names": [names[1]]}
    assert found["other_size"] == {"n": 1, "names": [names[2]]}
    assert found["other_shape"] == {"n": 1, "names": [names[3]]}
    assert found["with_alpha"] == 2
    assert "got 1 missing" in result["refused"]
    assert result["fit"] is None
    assert result["tracks"]["median_px"] is not None  # what could be found is said all the same
    Image.new("RGB", (64, 48)).save(copy / "images" / names[3], format="PNG")
    result = check(copy, capsys, "--skip-broken")
    assert result["refused"] is None
    assert result["fit"]["n_broken"] == 2
    assert main(["check", str(copy), "--renderer", "cpu", "--skip-broken"]) == 0
    assert f"photographs   1 missing: {names[0]}\n" in capsys.readouterr().out


def test_masks_are_looked_at_as_fit_does(copy: Path, capsys: Captured) -> None:
    name = sorted(path.name for path in (copy / "images").iterdir())[0]
    (copy / "masks").mkdir()
    mask = copy / "masks" / f"{name}.png"
    Image.new("L", (64, 48)).save(mask)
    found = check(copy, capsys)
    assert found["fit"]["n_masked"] == 1
    hides = "black pixels are left out of loss and scores (--mask ignore)"
    n = found["n_images"]
    assert found["notes"] == [f"masks/: masks of 1 of {n} photographs: {hides}"]
    unused = check(copy, capsys, "--mask", "off")
    assert unused["fit"]["n_masked"] == 0
    assert unused["notes"] == ["masks/ found, not used: every pixel is trained on"]
    mask.write_text("no image")
    assert "masks" in check(copy, capsys, status=2)["refused"]
    fit = check(copy, capsys, "--skip-broken")["fit"]
    assert (fit["n_broken"], fit["n_masked"]) == (1, 0)
    assert check(copy, capsys, "--mask", "off")["refused"] is None


def test_it_says_what_the_options_make_of_the_photographs(
    tiny_capture: Path, capsys: Captured
) -> None:
    assert main(["check", str(tiny_capture), "--renderer", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "train an exposure" not in told
    assert "train over" not in told
    asked = ("--renderer", "cpu", "--exposure", "--background")
    assert main(["check", str(tiny_capture), *asked, "random"]) == 0
    told = capsys.readouterr().out
    assert "train an exposure of each training image beside the scene" in told
    assert "train over random colours, score and show over black" in told
    assert main(["check", str(tiny_capture), *asked, "white"]) == 0
    assert "train over white\n" in capsys.readouterr().out
    fit = check(tiny_capture, capsys, "--background", "white")["fit"]
    assert (fit["exposure"], fit["background"]) == (False, "white")


def _two_groups(folder: Path) -> None:
    """Six images: three see one half of the points, two the other half, one none."""
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (40, 3)) + np.array([0, 0, 6])
    points[0], points[1] = (0, 0, -3), (0, 0, 900)
    poses, seen = [], []
    for i in range(6):
        pose = np.eye(4)
        pose[:3, 3] = 0.1 * i, 0.05 * i, 0
        poses.append(NamedPose(f"{i:02}.png", PINHOLE.id, pose))
        path = folder / "images" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(PINHOLE, i)).save(path)
        mine = range(20) if i < 3 else range(20, 40) if i < 5 else ()
        for p in mine:
            inside = pose[:3, :3] @ points[p] + pose[:3, 3]
            pixel = PINHOLE.K @ inside / inside[2]
            # In image 2 all is a pixel and a half too far to the right.
            seen.append((i, p, pixel[0] + (1.5 if i == 2 else 0), pixel[1]))
    write_model(
        folder / "sparse/0",
        [PINHOLE],
        poses,
        points=points,
        colors=np.full((40, 3), 99, np.uint8),
        observations=Observations(
            np.array([s[0] for s in seen]),
            np.array([s[1] for s in seen]),
            np.array([s[2:] for s in seen]),
        ),
    )


def test_errors_overlap_and_points_out_of_place_are_found(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "data"
    _two_groups(folder)
    result = check(folder, capsys)
    points, tracks = result["points"], result["tracks"]
    assert (points["n"], points["n_far"]) == (40, 1)
    assert points["cameras_without"] == {"n": 1, "names": ["05.png"]}
    assert tracks["n_observations"] == 100
    assert tracks["n_behind"] == 3  # of the first point
    assert tracks["median_px"] < 1e-6
    assert tracks["worst"][0] == {"name": "02.png", "median_px": pytest.approx(1.5)}
    overlap = tracks["overlap"]
    assert overlap["components"] == [
        {"n_images": 3, "first": "00.png"},
        {"n_images": 2, "first": "03.png"},
    ]
    assert overlap["shared_median"] == 20
    assert main(["check", str(folder), "--renderer", "cpu"]) == 0
    said = capsys.readouterr().out
    apart = "falls apart into 2 groups of images that share no point: 3 (first 00.png), 2 (first 03"
    assert apart in said
    assert "1 images see none of them: 05.png" in said
    assert "3 observations are of points behind their camera" in said
    assert "1 far off: beyond 100 times the cameras' distance" in said


def test_a_model_without_observations_is_looked_at_by_projection(
    tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "data"
    _two_groups(folder)
    ahead, back = np.eye(4), np.diag([-1.0, 1, -1, 1])
    nothing = np.zeros(0, np.int64)
    points = np.array([[0.1 * i, 0, 4] for i in range(4)])  # behind those that look back
    write_model(
        folder / "sparse/0",
        [PINHOLE],
        [NamedPose(f"{i:02}.png", PINHOLE.id, ahead if i < 3 else back) for i in range(6)],
        points=points,
        colors=np.full((4, 3), 99, np.uint8),
        observations=Observations(nothing, nothing, np.zeros((0, 2))),
    )
    result = check(folder, capsys)
    assert result["tracks"] is None
    assert result["points"]["cameras_without"] == {"n": 3, "names": ["03.png", "04.png", "05.png"]}


def test_errors_are_those_of_the_lens(tmp_path: Path, capsys: Captured) -> None:
    from gs_train.data.distortion import distort

    folder = write_capture(tmp_path / "data", [(f"{i:02}.png", LENS) for i in range(3)])
    points = np.random.default_rng(0).uniform(-1, 1, (30, 3)) + np.array([0, 0, 4])
    poses, pixels = [], []
    for i in range(3):
        pose = np.eye(4)
        pose[0, 3] = 0.2 * i
        poses.append(NamedPose(f"{i:02}.png", LENS.id, pose))
        inside = points + pose[:3, 3]
        pixels.append(distort(LENS, inside[:, :2] / inside[:, 2:]) + np.array([0.0, 0.25]))
    seen = Observations(
        np.repeat(np.arange(3), 30), np.tile(np.arange(30), 3), np.concatenate(pixels)
    )
    colors = np.full((30, 3), 99, np.uint8)
    write_model(folder / "sparse/0", [LENS], poses, points=points, colors=colors, observations=seen)
    result = check(folder, capsys)
    assert result["tracks"]["median_px"] == pytest.approx(0.25, rel=1e-3)
    assert result["cameras"] == [
        {"model": "SIMPLE_RADIAL", "width": 80, "height": 60, "n_cameras": 1, "n_images": 3}
    ]
    assert result["fit"]["n_made"] == 3


def test_a_capture_without_tracks_is_looked_at_as_far_as_it_goes(
    tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "data"
    write_turned(folder)
    result = check(folder, capsys)
    assert result["tracks"] is None
    assert result["points"]["cameras_without"]["n"] == 0
    assert result["fit"]["n_train"] + result["fit"]["n_test"] == result["n_images"]
    assert any("is undone" in line for line in result["notes"])


def test_2d_points_that_cannot_be_read_are_told_and_no_refusal(
    tmp_path: Path, capsys: Captured
) -> None:
    folder = write_capture(tmp_path / "data", [(f"{i:02}.png", PINHOLE) for i in range(3)])
    model = folder / "sparse/0"
    images = "".join(f"{i + 1} 1 0 0 0 {i} 2 3 1 {i:02}.png\nnonsense\n" for i in range(3))
    points = "".join(f"{i + 1} {i} {i % 3} 4 200 100 50 0.5\n" for i in range(12))
    for part, text in (
        *(("cameras", "1 PINHOLE 64 48 60 61 32 24\n"), ("images", images)),
        ("points3D", points),
    ):
        (model / f"{part}.bin").unlink()
        (model / f"{part}.txt").write_text(text)
    result = check(folder, capsys)
    assert result["tracks"] is None
    assert result["refused"] is None
    assert "images.txt:1 and the next" in result["notes"][-1]


@pytest.mark.parametrize(
    "options",
    [
        ["--device-memory", "1MiB", "--host-memory", "2GiB"],
        ["--offload", "best", "--device-memory", "1MiB", "--host-memory", "2GiB"],
        ["--test-list", "absent.txt"],
        ["--steps", "0"],
        ["--max-side", "8"],
    ],
)
def test_what_fit_refuses_is_refused_in_its_words(
    options: list[str], tiny_capture: Path, tmp_path: Path, capsys: Captured
) -> None:
    options = ["--renderer", "cpu", "--steps", "1", *options]
    run = ["fit", str(tiny_capture), "--out", str(tmp_path / "run"), *options]
    assert main(run) == 2
    refused = capsys.readouterr().err.splitlines()[-1]
    assert main(["check", str(tiny_capture), *options]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == refused
