# SPDX-License-Identifier: Apache-2.0
"""What other threads may do: run Python while rows are updated, and have the cores in between."""

import os
import threading
from collections.abc import Callable

import pytest
import torch

from gs_adam import HostAdam

from .waiting import lock_kept, until, waits_in

N = 200_000


@pytest.fixture
def host() -> HostAdam:
    params = [torch.randn(N, 3), torch.randn(N, 45)]
    return HostAdam([{"params": [p]} for p in params], lr=1e-3)


@pytest.mark.parametrize("call", [HostAdam.update, HostAdam.lookahead, HostAdam.flush])
def test_python_goes_on_beside_it(host: HostAdam, call: Callable[..., object]) -> None:
    """Whoever holds Python's lock while native code works is never seen there by another thread.

    Whether the other thread gets a core before one short call is over is the system's choice, so
    the call comes again until it was seen. A call that kept the lock never would be.
    """
    rows = torch.arange(0, N, 2, dtype=torch.int32)
    grads = [torch.ones(len(rows), 3), torch.ones(len(rows), 45)]
    caller, seen = threading.get_ident(), threading.Event()

    def look() -> None:
        until(lambda: waits_in(caller, call))
        seen.set()

    def once() -> None:
        host.step(rows, grads)
        if call is HostAdam.flush:
            host.end_step(host.begin_step())
            host.flush()
            return
        step = host.begin_step()
        if call is HostAdam.lookahead:
            host.lookahead(rows)
        host.update(rows, grads, step=step)
        host.end_step(step)

    other = threading.Thread(target=look)
    with lock_kept():
        other.start()
        while not seen.is_set():
            once()
        other.join()


def test_threads_that_have_nothing_to_do_take_no_core(host: HostAdam) -> None:
    rows = torch.arange(N, dtype=torch.int32)
    host.step(rows, [torch.ones(N, 3), torch.ones(N, 45)])
    others = set(os.listdir(TASKS)) - {str(threading.get_native_id())}
    assert others or os.cpu_count() == 1
    # A thread that spins never sleeps.
    until(lambda: not any(_state(thread) == "R" for thread in others))


TASKS = "/proc/self/task"


def _state(thread: str) -> str:
    """What Linux says of a thread: R runs or could, S sleeps until it is woken; none has ended."""
    try:
        with open(f"{TASKS}/{thread}/stat") as file:
            return file.read().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
