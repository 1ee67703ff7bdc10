# SPDX-License-Identifier: Apache-2.0
"""Work on the second thread: done when the block ends, and its errors are not lost."""

from __future__ import annotations

import threading

import pytest
import torch

from gs_pinned import Signal
from gs_train.machine.lanes import Lanes
from gs_train.machine.side_thread import SideThread

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("has_thread", [None, True])
@pytest.mark.parametrize("device", DEVICES)
def test_what_it_returns_is_there_when_the_block_ends(device: str, has_thread: bool | None) -> None:
    beside = SideThread(torch.device(device), has_thread=has_thread)
    for k in range(3):
        with beside.running(lambda k=k: k + 1) as task:  # type: ignore[misc]
            pass
        assert task.result() == k + 1


@pytest.mark.parametrize("has_thread", [False, True])
def test_errors_are_raised_and_those_of_the_block_come_first(has_thread: bool) -> None:
    def fails() -> None:
        raise ValueError("beside")

    beside = SideThread(torch.device("cpu"), has_thread=has_thread)
    with pytest.raises(ValueError, match="beside"), beside.running(fails):
        pass
    if has_thread:
        with pytest.raises(KeyError, match="block"), beside.running(fails):
            raise KeyError("block")


@pytest.mark.parametrize("device", DEVICES)
def test_what_waits_for_nothing_is_done_before_the_block_begins(device: str) -> None:
    beside = SideThread(torch.device(device), has_thread=True)
    with beside.running(threading.current_thread, waits=False) as task:
        assert task.done()
    assert task.result() is threading.current_thread()


@pytest.mark.gpu
def test_the_block_goes_on_meanwhile_and_both_have_the_same_stream() -> None:
    beside, stream = SideThread(torch.device("cuda")), torch.cuda.Stream()
    begun = threading.Event()

    def call() -> tuple[int, int]:
        begun.wait()  # for ever, unless the block goes on
        return torch.cuda.current_stream().cuda_stream, threading.get_ident()

    with torch.cuda.stream(stream), beside.running(call) as task:
        begun.set()
    found, thread = task.result()
    assert found == stream.cuda_stream
    assert thread != threading.get_ident()


@pytest.mark.gpu
@pytest.mark.asynchrony
def test_an_event_has_passed_when_what_is_before_it_is_done() -> None:
    lanes = Lanes(torch.device("cuda"))
    latch = Signal()
    latch.wait_on(torch.cuda.current_stream(), 1)
    event = lanes.mark("compute")
    assert not lanes.has_passed(event)
    latch.set(1)
    torch.cuda.synchronize()
    assert lanes.has_passed(event)
    assert lanes.has_passed(None)
