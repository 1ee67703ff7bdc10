# SPDX-License-Identifier: Apache-2.0
"""What other threads, and Ctrl-C among them, must not do to steps and workers."""

import signal
import threading

import pytest
import torch

from gs_adam import HostAdam, Worker

from .waiting import ctrl_c, lock_kept, once_in, until, waits_in

N = 40
ROWS = torch.arange(5)


def test_a_step_that_begins_is_open_though_another_thread_would_flush():
    host = HostAdam([torch.zeros(N, 3)])
    host.step(None, [torch.ones(N, 3)])
    schedule, found = host._schedule, []

    def flush() -> None:
        try:
            host.flush()
        except RuntimeError as error:
            found.append(str(error))

    class Slow:
        def __getattr__(self, name):
            return getattr(schedule, name)

        def accept(self, plan):
            with lock_kept():
                thread.start()
                until(lambda: waits_in(thread.ident, HostAdam.flush))  # for the step to have begun
            schedule.accept(plan)

    thread, host._schedule = threading.Thread(target=flush), Slow()
    step = host.begin_step()
    thread.join()
    host._schedule = schedule
    assert found == ["flush() of all rows needs steps [2] to end first"]
    host.update(None, None, step=step)
    host.end_step(step)


def test_open_steps_may_be_asked_for_while_others_begin_and_end():
    host = HostAdam([torch.zeros(4, 1)])
    is_over, failures = threading.Event(), []

    def ask() -> None:
        try:
            while not is_over.is_set():
                assert len(host.open_steps) <= 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(300):
        host.end_step(host.begin_step())
    is_over.set()
    thread.join()
    assert not failures


def test_ctrl_c_while_a_block_that_failed_is_left_is_raised():
    host = HostAdam([torch.zeros(N, 3)])
    released = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    runs, step = threading.Event(), host.begin_step()

    def ready() -> bool:
        runs.set()
        return released.wait()

    def work() -> None:
        with Worker(host) as worker:
            worker.submit(ROWS, None, step=step, ready=ready)
            runs.wait()
            raise ArithmeticError

    try:
        with pytest.raises(KeyboardInterrupt) as caught, once_in(Worker.__exit__, ctrl_c):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
        released.set()
    assert isinstance(caught.value.__context__, ArithmeticError)
    host.end_step(step)


def test_a_task_that_exits_hides_no_error_of_the_block():
    host = HostAdam([torch.zeros(N, 3)])

    def stop() -> bool:
        raise SystemExit

    def work() -> None:
        with Worker(host) as worker:
            worker.submit(None, None, step=host.begin_step(), ready=stop)
            until(lambda: worker.is_idle)
            raise ArithmeticError

    with pytest.raises(ArithmeticError) as caught:
        work()
    assert "A task of the worker has failed as well: SystemExit" in caught.value.__notes__[0]
