# SPDX-License-Identifier: Apache-2.0
"""The thread that draws for pages, driven step by step by scripted pages."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gs_train.renderers import View
from gs_train.viewer.pace import FAST_S, SLOW_S, Pace
from gs_train.viewer.render_loop import RenderLoop
from gs_train.viewer.request import Picture, Request, reduced


def request(name: str) -> Request:
    return Request(View(name, torch.eye(4), torch.eye(3), 8, 6), (8, 6))


class Script:
    """Draws in four parts and notes what; what the pages do between two parts is in ``between``.

    Drawing takes ``seconds`` of its own clock.
    """

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.drawn: list[str] = []
        self.sent: list[tuple[int, str]] = []
        self.told: list[tuple[int, str]] = []
        self.between: dict[str, Callable[[], None]] = {}
        self.loop = RenderLoop(self.draw, clock=lambda: self.now)

    def draw(self, asked: Request, scale: float, is_stale: Callable[[], bool]) -> Picture | None:
        self.now += self.seconds
        name = f"{asked.view.name} at {scale:g}"
        for part in range(4):
            if part == 2 and name in self.between:
                self.between.pop(name)()
            if part and is_stale():
                self.drawn.append(f"{name}, abandoned")
                return None
        self.drawn.append(name)
        return Picture(np.zeros((1, 1, 3), np.uint8), scale == 1, self.seconds, name)

    def page(self, number: int) -> None:
        self.loop.join(
            number,
            lambda picture: self.sent.append((number, picture.note)),
            lambda error: self.told.append((number, str(error))),
        )

    def steps(self, n: int) -> None:
        for _ in range(n):
            assert not self.loop.is_idle
            assert self.loop.step()


def test_a_picture_comes_coarse_and_then_fine() -> None:
    script = Script()
    script.page(1)
    script.loop.ask(1, request("a"))
    script.steps(2)
    assert script.sent == [(1, "a at 0.25"), (1, "a at 1")]


def test_a_newer_camera_ends_a_fine_picture_between_two_parts() -> None:
    script = Script()
    script.page(1)
    script.loop.ask(1, request("a"))
    script.between["a at 1"] = lambda: script.loop.ask(1, request("b"))
    script.steps(4)
    assert script.drawn == ["a at 0.25", "a at 1, abandoned", "b at 0.25", "b at 1"]
    assert [note for _, note in script.sent] == ["a at 0.25", "b at 0.25", "b at 1"]


def test_a_newer_camera_does_not_end_a_coarse_picture() -> None:
    script = Script()
    script.page(1)
    script.loop.ask(1, request("a"))
    script.between["a at 0.25"] = lambda: script.loop.ask(1, request("b"))
    script.steps(3)
    assert script.drawn == ["a at 0.25", "b at 0.25", "b at 1"]


def test_only_the_newest_of_many_cameras_is_drawn() -> None:
    script = Script()
    script.page(1)
    for name in "abcd":
        script.loop.ask(1, request(name))
    script.steps(2)
    assert script.drawn == ["d at 0.25", "d at 1"]


def test_pages_take_turns_and_coarse_pictures_of_all_go_first() -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))
    script.loop.ask(2, request("b"))
    script.steps(4)
    assert script.sent == [(1, "a at 0.25"), (2, "b at 0.25"), (1, "a at 1"), (2, "b at 1")]


def test_a_page_that_moves_all_the_time_keeps_no_other_page_waiting() -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a0"))
    for k in range(3):  # a new camera of page 1 while its last one is drawn
        script.between[f"a{k} at 0.25"] = lambda k=k: script.loop.ask(1, request(f"a{k + 1}"))
    script.loop.ask(2, request("b"))
    script.steps(3)
    assert script.drawn == ["a0 at 0.25", "b at 0.25", "a1 at 0.25"]


def test_a_fine_picture_that_another_page_ended_is_drawn_after_all() -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))
    script.between["a at 1"] = lambda: script.loop.ask(2, request("b"))
    script.steps(5)
    assert script.drawn[1:3] == ["a at 1, abandoned", "b at 0.25"]
    assert sorted(script.drawn[3:]) == ["a at 1", "b at 1"]


def test_a_page_that_left_is_not_drawn_for() -> None:
    script = Script()
    for number in (1, 2):
        script.page(number)
        script.loop.ask(number, request("ab"[number - 1]))
    script.loop.leave(1)
    script.between["b at 0.25"] = lambda: script.loop.leave(2)
    script.steps(1)
    assert script.drawn == ["b at 0.25, abandoned"]
    script.loop.ask(2, request("c"))  # from a page that is gone: nothing comes of it
    script.page(3)
    script.loop.ask(3, request("d"))
    script.steps(1)
    assert script.sent == [(3, "d at 0.25")]


def test_a_job_runs_between_two_pictures_and_ends_a_fine_one() -> None:
    script = Script()
    script.page(1)
    script.loop.ask(1, request("a"))

    def change() -> None:
        script.drawn.append("another scene")
        script.loop.ask_again()

    script.between["a at 1"] = lambda: script.loop.run_between(change)
    script.steps(5)
    assert script.drawn == [
        *("a at 0.25", "a at 1, abandoned", "another scene", "a at 0.25", "a at 1")
    ]


def test_pages_that_asked_for_nothing_are_sent_nothing_again() -> None:
    script = Script()
    script.page(1)
    script.loop.ask_again()
    script.page(2)
    script.loop.ask(2, request("b"))
    script.steps(2)
    assert {number for number, _ in script.sent} == {2}


def test_a_closed_loop_ends_and_abandons_what_it_draws() -> None:
    script = Script()
    script.page(1)
    script.loop.ask(1, request("a"))
    script.between["a at 0.25"] = script.loop.close
    assert script.loop.step()
    assert script.drawn == ["a at 0.25, abandoned"]
    assert not script.loop.step()
    script.loop.run()
    assert script.loop.error is None


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_a_page_whose_drawing_fails_is_told_and_other_pages_go_on() -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))
    script.loop.ask(2, request("b"))
    script.between["a at 0.25"] = failing(ValueError("no such camera"))
    script.steps(3)
    assert script.told == [(1, "no such camera")]
    assert script.sent == [(2, "b at 0.25"), (2, "b at 1")]
    assert script.loop.is_idle  # the request that failed is forgotten
    script.loop.ask(1, request("c"))
    script.steps(2)
    assert script.sent[2:] == [(1, "c at 0.25"), (1, "c at 1")]


def test_a_newer_request_outlives_the_failure_of_an_older_one() -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))

    def move_and_fail() -> None:
        script.loop.ask(1, request("b"))
        raise ValueError("no such camera")

    script.between["a at 0.25"] = move_and_fail
    script.steps(3)
    assert script.sent == [(1, "b at 0.25"), (1, "b at 1")]


def test_a_scene_that_fails_for_every_page_ends_the_loop() -> None:
    script = Script()
    for number in (1, 2):
        script.page(number)
        script.loop.ask(number, request("ab"[number - 1]))
    script.between["a at 0.25"] = failing(ValueError("one"))
    script.between["b at 0.25"] = failing(ValueError("another"))
    script.steps(1)
    with pytest.raises(ValueError, match="another"):
        script.loop.step()
    assert script.told == [(1, "one")]


def test_the_failure_of_a_page_that_left_meanwhile_ends_nothing() -> None:
    script = Script()
    script.page(1)
    script.loop.ask(1, request("a"))

    def leave_and_fail() -> None:
        script.loop.leave(1)
        raise ValueError("no such camera")

    script.between["a at 0.25"] = leave_and_fail
    script.steps(1)
    assert script.told == []


def test_another_scene_is_given_another_chance() -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))
    script.between["a at 0.25"] = failing(ValueError("one"))
    script.steps(1)
    script.loop.ask_again()  # of a new scene
    script.loop.ask(2, request("b"))
    script.between["b at 0.25"] = failing(ValueError("another"))
    script.steps(1)
    assert script.told == [(1, "one"), (2, "another")]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: unspecified launch failure"),
        type("CudaError", (RuntimeError,), {})("the launch failed"),
    ],
)
def test_a_device_that_failed_ends_the_loop_at_once(error: Exception) -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))
    script.between["a at 0.25"] = failing(error)
    script.loop.run()
    assert script.loop.error is error
    assert script.told == []


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Expected all tensors to be on the same device, got cuda:0 and cpu"),
    ],
)
def test_other_errors_on_a_device_are_no_failure_of_the_device(error: Exception) -> None:
    script = Script()
    script.page(1)
    script.page(2)
    script.loop.ask(1, request("a"))
    script.between["a at 0.25"] = failing(error)
    script.steps(1)
    assert script.told == [(1, str(error))]


def test_an_error_ends_the_thread_and_is_kept() -> None:
    script = Script()
    script.page(1)
    script.between["a at 0.25"] = failing(OSError("the device is gone"))
    thread = threading.Thread(target=script.loop.run)
    thread.start()  # waits for somebody to ask
    script.loop.ask(1, request("a"))
    thread.join()
    assert str(script.loop.error) == "the device is gone"


def test_a_fast_scene_is_drawn_at_full_size_at_once() -> None:
    script = Script(seconds=FAST_S / 2)
    script.page(1)
    for name in "abc":
        script.loop.ask(1, request(name))
        script.steps(1)
    assert script.drawn == ["a at 0.25", "b at 0.5", "c at 1"]
    assert script.loop.is_idle  # nothing finer is to come


def test_a_pace_finds_the_scale_that_takes_between_its_two_times() -> None:
    pace = Pace()
    for _ in range(5):
        pace.took(SLOW_S * 1.1)
    assert pace.scale == 1 / 8
    pace.took((SLOW_S + FAST_S) / 2)
    assert pace.scale == 1 / 8
    for _ in range(5):
        pace.took(FAST_S * 0.9)
    assert pace.scale == 1


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25, 0.001])
def test_a_reduced_view_keeps_its_field_of_view(scale: float) -> None:
    K = torch.tensor([[500.0, 0, 330], [0, 510.0, 240], [0, 0, 1]])
    view = View("a", torch.eye(4), K, 641, 480)
    small = reduced(view, scale)
    assert (small.width, small.height) == (max(1, round(641 * scale)), max(1, round(480 * scale)))
    for corner in ((0.0, 0.0), (1.0, 1.0)):
        rays = [
            torch.linalg.inv(v.K) @ torch.tensor([corner[0] * v.width, corner[1] * v.height, 1.0])
            for v in (view, small)
        ]
        torch.testing.assert_close(*rays)
