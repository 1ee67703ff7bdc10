# SPDX-License-Identifier: Apache-2.0
"""The pace of a rank, by a clock that tells what the test says."""

from __future__ import annotations

import pytest
import torch

from gs_train.engine.pace import UNKNOWN, DeviceClock, DrawingPace, HostClock, clock_of, paces_of
from gs_train.ranks.turns import Turns


class ToldClock:
    """A clock whose moments are numbers, which pass when the test says so.

    Attributes:
        now: the present moment in seconds.
        passed: moments until this one are over.
    """

    def __init__(self) -> None:
        self.now, self.passed = 0.0, float("inf")

    def mark(self) -> float:
        return self.now

    def seconds(self, first: float, last: float) -> float | None:
        return last - first if last <= self.passed else None


def draw(pace: DrawingPace, clock: ToldClock, seconds: float, n_rows: int = 1000) -> None:
    """The first draw of a batch, which begins; one of another pace and one of nothing beside it."""
    pace.next_batch()
    with pace.drawing(0):
        clock.now += 1.0
    with pace.drawing(n_rows):
        clock.now += seconds
    with pace.drawing(1):
        clock.now += 1000.0


def test_a_pace_is_the_time_of_a_row_that_most_draws_agree_on() -> None:
    clock = ToldClock()
    pace = DrawingPace(clock)
    assert pace.next_batch() == UNKNOWN
    for seconds in (9.0, 2e-6, 3e-6):  # the first one compiles
        draw(pace, clock, seconds)
    assert pace.next_batch() == 3000
    for _ in range(40):
        draw(pace, clock, 5e-6, n_rows=500)
    assert pace.next_batch() == 10_000


def test_a_draw_counts_once_its_time_is_known() -> None:
    clock = ToldClock()
    pace = DrawingPace(clock)
    clock.passed = 2.0
    draw(pace, clock, 2.0)  # over at 3
    draw(pace, clock, 4.0)  # over at 1008
    assert pace.next_batch() == UNKNOWN
    clock.passed = 3.0
    assert pace.next_batch() == 2_000_000_000
    draw(pace, clock, 4.0)
    clock.passed = float("inf")
    assert pace.next_batch() == 4_000_000_000


def test_a_draw_of_nothing_and_one_that_failed_do_not_count() -> None:
    clock = ToldClock()
    pace = DrawingPace(clock)
    with pace.drawing(0):
        clock.now += 1.0
    with pytest.raises(KeyError), pace.drawing(10):
        raise KeyError
    assert pace.next_batch() == UNKNOWN


def test_what_was_long_ago_is_forgotten() -> None:
    clock = ToldClock()
    pace = DrawingPace(clock)
    draw(pace, clock, 1.0)
    found = [pace.next_batch() for _ in range(70)]
    assert found[:64] == [10**9] * 64
    assert set(found[64:]) == {UNKNOWN}


def test_a_pace_is_above_nothing() -> None:
    clock = ToldClock()
    pace = DrawingPace(clock)
    draw(pace, clock, 0.0)
    assert pace.next_batch() == 1


def test_a_rank_of_unknown_pace_is_tried() -> None:
    assert paces_of([UNKNOWN, UNKNOWN]).tolist() == [1.0, 1.0]
    assert paces_of([300, 200]).tolist() == [300.0, 200.0]
    paces = paces_of([300, UNKNOWN, 200])
    assert paces.tolist() == [300.0, 198.0, 200.0]
    assert Turns.of([[5], [5], [5]], paces=paces).rounds[0].drawn == (-1, 0, -1)


def test_each_kind_of_device_has_its_clock() -> None:
    assert isinstance(clock_of(torch.device("cuda:1")), DeviceClock)
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    moment = clock.mark()
    assert clock.seconds(moment, moment) == 0


@pytest.mark.gpu
def test_a_device_is_timed_without_waiting() -> None:
    clock = DeviceClock()
    pace = DrawingPace(clock)
    values = torch.rand(4096, 4096, device="cuda")
    with pace.drawing(10):
        values @ values
    torch.cuda.synchronize()
    assert pace.next_batch() > 1
