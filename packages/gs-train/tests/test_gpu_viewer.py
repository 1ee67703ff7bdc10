# SPDX-License-Identifier: Apache-2.0
"""The viewer's pictures of whatever has trained on a GPU: those of the CPU, drawn by the GPU."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from cloud import cloud_rows

from gs_train.cli import main
from gs_train.files.ply import write_ply
from gs_train.machine.interrupt import StopRequest
from gs_train.rows.view_parts import Box, Quantity
from gs_train.runs.folder import RunFolder
from gs_train.scene.scene import view_in_frame
from gs_train.viewer.opened import Limits, OpenedScene, open_scene
from gs_train.viewer.pictures import Pictures
from gs_train.viewer.request import Picture, Request

pytestmark = pytest.mark.gpu

GPU = "raster"
OPTIONS = (
    "--strategy", "fixed", "--steps", "6", "--checkpoint-every", "3", "--seed", "3",
    "--background", "white", "--exposure",
)  # fmt: skip
PRESETS = ["none", "best", "tide"]
HALF = Box((0.5, 0.0, 0.0), ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)), (1.0, 4.0, 4.0))


@pytest.fixture(scope="module")
def runs(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each preset, and its point cloud."""
    made = {}
    for preset in PRESETS:
        out = tmp_path_factory.mktemp("viewed") / preset
        where = ["--renderer", GPU, "--offload", preset]
        assert main(["fit", str(tiny_capture), "--out", str(out), *where, *OPTIONS]) == 0
        made[preset] = out
    return made


def opened(path: Path) -> list[OpenedScene]:
    """By the GPU and by the CPU."""
    return [open_scene(path, Limits(renderer=name), StopRequest()) for name in (GPU, "cpu")]


def check_same(scenes: list[OpenedScene], request: Request, scale: float = 1.0) -> None:
    """Colour maps turn rounding into a few levels, and edges of rows into single pixels."""
    found, expected = (_picture(scene, request, scale) for scene in scenes)
    assert found.pixels.shape == expected.pixels.shape
    assert expected.pixels.std() > 5
    excess = np.abs(found.pixels.astype(int) - expected.pixels)
    assert np.quantile(excess, 0.98) <= 2
    assert (found.is_final, found.note) == (expected.is_final, expected.note)


def _picture(scene: OpenedScene, request: Request, scale: float) -> Picture:
    picture = Pictures(lambda: scene, None)(request, scale, lambda: False)
    assert picture is not None
    return picture


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_is_drawn_as_by_the_cpu(runs: dict[str, Path], preset: str) -> None:
    scenes = opened(runs[preset])
    assert scenes[0].renderer.device.type == "cuda"
    view = view_in_frame(scenes[0].cameras[3], scenes[0].frame)
    quantities: tuple[Quantity, ...] = ("color", "depth", "alpha")
    for quantity in quantities:
        check_same(scenes, Request(view, (64, 48), quantity))
    check_same(scenes, Request(view, (64, 48)), 0.25)
    check_same(scenes, Request(view, (64, 48), photograph=3, is_exposed=True))
    check_same(scenes, Request(view, (64, 48), box=HALF))
    for scene in scenes:
        scene.close()


def test_an_earlier_checkpoint_and_a_point_cloud_are_drawn(runs: dict[str, Path]) -> None:
    run = runs["best"]
    camera = opened(run)[0].cameras[3]
    for path in (run / "checkpoints" / "step_000003", RunFolder(run).point_cloud(6)):
        scenes = opened(path)
        view = view_in_frame(camera, scenes[0].frame)
        check_same(scenes, Request(view, (64, 48)))


def pixels_and_memory(run: Path, limits: Limits) -> tuple[np.ndarray, int, int]:
    """A picture of a run; bytes on the device before it, and at most while it was drawn."""
    scene = open_scene(run, limits, StopRequest())
    request = Request(view_in_frame(scene.cameras[3], scene.frame), (64, 48))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    pixels = _picture(scene, request, 1.0).pixels
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    scene.close()
    del scene
    gc.collect()
    torch.cuda.empty_cache()  # what torch keeps would count as free below the next cap
    return pixels, before, most


def test_a_cap_on_device_memory_holds_and_changes_no_picture(
    tiny_capture: Path, tmp_path: Path
) -> None:
    rows = cloud_rows(200_000)
    rows["means"] -= torch.tensor([0.0, 0.0, 6.0])  # where the cameras look
    rows["scales"] -= 2.0
    write_ply(tmp_path / "cloud.ply", rows)
    run = tmp_path / "run"
    options = ["--renderer", GPU, "--offload", "best", "--strategy", "fixed", "--steps", "1"]
    start = ["--init", str(tmp_path / "cloud.ply"), "--out", str(run)]
    assert main(["fit", str(tiny_capture), *start, *options]) == 0
    gc.collect()
    pixels_and_memory(run, Limits(renderer=GPU))  # compiles, and loads libraries
    expected, before, most = pixels_and_memory(run, Limits(renderer=GPU))
    cap = (before + most) // 2
    try:
        found, _, capped = pixels_and_memory(run, Limits(GPU, device_memory=str(cap)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)  # of this process, for tests that follow
    assert capped <= cap < most
    assert expected.std() > 5
    assert np.quantile(np.abs(found.astype(int) - expected), 0.98) <= 2
