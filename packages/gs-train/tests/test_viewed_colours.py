# SPDX-License-Identifier: Apache-2.0
"""Pictures of the viewer over the background of a run, with the exposures that it trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from cloud import cloud_rows

from gs_train.checkpoint import load_checkpoint
from gs_train.cli import main
from gs_train.data import read_image
from gs_train.engine.background import colour_of_scores
from gs_train.errors import InputError
from gs_train.files.pictures import to_uint8
from gs_train.files.ply import write_ply
from gs_train.losses.background import WHITE
from gs_train.losses.exposure import exposed
from gs_train.machine.interrupt import StopRequest
from gs_train.rows.visible import render_view
from gs_train.runs.exposures import exposures_of
from gs_train.runs.run import Run
from gs_train.scene.scene import view_in_frame
from gs_train.viewer.opened import Limits, OpenedScene, open_scene
from gs_train.viewer.photographs import Photographs
from gs_train.viewer.pictures import Pictures
from gs_train.viewer.request import Picture, Request

CPU = Limits(renderer="cpu")
OPTIONS = ("--renderer", "cpu", "--steps", "8", "--seed", "3", "--background", "white")
HELD_OUT, TRAINED = 0, 5


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("viewed") / "run"
    assert main(["fit", str(tiny_capture), "--out", str(out), "--exposure", *OPTIONS]) == 0
    return out


@pytest.fixture(scope="module")
def scene(run: Path) -> OpenedScene:
    return open_scene(run, CPU, StopRequest())


def never() -> bool:
    return False


def request_of(scene: OpenedScene, index: int, **more: object) -> Request:
    view = view_in_frame(scene.cameras[index], scene.frame)
    return Request(view, (view.width, view.height), photograph=index, **more)


def drawn(scene: OpenedScene, request: Request, photographs: Photographs | None = None) -> Picture:
    picture = Pictures(lambda: scene, photographs)(request, 1.0, never)
    assert picture is not None
    return picture


def test_exposures_are_those_of_the_checkpoint_by_view(run: Path, scene: OpenedScene) -> None:
    assert scene.run is not None
    values = load_checkpoint(scene.run.checkpoint.path).tensors["exposure/values"]
    assert sorted(scene.exposures) == list(scene.train)
    for row, index in enumerate(scene.train):
        assert scene.exposures[index].flatten().tolist() == values[row].tolist()
    spread = torch.stack(list(scene.exposures.values())).std(dim=0)
    assert (spread[:, 3] > 1e-3).all()  # or the tests below say nothing


def test_a_training_view_has_its_exposure_or_the_scene_s_own_colours(scene: OpenedScene) -> None:
    request = request_of(scene, TRAINED)
    own = render_view(scene.model, request.view, scene.renderer, WHITE)
    picture = drawn(scene, request)
    np.testing.assert_array_equal(picture.pixels, to_uint8(own))
    assert picture.note == "over white; the scene's own colours"
    picture = drawn(scene, dataclasses.replace(request, is_exposed=True))
    expected = to_uint8(exposed(own, scene.exposures[TRAINED]).clamp(0, 1))
    # What was drawn may pass 1 a little before it gets its exposure.
    assert np.abs(picture.pixels.astype(int) - expected).max() <= 1
    assert (picture.pixels != to_uint8(own)).any()
    assert picture.note == "over white; with the exposure of the photograph"


def test_the_error_is_that_of_what_is_shown(scene: OpenedScene) -> None:
    assert scene.run is not None
    capture = scene.run.capture(StopRequest())
    photographs = Photographs(lambda: capture, lambda: None)
    photographs.of(TRAINED)
    photographs.close()
    truth = read_image(capture.views[TRAINED])
    for is_exposed, what in ((True, "with the exposure of the photograph"), (False, "the scene's")):
        request = request_of(scene, TRAINED, is_exposed=is_exposed)
        render = drawn(scene, request).pixels
        error = np.abs(truth.astype(float) - render).mean() / 255
        beside = dataclasses.replace(request, panels=("photograph", "render", "error"))
        note = drawn(scene, beside, photographs).note
        assert note.startswith(f"mean error {error:.4f}; pale: ")
        assert what in note


def test_a_held_out_view_and_a_free_look_have_no_exposure(scene: OpenedScene) -> None:
    request = request_of(scene, HELD_OUT, is_exposed=True)
    own = to_uint8(render_view(scene.model, request.view, scene.renderer, WHITE))
    picture = drawn(scene, request)
    np.testing.assert_array_equal(picture.pixels, own)
    assert picture.note.endswith("a held-out photograph has no exposure")
    free = drawn(scene, dataclasses.replace(request, photograph=None))
    np.testing.assert_array_equal(free.pixels, own)
    assert free.note == "over white"


def test_depth_and_opacity_say_nothing_of_colours(scene: OpenedScene) -> None:
    bare = dataclasses.replace(scene, background="black", exposures={})
    for quantity in ("depth", "alpha"):
        request = request_of(scene, TRAINED, quantity=quantity, is_exposed=True)
        picture, alone = drawn(scene, request), drawn(bare, request)
        np.testing.assert_array_equal(picture.pixels, alone.pixels)
        assert picture.note == alone.note


@pytest.mark.parametrize(
    ("background", "note"),
    [("black", ""), ("random", "over black, trained over random colours"), ("white", "over white")],
)
def test_a_free_look_says_what_lies_behind(scene: OpenedScene, background: str, note: str) -> None:
    other = dataclasses.replace(scene, background=background, exposures={})
    request = request_of(scene, TRAINED, is_exposed=True)
    picture = drawn(other, request)
    colour = colour_of_scores(background)
    expected = to_uint8(render_view(scene.model, request.view, scene.renderer, colour))
    np.testing.assert_array_equal(picture.pixels, expected)
    assert picture.note == note


def test_a_ply_file_lies_over_black(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", cloud_rows(50))
    scene = open_scene(tmp_path / "a.ply", CPU, StopRequest())
    assert (scene.background, dict(scene.exposures)) == ("black", {})


def test_exposures_of_other_views_are_damage(run: Path, scene: OpenedScene) -> None:
    opened = Run.open(run)
    assert opened.record is not None
    fewer = dataclasses.replace(opened.record, train=opened.record.train[1:])
    with pytest.raises(InputError, match="is damaged"):
        exposures_of(dataclasses.replace(opened, record=fewer), torch.device("cpu"))
    assert exposures_of(dataclasses.replace(opened, record=None), torch.device("cpu")) == {}


def test_an_export_s_arguments_name_the_background(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--layout", "inria", "--to", str(tmp_path / "export")]) == 0
    assert "white_background=True" in (tmp_path / "export" / "cfg_args").read_text()
