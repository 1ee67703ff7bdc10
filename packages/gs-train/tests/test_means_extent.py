# SPDX-License-Identifier: Apache-2.0
"""``--means-extent``: what the learning rate of the means is a multiple of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_clouds import hills, write_cloud
from transforms_files import write_points

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data import Capture, capture_from_arrays, load_capture
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.config_file import of_this_version
from gs_train.renderers import View
from gs_train.runs.run import Run
from gs_train.scene.scene import Scene
from gs_train.scene.view_extent import view_extent, with_means_extent
from gs_train.tide.model import StoredModel

HEIGHT = 5.0


def looking_down(x: float, y: float = 0.0, *, width: int = 64, height: int = 48) -> View:
    """A camera above the ground."""
    viewmat = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0]))
    viewmat[:3, 3] = -(viewmat[:3, :3] @ torch.tensor([x, y, HEIGHT]))
    K = torch.tensor([[64.0, 0, width / 2], [0, 64.0, height / 2], [0, 0, 1]])
    return View(f"{x} {y}", viewmat, K, width, height)


def ground(
    half: float, *, at: tuple[float, float, float] = (0, 0, 0), n: int = 20_000
) -> np.ndarray:
    points = np.random.default_rng(0).uniform(-half, half, (n, 3))
    points[:, 2] = 0.0
    return np.add(points, at)


def survey(points: np.ndarray, n: int = 5, apart: float = 20.0) -> Capture:
    """A line of cameras above the ground, much longer than what one of them sees."""
    views = [looking_down(apart * k, 0.1 * k) for k in range(n)]
    return capture_from_arrays(
        np.zeros((n, 48, 64, 3), np.uint8),
        np.stack([view.viewmat.numpy() for view in views]),
        np.stack([view.K.numpy() for view in views]),
        points=points,
        colors=np.zeros((len(points), 3), np.uint8),
    )


def config_of(tmp_path: Path, **options: object) -> FitConfig:
    return FitConfig(data=tmp_path, out=tmp_path / "run", means_extent="view", **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- what it is


def test_it_is_the_distance_at_which_views_see_something() -> None:
    views = [looking_down(k * 30.0) for k in range(-3, 4)]
    extent = view_extent(views, ground(100.0, n=200_000))
    assert extent is not None
    # From straight below to the corners of the images.
    assert 1.1 * HEIGHT < extent < 1.1 * HEIGHT * np.hypot(1, np.hypot(0.5, 0.375))


def test_what_lies_behind_something_does_not_count() -> None:
    below = ground(100.0, at=(0, 0, -50 * HEIGHT), n=200_000)
    views = [looking_down(0.0)]
    points = ground(4.0)
    assert view_extent(views, np.concatenate([points, below])) == pytest.approx(
        view_extent(views, points), rel=1e-3
    )


def test_what_lies_behind_the_camera_or_beside_the_image_does_not_count() -> None:
    above = ground(10.0, at=(0, 0, 2 * HEIGHT))
    beside = ground(1.0, at=(50, 0, 0))
    assert view_extent([looking_down(0.0)], np.concatenate([above, beside])) is None


def test_it_agrees_with_the_cameras_around_an_object(tiny_capture: Path, tmp_path: Path) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path)
    scene = with_means_extent(Scene.load(capture, torch.device("cpu")), config_of(tmp_path))
    assert scene.frame.means_extent == pytest.approx(scene.frame.extent, rel=0.5)


def test_it_stays_where_a_survey_grows(tmp_path: Path) -> None:
    def extents(n: int) -> tuple[float, float]:
        capture = survey(ground(10.0 * n, at=(10.0 * n, 0, 0), n=10_000 * n), n)
        frame = with_means_extent(
            Scene.load(capture, torch.device("cpu")), config_of(tmp_path)
        ).frame
        assert frame.means_extent is not None
        return frame.extent / frame.scale, frame.means_extent / frame.scale

    (small, near), (large, far) = extents(4), extents(16)
    assert large > 3 * small
    assert far == pytest.approx(near, rel=0.05)


def test_points_of_init_are_looked_at_where_they_are_given(tmp_path: Path) -> None:
    capture = survey(ground(60.0, at=(40, 0, 0)))
    path = write_cloud(tmp_path / "c.ply", ground(60.0, at=(40, 0, 2.5)).astype(np.float32))
    scene = Scene.load(capture, torch.device("cpu"))
    far = with_means_extent(scene, config_of(tmp_path)).frame
    near = with_means_extent(scene, config_of(tmp_path, init=path)).frame
    assert far.means_extent is not None
    assert near.means_extent == pytest.approx(far.means_extent / 2, rel=0.05)


def test_points_that_no_view_sees_are_refused(tmp_path: Path) -> None:
    scene = Scene.load(survey(ground(60.0, at=(0, 0, 90))), torch.device("cpu"))
    with pytest.raises(InputError, match="they see none of the reconstruction: take --means-ext"):
        with_means_extent(scene, config_of(tmp_path))
    path = write_cloud(tmp_path / "far.ply", hills(100) + np.float32(1e6))
    with pytest.raises(InputError, match=r"see none of .*far\.ply"):
        with_means_extent(scene, config_of(tmp_path, init=path))


# ---------------------------------------------------------------------- what it does


def fit(capture: Path, out: Path, *more: str) -> int:
    options = ["--renderer", "cpu", "--sh-degree", "0", "--cap", "300", "--max-side", "32"]
    return main(["fit", str(capture), "--out", str(out), *options, *more])


def tensors_of(out: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return load_checkpoint(newest).tensors


def test_a_run_goes_on_with_it(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    view = ("--means-extent", "view", "--decay-steps", "4")
    assert fit(tiny_capture, whole, *view, "--steps", "4") == 0
    assert fit(tiny_capture, parts, *view, "--steps", "2") == 0
    other = ("--means-extent", "cameras", "--steps", "4", "--resume")
    assert fit(tiny_capture, parts, *other) == 2
    assert "means_extent was 'view', got 'cameras'" in capsys.readouterr().err
    assert fit(tiny_capture, parts, *view, "--steps", "4", "--resume") == 0
    frame = Run.open(parts).frame
    assert frame.means_extent not in (None, frame.extent)
    assert frame == Run.open(whole).frame
    one, two = tensors_of(whole), tensors_of(parts)
    assert all(torch.equal(values, two[name]) for name, values in one.items())


def test_the_first_step_moves_means_by_a_multiple_of_it(tiny_capture: Path, tmp_path: Path) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path / "cache", max_side=32)
    moved = {}
    for choice in ("cameras", "view"):
        out = tmp_path / choice
        assert fit(tiny_capture, out, "--steps", "1", "--means-extent", choice) == 0
        run = Run.open(out)
        scene = Scene.load(capture, torch.device("cpu"), run.frame)
        start = scene.initial_rows(run.config, StopRequest())["means"]
        after = tensors_of(out)
        step = (after["model/means"][after["model/keys"].argsort()] - start).abs().max()
        moved[choice] = float(step) / run.config.lr.means
    frame = run.frame
    assert moved["view"] == pytest.approx(frame.means_extent, rel=0.01)
    assert moved["cameras"] == pytest.approx(frame.extent, rel=0.01)


def means_of(out: Path) -> torch.Tensor:
    """Of a finished run of any preset, in the order of keys."""
    run = Run.open(out)
    _, model = run.read(torch.device("cpu"))
    try:
        if isinstance(model, StoredModel):
            keys, rows = zip(*model.rows.pieces(), strict=True)
            return torch.cat([part["means"] for part in rows])[torch.cat(keys).argsort()]
        return model.read("means")[model.keys.values.argsort()]
    finally:
        model.close()


@pytest.mark.parametrize("choice", ["cameras", "view"])
def test_presets_move_the_points_of_a_cloud_alike(
    tiny_capture: Path, tmp_path: Path, choice: str
) -> None:
    """Also where the cloud goes into a store piece by piece."""
    points = np.random.default_rng(2).normal(0.0, 0.6, (280, 3)).astype(np.float32)
    cloud = tmp_path / "cloud.ply"
    write_points(cloud, points, np.zeros((280, 3), np.uint8))
    means, extents = {}, {}
    for preset in ("none", "best", "tide"):
        for extent in (choice, "unmoved"):
            out = tmp_path / f"{preset}-{extent}"
            more = ["--lr.means", "0"] if extent == "unmoved" else ["--means-extent", extent]
            more += ["--strategy", "fixed", "--offload", preset, "--init", str(cloud)]
            assert fit(tiny_capture, out, "--steps", "1", *more) == 0
            means[preset, extent] = means_of(out)
        run = Run.open(tmp_path / f"{preset}-{choice}")
        moved = (means[preset, choice] - means[preset, "unmoved"]).abs().max()
        of = run.frame.means_extent if choice == "view" else run.frame.extent
        assert float(moved) / run.config.lr.means == pytest.approx(of, rel=0.01), preset
        extents[preset] = of
    assert len(set(extents.values())) == 1
    for preset in ("best", "tide"):
        assert torch.equal(means[preset, choice], means["none", choice]), preset


def test_checkpoints_of_earlier_versions_have_the_cameras() -> None:
    assert of_this_version({"seed": 0})["means_extent"] == "cameras"
