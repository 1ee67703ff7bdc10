# SPDX-License-Identifier: Apache-2.0
"""Waits of a rank, by a clock that the test turns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from gs_train.world import Alone, Pending
from gs_train.world.protocol import Ints
from gs_train.world.timed import TimedWorld, Waits, noting

ROWS = torch.zeros(5, 12), torch.zeros(5, 12), [3, 2], [3, 2]


class Clock:
    """Time goes on only where the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Slow(Alone):
    """Gathers take three seconds, and an exchange takes five from the moment it is waited for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(torch.device("cpu"))
        self._clock = clock

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Pending[Tensor]:
        return Late(self._clock, recv)

    def gather(self, values: npt.ArrayLike) -> Ints:
        self._clock.seconds += 3
        return super().gather(values)


class Late:
    def __init__(self, clock: Clock, result: Tensor) -> None:
        self._clock, self._result = clock, result

    def wait(self) -> Tensor:
        self._clock.seconds += 5
        return self._result


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def test_waits_are_noted_where_they_are_made_and_while_noting(clock: Clock) -> None:
    timed, waits = TimedWorld(Slow(clock)), Waits()
    timed.all_to_all(*ROWS).wait()
    for _ in range(2):
        with timed.noting(waits):
            posted = timed.all_to_all(*ROWS)
            clock.seconds += 100
            assert posted.wait() is ROWS[0]
            assert timed.gather([1, 2]).tolist() == [[1, 2]]
        timed.all_to_all(*ROWS).wait()
        timed.gather([1])
    waits.settle()
    to_the_other_rank = 2 * 12 * 4
    assert (waits.device_s, waits.host_s, waits.sent_bytes) == (10, 6, 2 * to_the_other_rank)


def test_nothing_is_noted_of_a_world_of_one(clock: Clock) -> None:
    waits = Waits()
    with noting(Slow(clock), waits) as entered:
        assert entered is None
    assert (waits.device_s, waits.host_s) == (0, 0)


@pytest.mark.gpu
def test_waits_of_a_gpu_are_read_once_they_have_passed() -> None:
    """More of them than events are kept."""
    waits = Waits()
    for _ in range(300):
        waits.on_device(lambda: torch.cuda._sleep(10_000), is_cuda=True)
    torch.cuda.synchronize()
    waits.settle()
    read = waits.device_s
    assert read > 0
    waits.settle()
    assert waits.device_s == read
