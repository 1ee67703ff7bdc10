# SPDX-License-Identifier: Apache-2.0
"""Signals between host threads."""

import ctypes
import os
import signal as interrupts
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gs_pinned import CudaError, PoisonedError, Signal, device


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises: tests that are started in the background inherit that it is ignored."""
    before = interrupts.signal(interrupts.SIGINT, interrupts.default_int_handler)
    yield
    interrupts.signal(interrupts.SIGINT, before)


def run(work: object) -> threading.Thread:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    return thread


@pytest.mark.parametrize("spin_s", [0.0, 0.01])
def test_a_thread_wakes_when_its_value_is_reached(spin_s: float) -> None:
    signal = Signal()
    reached: list[int] = []

    def wait() -> None:
        for value in (1, 2, 5):
            signal.wait(value, spin_s=spin_s)
            reached.append(value)

    thread = run(wait)
    signal.set(2)
    while reached != [1, 2]:
        time.sleep(0)
    signal.set_on(None, 7)
    thread.join()
    assert reached == [1, 2, 5]
    assert signal.value == 7


def test_other_code_reads_the_word_at_the_address() -> None:
    signal = Signal()
    word = ctypes.c_uint32.from_address(signal.address)
    signal.set(3)
    assert word.value == 3
    signal.poison("gone")
    assert word.value == 2**31 - 1


def test_a_value_never_sinks() -> None:
    signal = Signal()
    signal.set(9)
    signal.set(4)
    assert signal.value == 9


def test_waiting_has_a_limit() -> None:
    signal = Signal()
    signal.set(1)
    signal.wait(1, timeout_s=0.0)
    with pytest.raises(TimeoutError, match=r"the signal did not reach 2 in 0\.01 s"):
        signal.wait(2, timeout_s=0.01)
    signal.wait(1, timeout_s=10**400)
    with pytest.raises(TimeoutError):
        signal.wait(2, timeout_s=0.01, spin_s=5.0)


def test_poison_releases_every_waiter_with_the_first_reason() -> None:
    signal = Signal()
    errors: list[str] = []

    def wait() -> None:
        try:
            signal.wait_on(None, 10)
        except PoisonedError as error:
            errors.append(str(error))

    threads = [run(wait) for _ in range(3)]
    signal.poison(ValueError("disk full"))
    signal.poison("later")
    for thread in threads:
        thread.join()
    assert errors == ["ValueError: disk full"] * 3
    signal.set(11)
    assert signal.is_poisoned
    with pytest.raises(PoisonedError, match="disk full"):
        signal.wait(1)


def test_work_sets_its_value_when_it_succeeds_and_poisons_it_when_it_fails() -> None:
    signal = Signal()
    with signal.completing(1):
        assert signal.value == 0
    signal.wait(1)
    with pytest.raises(ZeroDivisionError), signal.completing(2):
        _ = 1 / 0
    with pytest.raises(PoisonedError, match="ZeroDivisionError: division by zero"):
        signal.wait(2)


class UntoldError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError(os.fsdecode(b"photo\xff.jpg")), r"ValueError: photo\\udcff\.jpg"),
        (UntoldError(), "UntoldError"),
    ],
)
def test_a_reason_that_cannot_be_told_whole_releases_waiters_as_well(
    error: Exception, reason: str
) -> None:
    signal = Signal()
    with pytest.raises(type(error)), signal.completing(1):
        raise error
    with pytest.raises(PoisonedError, match=reason):
        signal.wait(1)


def test_looking_at_a_poisoned_signal_puts_its_word_right() -> None:
    # As where a stream comes to a write that it was told before the poison.
    signal = Signal()
    signal.poison("gone")
    word = ctypes.c_uint32.from_address(signal.address)
    word.value = 1
    assert signal.value == word.value == 2**31 - 1


def test_ctrl_c_while_a_reason_is_told_keeps_nobody_waiting() -> None:
    class ToldError(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    signal = Signal()
    with pytest.raises(KeyboardInterrupt):
        signal.poison(ToldError())
    with pytest.raises(PoisonedError, match="ToldError"):
        signal.wait(1)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("spin_s", [0.0, 1e9], ids=["sleeping", "spinning"])
def test_waiting_leaves_the_interpreter_to_other_threads_and_to_ctrl_c(spin_s: float) -> None:
    signal = Signal()
    waiting_thread = threading.get_ident()

    def interrupt() -> None:
        # Goes on only if the waiting thread holds no lock of the interpreter.
        while sys._current_frames()[waiting_thread].f_code is not Signal.wait.__code__:
            time.sleep(0)
        interrupts.raise_signal(interrupts.SIGINT)

    def wait() -> None:
        thread = run(interrupt)
        try:
            signal.wait(1, spin_s=spin_s)
        finally:
            thread.join()

    with pytest.raises(KeyboardInterrupt):
        wait()


def test_a_time_of_spinning_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="spin_s must be at least 0, got nan"):
        Signal().wait(1, spin_s=float("nan"))


def test_ten_thousand_signals_need_a_line_of_memory_each_and_give_it_back() -> None:
    addresses = set()
    for _ in range(10_000):
        addresses.add(Signal().address)
    assert len(addresses) <= 64
    held = [Signal() for _ in range(100)]
    assert len({signal.address for signal in held}) == 100
    assert all(signal.value == 0 for signal in held)
    assert all(address % 64 == 0 for address in {signal.address for signal in held})


@pytest.mark.parametrize(
    ("value", "limit"),
    [(-1, "least 0"), (1.5, "least 0"), (2**31 - 1, "most 2147483646"), (2**40, "most 2147483646")],
)
def test_values_out_of_range_are_refused(value: Any, limit: str) -> None:
    with pytest.raises(
        ValueError, match=f"value must be a whole number of at {limit}, got {value}"
    ):
        Signal().set(value)


def test_a_time_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="timeout_s must be at least 0, got 'a'"):
        Signal().wait(1, "a")  # type: ignore[arg-type]


def test_many_threads_hand_a_token_round() -> None:
    signal = Signal()
    order: list[int] = []

    def turn(number: int) -> None:
        signal.wait(number)
        order.append(number)
        signal.set(number + 1)

    threads = [run(lambda n=n: turn(n)) for n in reversed(range(16))]
    for thread in threads:
        thread.join()
    assert order == list(range(16))


@pytest.mark.skipif(device.has_device(), reason="there is a CUDA device")
def test_without_a_device_a_stream_is_refused_with_the_reason() -> None:
    with pytest.raises(CudaError, match="stream must be None where no CUDA device can be used"):
        Signal().set_on(7, 1)
    with pytest.raises(CudaError, match="stream must be None where no CUDA device can be used"):
        Signal().wait_on(7, 1)


def test_numpy_integers_are_values() -> None:
    signal = Signal()
    signal.set(np.int64(3))  # type: ignore[arg-type]
    signal.wait(np.uint32(3))  # type: ignore[arg-type]
    assert signal.value == 3
