# SPDX-License-Identifier: Apache-2.0
"""Which frame rows are written in, and the way back from a local one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from georeferenced import UTM, write_moved

from gs_train.cli import main
from gs_train.data import load_capture
from gs_train.data.frame import Frame
from gs_train.errors import InputError
from gs_train.files.ply import load_ply
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.rows.gaussians import Gaussians
from gs_train.runs.run import Run
from gs_train.scene.export_frame import ExportFrame, read_transform
from gs_train.scene.initialize import rows_from_points
from gs_train.scene.scene import Scene

PLY = Path("point_cloud/iteration_2/point_cloud.ply")
HOME = Frame((-3.0, 1.0, 2.0), 0.25, 1.0)
AWAY = Frame((-UTM[0] - 0.4, -UTM[1] + 0.3, -UTM[2]), 0.25, 1.0)


def _model(points: np.ndarray) -> Gaussians:
    colors = np.zeros((len(points), 3), np.uint8)
    rows = rows_from_points(points, colors, sh_degree=0, seed=0)
    return Gaussians(rows, device="cpu", make_optimizer=torch.optim.SGD)


def _grid(n: int, spacing: float) -> np.ndarray:
    """Points on a square around the origin, one coordinate strayed far away."""
    side = (np.arange(n) - n / 2) * spacing
    points = np.stack(np.meshgrid(side, side, [0.0]), axis=-1).reshape(-1, 3)
    points[0, 0] = 1e6
    return points


def _pairs(spacing: float) -> np.ndarray:
    """Points all over the scene, each with another one close by."""
    points = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    return np.concatenate((points, points + np.array([spacing, 0, 0])))


@pytest.mark.parametrize(
    ("frame", "points", "choice", "name", "why"),
    [
        (HOME, _grid(12, 0.01), "auto", "capture", "2.4e-07, is below 0.0001 of .* 0.04$"),
        (HOME, _pairs(1e-4), "auto", "capture", "4.8e-07, is hardly finer in a local one$"),
        (AWAY, _grid(12, 0.01), "auto", "local", "capture's, 0.5, is above 0.0001 of .* 0.04$"),
        (AWAY, _grid(12, 0.01), "capture", "capture", "--frame asks for it .*step there is 0.5"),
        (HOME, _grid(12, 0.01), "local", "local", "--frame asks for it .*step there is .*e-0"),
    ],
)
def test_rows_are_local_where_float32_is_too_coarse_for_the_capture(
    frame: Frame, points: np.ndarray, choice: str, name: str, why: str
) -> None:
    export = ExportFrame.of(choice, frame, _model(points))  # type: ignore[arg-type]
    assert export.name == name
    assert export.line.startswith(
        "Gaussians are written in a local frame, from which transform.json beside them leads back: "
        if name == "local"
        else "Gaussians are written in the capture's frame: "
    )
    assert any(export.shift) == (name == "local")
    assert re.search(why, export.line), export.line


def test_the_spacing_of_many_rows_is_that_of_neighbours() -> None:
    # 90,000 rows along a line; every 64th alone would be 64 times as far apart.
    points = np.zeros((90_000, 3))
    points[:, 0] = np.arange(90_000) * 1e-5
    export = ExportFrame.of("auto", AWAY, _model(points))
    assert "of their spacing, 4e-05" in export.line


def test_copies_and_rows_that_are_not_finite_are_no_neighbours() -> None:
    points = np.repeat(_grid(6, 0.01), 3, axis=0)
    model = _model(points)
    with torch.no_grad():
        model.params["means"][5] = torch.nan
    assert "of their spacing, 0.04" in ExportFrame.of("auto", AWAY, model).line
    model.params["means"].data.fill_(3e38)
    assert ExportFrame.of("auto", AWAY, model).name == "capture"
    model.params["means"].data.fill_(torch.nan)
    assert ExportFrame.of("auto", AWAY, model).name == "local"


def test_a_local_frame_is_shifted_by_round_numbers() -> None:
    export = ExportFrame.of("local", AWAY, _model(_grid(6, 0.01)))
    assert export.shift == (-465000.0, -5247000.0, -430.0)
    tiny = Frame((-UTM[0] - 0.4, 0.3, -0.0012345), 2e3, 1.0)
    assert ExportFrame.of("local", tiny, _model(_grid(6, 0.01))).shift == (
        -465000.4,
        0.3,
        -0.0012,
    )


def test_no_rows_ever_lie_beside_a_transform_of_others(tmp_path: Path) -> None:
    ply, model = tmp_path / "a.ply", _model(_grid(6, 0.01))
    local = ExportFrame.of("local", AWAY, model)
    captured = ExportFrame.of("capture", AWAY, model)
    for frame, other in ((local, captured), (captured, local)):
        ply.write_text("rows of the other frame")
        other.check(ply)
        frame.tell(ply)
        assert not ply.exists()
        assert (tmp_path / "transform.json").exists() == (frame is local)
        ply.write_text("rows")
        frame.tell(ply)
        assert ply.read_text() == "rows"  # of the same frame: replaced when the new ones are whole
        with pytest.raises(InputError, match=r"holds a.ply in another frame than the"):
            other.check(tmp_path / "b.ply")
        frame.check(tmp_path / "b.ply")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[1, 2, 3]",
        '{"scale": 1.0}',
        '{"shift": [1, 2], "scale": 1.0}',
        '{"shift": [1, 2, NaN], "scale": 1.0}',
        '{"shift": [1, 2, "x"], "scale": 1.0}',
        '{"shift": [1, 2, 3], "scale": 0}',
        '{"shift": [1, 2, 3], "scale": null}',
        '{"shift": [1, 2, 3], "scale": 1' + "0" * 400 + "}",
        '{"shift": [1, 2, 3], "scale": Infinity}',
    ],
)
def test_a_transform_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "transform.json").write_text(text)
    with pytest.raises(InputError, match=r"transform.json must hold shift, three numbers, and"):
        read_transform(tmp_path / "a.ply")


@pytest.fixture(scope="module")
def away(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny capture, georeferenced."""
    return write_moved(tiny_capture, tmp_path_factory.mktemp("away") / "capture", UTM)


@pytest.fixture(scope="module")
def trained(away: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("away") / "run"
    assert main(["fit", str(away), "--out", str(out), "--renderer", "cpu", "--steps", "2"]) == 0
    return out


def _captured(ply: Path) -> np.ndarray:
    """Coordinates of a file of rows in the capture's frame, as its readers find them."""
    told = json.loads((ply.parent / "transform.json").read_text())
    assert told["convention"] == "captured = local / scale - shift"
    return load_ply(ply)["means"].numpy().astype(np.float64) / told["scale"] - told["shift"]


def test_a_georeferenced_run_is_written_with_the_digits_that_it_has(trained: Path) -> None:
    run = Run.open(trained)
    means = run.geometry()["means"].numpy().astype(np.float64)
    wanted = means / run.frame.scale - run.frame.shift
    # Float32's rounding of coordinates below 8, and float64's of the capture's.
    np.testing.assert_allclose(_captured(trained / PLY), wanted, rtol=0, atol=2.0**-22 + 1e-9)
    assert json.loads((trained / "metrics.json").read_text())["frame"] == "local"


def test_every_layout_is_written_in_the_frame_that_is_asked_for(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for layout, ply in (("inria", PLY), ("gsplat", Path("ply/point_cloud_2.ply"))):
        to = tmp_path / layout
        options = ["export", str(trained), "--layout", layout, "--to", str(to)]
        assert main(options) == 0
        assert "written in a local frame" in capsys.readouterr().err
        np.testing.assert_array_equal(_captured(to / ply), _captured(trained / PLY))
        local = load_ply(to / ply)["means"]
        if layout == "gsplat":
            saved = torch.load(to / "ckpts" / "ckpt_1_rank0.pt", weights_only=True)
            assert torch.equal(saved["splats"]["means"], local)
            assert (to / "ckpts" / "transform.json").exists()
        else:  # its cameras are where the rows are, and SIBR is to read them
            cameras = json.loads((to / "cameras.json").read_text())
            assert np.abs([camera["position"] for camera in cameras]).max() < 100
            assert f"source_path='{to}'" in (to / "cfg_args").read_text()
        assert main([*options, "--frame", "capture"]) == 0
        assert "written in the capture's frame: --frame asks" in capsys.readouterr().err
        assert not list(to.rglob("transform.json"))
        assert load_ply(to / ply)["means"][:, 1].min() > 5e6


def test_rows_of_two_frames_are_not_put_side_by_side(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "ckpts" / "ckpt_0_rank0.pt"
    other.parent.mkdir()
    other.write_text("")
    options = ["export", str(trained), "--layout", "gsplat", "--to", str(tmp_path)]
    assert main(options) == 2
    assert "holds ckpt_0_rank0.pt in another frame than the local one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ckpts"]


def test_a_run_starts_from_exported_rows_where_they_were(away: Path, trained: Path) -> None:
    config = FitConfig(data=away, out=trained, init=trained / PLY, resort_every=0)
    capture = load_capture(away, cache_dir=trained / "cache")
    scene = Scene.load(capture, torch.device("cpu"))
    with StopRequest() as stop:
        means = scene.initial_rows(config, stop)["means"].numpy()
    wanted = scene.frame.points_in(_captured(trained / PLY))
    by_place = [np.lexsort(points.T) for points in (means, wanted)]
    np.testing.assert_allclose(means[by_place[0]], wanted[by_place[1]], rtol=1e-6, atol=1e-6)


def test_an_old_run_goes_on_in_its_own_frame(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Frame((0.1, 0.2, 0.3), 0.7, 2.0)
    command = ["fit", str(tiny_capture), "--out", str(tmp_path / "run"), "--renderer", "cpu"]
    with monkeypatch.context() as patched:
        patched.setattr(Frame, "from_cameras", classmethod(lambda cls, poses: old))
        assert main([*command, "--steps", "2"]) == 0
    assert main([*command, "--steps", "4", "--resume"]) == 0
    assert Run.open(tmp_path / "run").checkpoint.step == 4
    assert Run.open(tmp_path / "run").frame == old
