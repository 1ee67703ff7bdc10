# SPDX-License-Identifier: Apache-2.0
"""Signals between streams and host threads, by stream memory operations and by kernels."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gs_pinned import PoisonedError, Signal, _core

pytestmark = [pytest.mark.gpu, pytest.mark.asynchrony]


@pytest.fixture(autouse=True, params=["operations", "kernels"])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    _core.use_stream_operations(request.param == "operations")
    yield
    _core.use_stream_operations(True)


class Borrowed:
    """A stream of some other library."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def test_a_stream_raises_the_value_when_it_gets_there() -> None:
    latch, done = Signal(), Signal()
    stream = torch.cuda.Stream()
    latch.wait_on(stream, 1)
    done.set_on(stream, 5)
    with pytest.raises(TimeoutError):
        done.wait(5, timeout_s=0.0)
    assert done.value == 0
    latch.set(1)
    done.wait(5)
    assert done.value == 5
    assert ctypes.c_uint32.from_address(done.address).value == 5


def test_what_the_stream_wrote_before_is_visible_after_the_wait() -> None:
    done, stream = Signal(), torch.cuda.Stream()
    host = torch.zeros(1 << 20).pin_memory()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for step in range(1, 20):
            host.copy_(torch.full((1 << 20,), float(step), device="cuda"), non_blocking=True)
            done.set_on(stream, step)
            done.wait(step, spin_s=0.001 if step % 2 else 0.0)
            assert float(host[-1]) == step


@pytest.mark.parametrize("kind", ["torch", "integer", "protocol"])
def test_streams_come_in_three_forms(kind: str) -> None:
    stream = torch.cuda.Stream()
    handle = stream.cuda_stream
    given = {"torch": stream, "integer": handle, "protocol": Borrowed(handle)}[kind]
    signal = Signal()
    signal.wait_on(given, 1)
    assert not stream.query()
    signal.set(1)
    stream.synchronize()
    signal.set_on(given, 2)
    signal.wait(2)


@pytest.mark.parametrize("per_thread", [False, True])
def test_a_thread_that_has_not_used_the_device_may_begin_with_a_signal(per_thread: bool) -> None:
    stream = 2 if per_thread else torch.cuda.Stream()  # 2: cudaStreamPerThread
    held, done = Signal(), Signal()
    held.set(1)
    for first in (lambda: done.set_on(stream, 1), lambda: held.wait_on(stream, 1)):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(first).result()
    done.wait(1)


def test_a_stream_waits_for_a_thread_that_waits_for_a_stream() -> None:
    ready, work, done = Signal(), Signal(), Signal()
    stream = torch.cuda.Stream()

    def serve() -> None:
        for step in range(1, 50):
            ready.wait(step)
            work.set(step)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    for step in range(1, 50):
        ready.set_on(stream, step)
        work.wait_on(stream, step)
        done.set_on(stream, step)
    done.wait(49)
    server.join()


def test_poison_lets_the_stream_go_on_and_tells_the_host() -> None:
    signal, stream = Signal(), torch.cuda.Stream()
    signal.wait_on(stream, 1_000_000)
    signal.poison("the worker died")
    stream.synchronize()
    with pytest.raises(PoisonedError, match="the worker died"):
        signal.wait_on(stream, 1)
    with pytest.raises(PoisonedError, match="the worker died"):
        signal.wait(1)


def test_a_signal_dropped_while_a_stream_waits_for_it_releases_the_stream() -> None:
    stream = torch.cuda.Stream()
    signal = Signal()
    signal.wait_on(stream, 1)
    address = signal.address
    del signal
    gc.collect()
    stream.synchronize()
    # Its word is not given to anybody else.
    assert address not in {Signal().address for _ in range(200)}


def test_many_threads_wait_for_values_of_one_stream() -> None:
    latch, signal, stream = Signal(), Signal(), torch.cuda.Stream()
    latch.wait_on(stream, 1)
    for value in range(1, 9):
        signal.set_on(stream, value)
    reached: list[int] = []

    def wait(value: int) -> None:
        signal.wait(value)
        reached.append(value)

    threads = [threading.Thread(target=wait, args=(n,), daemon=True) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    assert not reached
    latch.set(1)
    for thread in threads:
        thread.join()
    assert sorted(reached) == list(range(1, 9))


def test_a_full_queue_of_a_held_stream_keeps_nobody_from_raising_the_signal() -> None:
    # More than a stream's queue takes: the thread stops in the middle of a call of the signal.
    n = 20_000
    signal, stream = Signal(), torch.cuda.Stream()
    started = threading.Event()

    def fill() -> None:
        for value in range(1, n + 1):
            signal.wait_on(stream, value)
            if value == 64:
                started.set()

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    started.wait()
    # Time to get stuck. The outcome is the same however far it got.
    filler.join(timeout=1.0)
    signal.set(n)
    filler.join()
    stream.synchronize()
    assert signal.value == n


def test_hundreds_of_signals_fit_behind_a_held_stream() -> None:
    # This thread alone can release the stream: it must not have to wait for the queue.
    latch, signal, stream = Signal(), Signal(), torch.cuda.Stream()
    latch.wait_on(stream, 1)
    for value in range(1, 200):
        signal.set_on(stream, value)
        latch.wait_on(stream, 1)
    latch.set(1)
    signal.wait(199)


def test_a_stream_that_writes_after_the_poison_takes_nothing_back() -> None:
    latch, signal, stream = Signal(), Signal(), torch.cuda.Stream()
    latch.wait_on(stream, 1)
    signal.set_on(stream, 1)
    signal.poison("the worker died")
    latch.set(1)
    stream.synchronize()
    with pytest.raises(PoisonedError, match="the worker died"):
        signal.wait(2)
    assert ctypes.c_uint32.from_address(signal.address).value == signal.value == 2**31 - 1


def test_releasing_streams_poisons_only_signals_that_hold_one() -> None:
    held, reached, set_only, stream = Signal(), Signal(), Signal(), torch.cuda.Stream()
    reached.set(3)
    reached.wait_on(stream, 3)
    set_only.set_on(stream, 1)
    held.wait_on(stream, 1)
    _core.release_streams("nobody comes", ending=False)
    stream.synchronize()
    assert (held.is_poisoned, reached.is_poisoned, set_only.is_poisoned) == (True, False, False)
    with pytest.raises(PoisonedError, match="nobody comes"):
        held.wait_on(stream, 2)
    later = Signal()
    later.wait_on(stream, 1)
    assert not stream.query()
    later.set(1)
