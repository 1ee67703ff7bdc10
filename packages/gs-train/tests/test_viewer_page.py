# SPDX-License-Identifier: Apache-2.0
"""The controls of a page, set as a user sets them: what it asks for, shows and saves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from cloud import cloud_rows
from scripted_client import ScriptedClient

from gs_train.data.frame import Frame
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.gaussians import Gaussians
from gs_train.scene.path_file import camera_of, load_path
from gs_train.viewer.opened import OpenedScene
from gs_train.viewer.page import Page
from gs_train.viewer.path_keys import PathKeys
from gs_train.viewer.request import Picture, Request
from gs_train.viewer.services import Services

NAMES = ("0: a (held out)", "1: b", "2: c")


def scene_of(**more: object) -> OpenedScene:
    model = Gaussians(cloud_rows(20), device="cpu", make_optimizer=torch.optim.SGD)
    cameras = tuple(camera_of(name, np.eye(4), 1.0, 320, 240) for name in "abc")
    return OpenedScene(
        title="a scene",
        model=model,
        renderer=CpuRenderer(),
        frame=Frame((0.0, 0.0, 0.0), 1.0, 1.0),
        cameras=cameras,
        train=(1, 2),
        test=(0,),
        up=np.array([0.0, -1.0, 0.0]),
        focus=np.zeros(3),
        most_rows=1000,
        **more,
    )


class Opened:
    """A page of a scene, and what it asks for."""

    def __init__(self, scene: OpenedScene, path_file: Path = Path("path.json")) -> None:
        self.asked: list[Request] = []
        self.keys = PathKeys()
        self.client = ScriptedClient()
        services = Services(lambda: scene, self._ask, self.keys, path_file, "gs-train render RUN")
        self.page = Page(self.client, services)
        self.keys.join(ScriptedClient.client_id, self.page.show_keys)
        self.page.begin()

    def _ask(self, client: int, request: Request) -> None:
        assert client == ScriptedClient.client_id
        self.asked.append(request)

    def set(self, label: str, value: object) -> Request:
        """Set a control; what is asked for then."""
        n = len(self.asked)
        self.client[label].set(value)
        assert len(self.asked) > n
        return self.asked[-1]


EXPOSED = {1: torch.eye(3, 4), 2: torch.eye(3, 4)}


def test_a_page_begins_in_free_flight_in_the_scene_s_own_colours() -> None:
    opened = Opened(scene_of(exposures=EXPOSED))
    (first,) = opened.asked
    assert (first.photograph, first.panels, first.is_exposed) == (None, ("render",), False)
    assert first.view.name != "b"


def test_a_view_is_asked_for_with_its_exposure_until_its_own_colours_are_chosen() -> None:
    opened = Opened(scene_of(exposures=EXPOSED))
    opened.client["View"].set(NAMES[1])
    assert len(opened.asked) == 1  # in free flight the view is not shown
    request = opened.set("Show", "Render")
    assert (request.photograph, request.is_exposed) == (1, True)
    request = opened.set("Colours", "the scene's own")
    assert (request.photograph, request.is_exposed) == (1, False)
    request = opened.set("Colours", "with exposure")
    assert request.is_exposed
    beside = opened.set("Show", "Side by side")
    assert beside.is_exposed
    assert beside.panels == ("photograph", "render", "error")
    free = opened.set("Show", "Free flight")
    assert (free.photograph, free.is_exposed) == (None, False)


def test_without_exposures_there_is_no_choice_of_colours() -> None:
    opened = Opened(scene_of())
    assert "Colours" not in opened.client
    assert not opened.set("Show", "Render").is_exposed
    of_a_file = Opened(dataclasses.replace(scene_of(), cameras=(), train=(), test=()))
    assert "Show" not in of_a_file.client
    assert "Up" in of_a_file.client


def test_an_error_is_one_of_colours_whatever_is_drawn() -> None:
    opened = Opened(scene_of())
    assert opened.set("Draw", "Depth").quantity == "depth"
    assert opened.set("Show", "Render").quantity == "depth"
    assert opened.set("Show", "Error").quantity == "color"


def test_buttons_lead_from_view_to_view() -> None:
    opened = Opened(scene_of())
    opened.set("Show", "Render")
    for step, index in (("next", 1), ("next", 2), ("next", 0), ("previous", 2)):
        opened.client["Go"].set(step)
        # viser tells of a value that a program sets as of one that a user sets.
        opened.client["View"].click()
        assert opened.asked[-1].photograph == index
        assert opened.client["View"].value == NAMES[index]


def test_pixels_and_the_box_are_as_they_are_set() -> None:
    opened = Opened(scene_of())
    opened.set("Show", "Render")
    request = opened.set("Pixels", 256)
    assert (request.view.width, request.view.height) == (256, 192)
    box = opened.set("Crop", True).box
    assert box is not None
    assert box.size == (1.0, 1.0, 1.0)
    box = opened.set("Edges", (1.0, 2.0, 3.0)).box
    assert box is not None
    assert box.size == (1.0, 2.0, 3.0)
    assert opened.set("Crop", False).box is None


def test_a_page_shows_what_it_is_sent_and_what_is_said_about_it() -> None:
    opened = Opened(scene_of())
    pixels = np.zeros((48, 64, 3), np.uint8)
    opened.page.show(Picture(pixels, True, 0.05, "over white; held out"))
    assert opened.client.scene.picture is pixels


def test_the_path_is_saved_with_cameras_of_the_page(tmp_path: Path) -> None:
    opened = Opened(scene_of(), tmp_path / "path.json")
    opened.client["Save"].click()
    assert opened.client.told[-1][0] == "Nothing is saved"
    opened.client["Camera"].set("add")
    opened.client["Camera"].set("add")
    assert len(opened.client.scene.lines["/path"]) == 16
    opened.client["Frames"].set((101, 60))
    opened.client["Save"].click()
    title, body = opened.client.told[-1]
    assert title == "The path is saved"
    assert "gs-train render RUN" in body
    keys = load_path(tmp_path / "path.json")
    assert [(key.width, key.height) for key in keys] == [(100, 60)] * 2
    opened.client["Camera"].set("remove all")
    assert "/path" not in opened.client.scene.lines


def test_pyramids_come_and_go() -> None:
    opened = Opened(scene_of())
    opened.client["Cameras"].set(True)
    assert len(opened.client.scene.lines["/views"]) == 24
    opened.client["Cameras"].set(False)
    assert "/views" not in opened.client.scene.lines
