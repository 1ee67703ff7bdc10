# SPDX-License-Identifier: Apache-2.0
"""What other threads may do: run Python while rows are updated, and have the cores in between."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from gs_adam import HostAdam

N = 200_000


@pytest.fixture
def host() -> HostAdam:
    params = [torch.randn(N, 3), torch.randn(N, 45)]
    return HostAdam([{"params": [p]} for p in params], lr=1e-3)


@pytest.fixture
def _nobody_is_interrupted() -> Iterator[None]:
    """Python's lock changes hands only where it is given away."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_nobody_is_interrupted")
@pytest.mark.parametrize("call", ["update", "lookahead", "flush"])
def test_python_goes_on_beside_it(host: HostAdam, call: str) -> None:
    rows = torch.arange(0, N, 2, dtype=torch.int32)
    grads = [torch.ones(len(rows), 3), torch.ones(len(rows), 45)]
    for _ in range(3):
        host.step(rows, grads)
    host.end_step(host.begin_step())
    step = host.begin_step()
    calls: dict[str, Callable[[], object]] = {
        "update": lambda: host.update(rows, grads, step=step),
        "lookahead": lambda: host.lookahead(rows),
        "flush": host.flush,
    }
    turns, ends = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not ends.is_set():
            turns += 1
            time.sleep(0)  # gives the lock away

    if call == "flush":
        host.end_step(step)
    other = threading.Thread(target=count)
    other.start()
    try:
        before = turns
        calls[call]()
        after = turns
    finally:
        ends.set()
        other.join()
    assert after > before


def test_threads_that_have_nothing_to_do_take_no_core(host: HostAdam) -> None:
    rows = torch.arange(N, dtype=torch.int32)
    host.step(rows, [torch.ones(N, 3), torch.ones(N, 45)])
    others = set(os.listdir(TASKS)) - {str(threading.get_native_id())}
    assert others or os.cpu_count() == 1
    while any(_state(thread) == "R" for thread in others):  # a thread that spins never sleeps
        time.sleep(0)


TASKS = "/proc/self/task"


def _state(thread: str) -> str:
    """What Linux says of a thread: R runs or could, S sleeps until it is woken; none has ended."""
    try:
        with open(f"{TASKS}/{thread}/stat") as file:
            return file.read().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
