# SPDX-License-Identifier: Apache-2.0
"""Calls on some rows of an optimizer run together; calls on all its rows wait for them.

A call is held inside by an array of ids that asks the test before it says where it lies.
"""

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch

from gs_adam import HostAdam, Worker

N, WIDTHS = 16, (3, 5)
ROWS = np.arange(4)


class AskingIds:
    """`ROWS`, after ``ask()`` has returned."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask

    def __len__(self) -> int:
        return len(ROWS)

    def __dlpack_device__(self) -> tuple[int, int]:
        return ROWS.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        self._ask()
        return ROWS.__dlpack__(**options)


def _grads(count: int = len(ROWS)) -> list[torch.Tensor]:
    return [torch.ones(count, width) for width in WIDTHS]


def _made(semantics: str = "deferred") -> HostAdam:
    host = HostAdam([torch.zeros(N, width) for width in WIDTHS], semantics=semantics)
    host.step(ROWS, _grads())
    return host


ON_ROWS: dict[str, Callable[[HostAdam, Worker, Any], object]] = {
    "flush of rows": lambda host, worker, rows: host.flush(rows),
    "lookahead": lambda host, worker, rows: host.lookahead(rows, out=_grads()),
    "Worker.flush": lambda host, worker, rows: worker.flush(rows),
    "Worker.lookahead": lambda host, worker, rows: worker.lookahead(rows, out=_grads()),
}
IN_A_STEP: dict[str, Callable[[HostAdam, Worker, Any], object]] = {
    "update": lambda host, worker, rows: host.update(rows, _grads(), step=2),
    "Worker.submit": lambda host, worker, rows: worker.submit(rows, _grads(), step=2),
}
ON_ALL_ROWS: dict[str, Callable[[HostAdam], object]] = {
    "step": lambda host: host.step(ROWS, _grads()),
    "flush": lambda host: host.flush(),
    "zero_rows": lambda host: host.zero_rows(ROWS),
    "append_rows": lambda host: host.append_rows(3),
    "keep_rows": lambda host: host.keep_rows(ROWS),
    "permute_rows": lambda host: host.permute_rows(np.arange(N)[::-1].copy()),
    "rebind": lambda host: host.rebind([torch.zeros(N, width) for width in WIDTHS]),
    "state_dict": lambda host: host.state_dict(),
    "load_state_dict": lambda host: host.load_state_dict(_made().state_dict()),
    "a step in other memory": lambda host: _begin_elsewhere(host),
}


def _begin_elsewhere(host: HostAdam) -> None:
    for param in (param for group in host.param_groups for param in group["params"]):
        param.data = param.data.clone()
    host.begin_step()


def _waits(host: HostAdam, held: Callable[[Any], object], other: Callable[[], object]) -> bool:
    """Whether ``other()`` on one thread waits for the end of ``held`` on another one."""
    is_inside, may_go_on = threading.Event(), threading.Event()

    def ask() -> None:
        is_inside.set()
        may_go_on.wait()

    def work() -> None:
        with suppress(RuntimeError):  # the other call has moved its rows
            held(AskingIds(ask))

    def try_other() -> None:
        with suppress(RuntimeError):  # the call that it waited for has queued a task
            other()

    inside, beside = threading.Thread(target=work), threading.Thread(target=try_other)
    inside.start()
    is_inside.wait()
    beside.start()
    while beside.is_alive() and not host._calls.n_waiting:
        pass
    has_waited = beside.is_alive()
    may_go_on.set()
    inside.join()
    beside.join()
    return has_waited


@pytest.mark.parametrize("alone", ON_ALL_ROWS)
@pytest.mark.parametrize("call", ON_ROWS)
def test_a_call_on_all_rows_waits_for_calls_on_some(call: str, alone: str) -> None:
    host = _made()
    with Worker(host) as worker:
        others = ON_ALL_ROWS[alone]
        assert _waits(host, lambda rows: ON_ROWS[call](host, worker, rows), lambda: others(host))


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
@pytest.mark.parametrize("call", IN_A_STEP)
def test_the_end_of_a_step_waits_for_calls_on_its_rows(call: str, semantics: str) -> None:
    host, twin = _made(semantics), _made(semantics)
    host.begin_step()
    with Worker(host) as worker:
        assert _waits(
            host, lambda rows: IN_A_STEP[call](host, worker, rows), lambda: host.end_step(2)
        )
    twin.step(ROWS, _grads())
    host.flush()
    twin.flush()
    for ours, theirs in zip(host.param_groups, twin.param_groups, strict=True):
        assert all(map(torch.equal, ours["params"], theirs["params"]))


@pytest.mark.parametrize("alone", ON_ALL_ROWS)
@pytest.mark.parametrize("call", [*ON_ROWS, "step"])
def test_a_call_on_all_rows_inside_a_call_of_its_own_thread_is_refused(
    call: str, alone: str
) -> None:
    host = _made()
    calls = {**ON_ROWS, "step": lambda host, worker, rows: host.step(rows, _grads())}
    messages = []

    def ask() -> None:
        with pytest.raises(RuntimeError, match="needs the call to end that this thread") as caught:
            ON_ALL_ROWS[alone](host)
        messages.append(str(caught.value))

    with Worker(host) as worker:
        with suppress(RuntimeError) if alone == "a step in other memory" else nullcontext():
            calls[call](host, worker, AskingIds(ask))
        assert messages
        worker.wait()
    host.keep_rows(ROWS)  # nothing is left behind


@pytest.mark.parametrize("call", [*ON_ROWS, *IN_A_STEP, "end_step"])
def test_a_call_that_fails_is_over(call: str) -> None:
    host = _made()
    host.begin_step()

    def fail() -> None:
        raise ArithmeticError

    with Worker(host) as worker:
        calls = {
            **ON_ROWS,
            **IN_A_STEP,
            "end_step": lambda host, worker, rows: (host.end_step(2), host.end_step(2)),
        }
        with pytest.raises((ArithmeticError, ValueError, TypeError)):
            calls[call](host, worker, AskingIds(fail))
    for step in host.open_steps:
        host.end_step(step)
    host.keep_rows(ROWS)


def test_a_step_that_ends_takes_no_further_rows() -> None:
    host = _made("dense")
    host.begin_step()
    may_go_on = threading.Event()
    ending = threading.Thread(target=host.end_step, args=(2,))
    with Worker(host) as worker:
        worker.submit(ROWS, _grads(), step=2, ready=may_go_on.wait)
        ending.start()
        while not host._endings.count:
            pass
        rows = np.arange(8, 12)
        for call in (
            lambda: host.update(rows, _grads(), step=2),
            lambda: host.lookahead(rows, step=2),
            lambda: worker.submit(rows, _grads(), step=2),
            lambda: host.end_step(2),
        ):
            with pytest.raises(ValueError, match=r"step must be an open step \(open: \[3?\]\)"):
                call()
        assert host.begin_step() == 3
        may_go_on.set()
        ending.join()
    host.end_step(3)


@pytest.mark.parametrize("call", [*ON_ROWS, *IN_A_STEP])
def test_calls_on_other_rows_run_beside_it(call: str) -> None:
    host = _made()
    step = host.begin_step()
    others = np.arange(8, 12)
    done = []

    def ask() -> None:  # what waited for this thread's call would never return
        beside = threading.Thread(target=work)
        beside.start()
        beside.join()

    def work() -> None:
        host.update(others, _grads(), step=step)
        host.lookahead(others)
        host.flush(others)
        done.append(host.begin_step())

    with Worker(host) as worker:
        {**ON_ROWS, **IN_A_STEP}[call](host, worker, AskingIds(ask))
    assert done == [3]
