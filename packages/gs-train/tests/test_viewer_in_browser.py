# SPDX-License-Identifier: Apache-2.0
"""The viewer's page in a real browser: what a user sees and does.

Skipped without a Chromium on the PATH, unless GS_REQUIRE_BROWSER=1: then each test fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from headless import Browser, Patience, choose, chromium, labelled, named
from PIL import Image

from gs_train.cli import main
from gs_train.commands.view import ViewConfig, open_viewer
from gs_train.machine.interrupt import StopRequest
from gs_train.scene.path_file import load_path
from gs_train.viewer.viewer import Viewer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        chromium() is None and os.environ.get("GS_REQUIRE_BROWSER") != "1",
        reason="no Chromium on the PATH: the page is not opened in a browser",
    ),
]

OPTIONS = (
    *("--renderer", "cpu", "--steps", "20", "--sh-every", "8", "--seed", "3"),
    *("--exposure", "--background", "random"),
)


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("viewed") / "run"
    assert main(["fit", str(tiny_capture), "--out", str(out), *OPTIONS]) == 0
    return out


@pytest.fixture(scope="module")
def viewer(run: Path) -> Iterator[Viewer]:
    config = ViewConfig(run, port=0, renderer="cpu", live=True)
    with open_viewer(config, StopRequest()) as viewer:
        yield viewer
        viewer.check()


@pytest.fixture
def page(viewer: Viewer, tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile", width=1000, height=640) as browser:
        browser.open(viewer.url)
        browser.wait_for_text("full size")
        yield browser
        assert browser.errors == []


def look(page: Browser, path: Path) -> np.ndarray:
    """(H, W, 3) of the page left of the controls and below the browser's warning."""
    page.screenshot(path)
    return np.asarray(Image.open(path).convert("RGB"))[200:, :600].astype(float)


def look_again(page: Browser, before: np.ndarray, path: Path) -> np.ndarray:
    """The same, once it is another picture than before: what is sent takes its time to show."""
    patience = Patience()
    while np.abs((now := look(page, path)) - before).mean() < 2:
        patience.left_s("another picture")
    return now


def unfold(page: Browser, folder: str) -> None:
    page.click(named(folder, "div"))


def test_the_page_shows_the_scene_and_loads_nothing_from_elsewhere(
    page: Browser, viewer: Viewer, tmp_path: Path
) -> None:
    picture = look_again(page, look(page, tmp_path / "white.png") * 0 + 25, tmp_path / "first.png")
    assert picture.std(axis=(0, 1)).min() > 5  # many colours
    assert "run, step 20" in page.text()
    page.wait_for_text("step 20 of 20")  # the run's progress
    ours = (viewer.url, "data:", f"blob:{viewer.url}")
    assert [url[:80] for url in page.requests if not url.startswith(ours)] == []


def test_dragging_turns_the_camera(page: Browser, tmp_path: Path) -> None:
    before = look(page, tmp_path / "before.png")
    page.drag((300, 400), (420, 380))
    look_again(page, before, tmp_path / "after.png")


def test_a_view_of_the_run_is_shown_beside_its_photograph_and_the_error(
    page: Browser, tmp_path: Path
) -> None:
    choose(page, "Show", "Side by side")
    page.wait_for_text("mean error")
    page.screenshot(tmp_path / "beside.png")
    page.click(named("next"))
    page.wait_for(f"{labelled('View')}.value.startsWith('1: ')")
    page.wait_for_text("mean error")
    choose(page, "Show", "Photograph")
    page.wait_for("!document.body.innerText.includes('mean error')")
    page.click(named("Fly from here"))
    page.wait_for(f"{labelled('Show')}.value === 'Free flight'")
    page.click(labelled("Cameras"))
    page.wait_for(f"{labelled('Cameras')}.checked")
    page.screenshot(tmp_path / "cameras.png")


def test_a_training_view_is_shown_with_its_exposure_or_in_the_scene_s_own_colours(
    page: Browser, tmp_path: Path
) -> None:
    page.wait_for_text("over black, trained over random colours")
    choose(page, "Show", "Render")
    page.wait_for_text("a held-out photograph has no exposure")
    page.click(named("next"))
    page.wait_for_text("with the exposure of the photograph")
    page.wait_for_text("full size")
    page.screenshot(tmp_path / "exposed.png")
    choose(page, "Colours", "the scene's own")
    page.wait_for_text("the scene's own colours")
    page.screenshot(tmp_path / "own.png")


def test_depth_and_opacity_are_drawn(page: Browser, tmp_path: Path) -> None:
    before = look(page, tmp_path / "colour.png")
    choose(page, "Draw", "Depth")
    page.wait_for_text("depth ")
    depth = look_again(page, before, tmp_path / "depth.png")
    choose(page, "Draw", "Opacity")
    page.wait_for_text("white: opaque")
    alpha = look_again(page, depth, tmp_path / "alpha.png")
    assert np.abs(alpha - alpha.mean(axis=2, keepdims=True)).max() < 3  # grey


def test_a_crop_box_leaves_out_what_is_outside(page: Browser, tmp_path: Path) -> None:
    whole = look(page, tmp_path / "whole.png")
    unfold(page, "Crop box")
    page.click(labelled("Crop"))
    page.wait_for_text("cropped")
    cropped = look_again(page, whole, tmp_path / "box.png")
    assert (cropped.max(axis=2) < 5).mean() > 2 * (whole.max(axis=2) < 5).mean()  # black


def test_a_path_of_cameras_is_saved_and_rendered(page: Browser, run: Path, tmp_path: Path) -> None:
    unfold(page, "Camera path")
    page.click(named("add"))
    page.wait_for_text("1 cameras")
    before = look(page, tmp_path / "one.png")
    page.drag((300, 400), (420, 380))
    look_again(page, before, tmp_path / "two.png")
    page.click(named("add"))
    page.wait_for_text("2 cameras")
    page.click(named("Save"))
    page.wait_for_text("The path is saved")
    page.screenshot(tmp_path / "path.png")
    first, second = load_path(run / "camera_path.json")
    assert np.abs(first.world_to_camera - second.world_to_camera).max() > 0.01
    assert (first.width, first.height) == (1920, 1080)
    options = ["--path", str(run / "camera_path.json"), "--frames", "2", "--renderer", "cpu"]
    assert main(["render", str(run), *options, "--to", str(tmp_path / "frames")]) == 0
    assert len(list((tmp_path / "frames").glob("*.png"))) == 2


def test_a_ply_file_is_turned_to_where_up_is(run: Path, tmp_path: Path) -> None:
    ply = next((run / "point_cloud").glob("*/point_cloud.ply"))
    config = ViewConfig(ply, port=0, renderer="cpu")
    with open_viewer(config, StopRequest()) as viewer, Browser(tmp_path / "profile") as page:
        page.open(viewer.url)
        page.wait_for_text("full size")
        assert "Views of the run" not in page.text()
        before = look(page, tmp_path / "before.png")
        choose(page, "Up", "+z")
        look_again(page, before, tmp_path / "after.png")
        page.wait_for_text("full size")
        page.screenshot(tmp_path / "up.png")
        assert page.errors == []
        viewer.check()
