# SPDX-License-Identifier: Apache-2.0
"""Pages that come and go in any order, and the camera path that they share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gs_train.renderers import View
from gs_train.scene.camera_paths import PathCamera
from gs_train.scene.path_file import camera_of
from gs_train.viewer.pages import Pages
from gs_train.viewer.path_keys import Keys, PathKeys
from gs_train.viewer.render_loop import RenderLoop
from gs_train.viewer.request import Picture, Request

REQUEST = Request(View("a", torch.eye(4), torch.eye(3), 8, 6), (8, 6))


def key(name: str) -> PathCamera:
    return camera_of(name, np.eye(4), 1.0, 64, 48)


class ScriptedPage:
    """Asks for a picture when it begins; fails to show anything where told to.

    Attributes:
        paths: the names of the path's cameras, each time that they were shown.
    """

    def __init__(self, number: int, loop: RenderLoop) -> None:
        self._number = number
        self._loop = loop
        self.has_begun = False
        self.fails = False
        self.paths: list[list[str]] = []

    def begin(self) -> None:
        self.has_begun = True
        self._loop.ask(self._number, REQUEST)

    def show(self, picture: Picture) -> None:
        if self.fails:
            raise RuntimeError("the page is gone")

    def show_error(self, error: Exception) -> None:
        self.show(Picture(np.zeros((1, 1, 3), np.uint8), False, 0.0))

    def show_keys(self, keys: Keys) -> None:
        if self.fails:
            raise RuntimeError("the page is gone")
        self.paths.append([key.name for key in keys])


class Browsers:
    """Clients that connect and disconnect as viser has them, and their pages by number."""

    def __init__(self) -> None:
        self.connected: dict[int, SimpleNamespace] = {}
        self.pages: dict[int, ScriptedPage] = {}
        self.keys = PathKeys()
        self.loop = RenderLoop(self.draw)
        self.joined = Pages(self, self.loop, self.keys, self.make)

    def draw(self, request: Request, scale: float, is_stale: Callable[[], bool]) -> Picture:
        return Picture(np.zeros((1, 1, 3), np.uint8), scale == 1, 0.0)

    def make(self, client: SimpleNamespace) -> ScriptedPage:
        page = self.pages[client.client_id] = ScriptedPage(client.client_id, self.loop)
        return page

    def get_clients(self) -> dict[int, SimpleNamespace]:
        return dict(self.connected)

    def connect(self, number: int) -> SimpleNamespace:
        client = self.connected[number] = SimpleNamespace(client_id=number)
        return client


def test_a_page_that_left_before_it_joined_is_forgotten() -> None:
    browsers = Browsers()
    client = browsers.connect(1)
    del browsers.connected[1]
    browsers.joined.leave(client)
    browsers.joined.join(client)
    browsers.loop.ask(1, REQUEST)
    assert browsers.loop.is_idle
    assert not browsers.pages[1].has_begun
    browsers.keys.add(key("a"))
    assert browsers.pages[1].paths == [[]]


def test_a_page_that_joins_is_drawn_for_until_it_leaves() -> None:
    browsers = Browsers()
    client = browsers.connect(1)
    browsers.joined.join(client)
    assert not browsers.loop.is_idle
    browsers.joined.leave(client)
    assert browsers.loop.is_idle


def test_only_the_errors_of_open_pages_count() -> None:
    browsers = Browsers()
    client = browsers.connect(1)
    browsers.joined.join(client)
    browsers.pages[1].fails = True
    del browsers.connected[1]
    assert browsers.loop.step()
    browsers.keys.add(key("a"))
    browsers.connected[1] = client
    with pytest.raises(RuntimeError, match="the page is gone"):
        browsers.keys.add(key("b"))


def test_every_page_shows_the_path_that_is_saved() -> None:
    browsers = Browsers()
    for number in (1, 2):
        browsers.joined.join(browsers.connect(number))
    keys = browsers.keys
    keys.add(key("a"))
    keys.add(key("b"))
    keys.remove_last()
    keys.remove_all()
    keys.remove_last()  # there is none: nothing happens
    shown = [[], ["a"], ["a", "b"], ["a"], [], []]
    assert browsers.pages[1].paths == browsers.pages[2].paths == shown
    keys.add(key("c"))
    browsers.joined.join(browsers.connect(3))
    assert browsers.pages[3].paths == [["c"]]


def test_pages_that_change_the_path_at_once_leave_each_others_cameras() -> None:
    keys = PathKeys([key("first")])
    shown: list[int] = []
    keys.join(1, lambda all_keys: shown.append(len(all_keys)))
    start = threading.Barrier(4)

    def add() -> None:
        start.wait()
        for _ in range(50):
            keys.add(key("more"))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys.all) == 201
    assert shown == list(range(1, 202))
