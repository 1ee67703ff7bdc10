# SPDX-License-Identifier: Apache-2.0
"""Updates in the background: order, readiness, failure, closing."""

import os
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest
import torch

from gs_adam import HostAdam, Worker

from .waiting import once_in


def make(n_rows=64, **options):
    p = torch.nn.Parameter(torch.linspace(0, 1, n_rows * 3).reshape(n_rows, 3))
    return p, HostAdam([p], lr=0.05, threads=2, **options)


class Gate:
    """A ready-flag that the test opens."""

    def __init__(self):
        self.word = np.zeros(1, np.uint32)

    def at(self, value):
        return (self.word.ctypes.data, value)

    def open(self, value):
        self.word[0] = value


def grads(n_rows, number):
    return [torch.randn(n_rows, 3, generator=torch.Generator().manual_seed(number))]


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_steps_in_the_background_give_the_bits_of_steps_in_front(semantics):
    p, host = make(semantics=semantics)
    q, front = make(semantics=semantics)
    with Worker(host) as worker:
        for number in range(30):
            rows = torch.arange(number % 3, 64, 3, dtype=torch.int32)
            values = grads(len(rows), number)
            front.step(rows, values)
            step = host.begin_step()
            for part in (rows > 30, rows <= 30):
                worker.submit(rows[part], [values[0][part]], step=step, priority=int(number) % 2)
            host.end_step(step)
        worker.wait()
        assert worker.is_idle
    for h in (host, front):
        h.flush()
    assert torch.equal(p, q)


@pytest.mark.parametrize("semantics", ["dense", "sparse"])
def test_a_flush_leaves_rows_alone_that_do_not_sleep(semantics):
    p, host = make(semantics=semantics)
    host.step(torch.arange(64), grads(64, 0))
    before = p.detach().clone()
    with Worker(host) as worker:
        worker.wait(worker.flush(torch.arange(20)))
        worker.wait(worker.flush(None))
        with pytest.raises(IndexError, match=r"rows must be in \[0, 64\), got 64"):
            worker.flush(torch.tensor([64]))
    assert torch.equal(p, before)


def test_a_rows_tasks_keep_their_steps_order_and_other_rows_overtake():
    p, host = make()
    q, front = make()
    gate, done = Gate(), []
    low, high = torch.arange(10), torch.arange(10, 64)

    def note(what):
        done.append(what)

    with Worker(host) as worker:
        one, two = host.begin_step(), None
        worker.submit(low, grads(10, 1), step=one, ready=gate.at(1))
        two = host.begin_step()
        blocked = worker.submit(low, grads(10, 2), step=two, ready=lambda: note("low"))
        free = worker.submit(high, grads(54, 3), step=two, ready=lambda: note("high"))
        worker.wait(free)
        assert done == ["high"]
        gate.open(1)
        worker.wait(blocked)
        assert done == ["high", "low"]
        host.end_step(one)
        host.end_step(two)
    front.step(low, grads(10, 1))
    step = front.begin_step()
    front.update(low, grads(10, 2), step=step)
    front.update(high, grads(54, 3), step=step)
    front.end_step(step)
    for h in (host, front):
        h.flush()
    assert torch.equal(p, q)


def test_priority_orders_the_tasks_of_a_step():
    _, host = make()
    order, gate = [], Gate()
    with Worker(host) as worker:
        step = host.begin_step()
        # Holds the worker until all others are queued.
        worker.submit(torch.tensor([0]), grads(1, 0), step=step, priority=9, ready=held(gate))
        for row, priority in ((1, 0), (2, 5), (3, 5), (4, 7)):
            worker.submit(
                torch.tensor([row]),
                grads(1, row),
                step=step,
                priority=priority,
                ready=lambda row=row: order.append(row),
            )
        gate.open(1)
        worker.wait()
        host.end_step(step)
    assert order == [4, 2, 3, 1]


def held(gate):
    def ready():
        while gate.word[0] < 1:
            threading.Event().wait(0.001)

    return ready


def test_flush_and_lookahead_come_after_the_updates_of_their_rows():
    p, host = make()
    for number in range(5):
        host.step(torch.arange(number, 64, 5), grads(len(range(number, 64, 5)), number))
    gate, rows = Gate(), torch.arange(20)
    out = [torch.zeros(30, 3)]
    with Worker(host) as worker:
        step = host.begin_step()
        worker.submit(rows, grads(20, 9), step=step, ready=gate.at(1))
        flushed = worker.flush(torch.arange(15, 40))
        looked = worker.lookahead(torch.arange(5, 35), out=out)
        elsewhere = worker.flush(torch.arange(50, 60))
        worker.wait(elsewhere)
        assert not worker.is_idle
        gate.open(1)
        worker.wait(flushed)
        worker.wait(looked)
        worker.wait(rows=torch.arange(64) < 40)
        host.end_step(step)
    host.flush()
    assert torch.equal(out[0], p[5:35])


def test_dense_steps_end_after_their_tasks():
    p, host = make(semantics="dense")
    q, front = make(semantics="dense")
    gate, rows = Gate(), torch.tensor([1, 2, 3])
    with Worker(host) as worker:
        step = host.begin_step()
        worker.submit(rows, grads(3, 0), step=step, ready=gate.at(1))
        with once_in(HostAdam.end_step, lambda: gate.open(1)):
            host.end_step(step)
    front.step(rows, grads(3, 0))
    assert torch.equal(p, q)


def test_checkpoints_need_an_idle_worker():
    _, host = make()
    gate = Gate()
    with Worker(host) as worker:
        step = host.begin_step()
        worker.submit(torch.tensor([1]), grads(1, 0), step=step, ready=gate.at(1))
        host.end_step(step)
        for call in (host.state_dict, host.flush, lambda: host.append_rows(1)):
            with pytest.raises(RuntimeError, match=r"needs the worker to be idle; call its wait"):
                call()
        gate.open(1)
        worker.wait()
        host.state_dict()


def test_an_exception_surfaces_with_its_traceback_and_poisons_the_rest():
    _, host = make()
    worker = Worker(host)
    step = host.begin_step()

    def fails_here():
        raise KeyError("boom")

    gate = Gate()
    ticket = worker.submit(torch.tensor([5]), grads(1, 0), step=step, ready=gate.at(1))
    worker.submit(torch.tensor([1]), grads(1, 0), step=step, ready=fails_here)
    for call in (
        lambda: worker.wait(ticket),  # will never run, and must not hang
        worker.wait,
        lambda: worker.wait(rows=torch.tensor([5])),
        lambda: worker.submit(torch.tensor([2]), grads(1, 0), step=step),
        worker.close,
    ):
        with pytest.raises(KeyError, match="boom") as caught:
            call()
        assert "fails_here" in "".join(traceback.format_tb(caught.value.__traceback__))
    worker.close(drain=False)
    assert worker.is_closed


@pytest.mark.parametrize("reached", [0, 3])
def test_gradients_that_will_never_come_fail_the_update_that_waits_for_them(reached):
    p, host = make()
    before = p.detach().clone()
    worker, gate = Worker(host), Gate()
    gate.open(reached)
    step = host.begin_step()
    ticket = worker.submit(torch.tensor([5]), grads(1, 0), step=step, ready=gate.at(4))
    gate.open(2**31 - 1)  # as a gs_pinned.Signal that was poisoned
    with pytest.raises(RuntimeError, match=r"ready will never come to 4: it holds 2147483647"):
        worker.wait(ticket)
    assert torch.equal(p, before)
    worker.close(drain=False)


def test_a_number_that_was_to_become_so_large_is_no_failure():
    p, host = make()
    before = p.detach().clone()
    gate = Gate()
    gate.open(2**31 - 1)
    with Worker(host) as worker:
        step = host.begin_step()
        worker.submit(torch.tensor([5]), grads(1, 0), step=step, ready=gate.at(2**31 - 1))
        host.end_step(step)
    assert not torch.equal(p, before)


def test_a_row_updated_twice_in_a_step_fails_when_it_runs():
    p, host = make()
    worker = Worker(host)
    step = host.begin_step()
    worker.submit(torch.tensor([5]), grads(1, 0), step=step)
    worker.wait()
    before = p.detach().clone()
    worker.submit(torch.tensor([4, 5]), grads(2, 0), step=step)
    with pytest.raises(ValueError, match=r"rows must be updated once a step, got row 5 in step 1"):
        worker.wait()
    assert torch.equal(p, before)
    worker.close(drain=False)


def test_arguments_are_checked_when_submitted():
    _, host = make()
    with Worker(host) as worker:
        step = host.begin_step()
        with pytest.raises(ValueError, match=r"rows must be sorted and unique, got 1 after 3"):
            worker.submit(torch.tensor([3, 1]), grads(2, 0), step=step)
        with pytest.raises(ValueError, match=r"grads\[0\] must have 2 rows"):
            worker.submit(torch.tensor([1, 3]), grads(3, 0), step=step)
        with pytest.raises(ValueError, match=r"step must be an open step"):
            worker.submit(torch.tensor([1]), grads(1, 0), step=7)
        with pytest.raises(
            TypeError, match=r"ready must be None, \(address, value\) or a callable"
        ):
            worker.submit(torch.tensor([1]), grads(1, 0), step=step, ready=3)
        with pytest.raises(ValueError, match=r"ticket must be one that submit returned, got 9"):
            worker.wait(9)
        with pytest.raises(ValueError, match=r"ticket must be None when rows are given"):
            worker.wait(1, rows=torch.tensor([1]))
        host.end_step(step)


@pytest.mark.parametrize("at", [1, (1 << 18) - 1, 1 << 18, (1 << 19) + 5])
def test_ids_out_of_order_are_found_wherever_they_are_in_a_long_list(at):
    rows = torch.arange(600_000)
    rows[at] = rows[at - 1]
    p = torch.nn.Parameter(torch.zeros(600_000, 1))
    host = HostAdam([p])
    with Worker(host) as worker:
        step = host.begin_step()
        message = f"rows must be sorted and unique, got {at - 1} after {at - 1} at position {at}"
        with pytest.raises(ValueError, match=message):
            worker.submit(rows, None, step=step)
        host.end_step(step)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([3, 1], ValueError, "rows must be sorted and unique, got 1 after 3"),
        ([1, 99], IndexError, "rows must be "),
        ([-1, 1], IndexError, "rows must be "),
    ],
)
def test_ids_said_to_be_checked_fail_when_the_task_runs(ids, error, message):
    p, host = make()
    before = p.detach().clone()
    worker = Worker(host)
    step = host.begin_step()
    ticket = worker.submit(torch.tensor(ids), grads(2, 0), step=step, checked=True)
    with pytest.raises(error, match=message):
        worker.wait(ticket)
    worker.close(drain=False)
    assert torch.equal(p, before)


def test_closed_workers_refuse_work():
    _, host = make()
    worker = Worker(host)
    step = host.begin_step()
    worker.submit(torch.tensor([1]), grads(1, 0), step=step)
    worker.close()
    worker.close()
    with pytest.raises(RuntimeError, match=r"worker must be open, got a task after close"):
        worker.submit(torch.tensor([2]), grads(1, 0), step=step)


def test_cancelling_drops_what_is_not_ready():
    p, host = make()
    before = p.detach().clone()
    worker = Worker(host)
    step = host.begin_step()
    ticket = worker.submit(torch.tensor([1]), grads(1, 0), step=step, ready=Gate().at(1))
    worker.close(drain=False)
    with pytest.raises(RuntimeError, match=r"worker must be open, got closed before all tasks"):
        worker.wait(ticket)
    assert torch.equal(p, before)


SCRIPT = """
import os, sys, torch
from gs_adam import HostAdam, Worker
p = torch.nn.Parameter(torch.zeros(8, 3))
host = HostAdam([p], threads=2)
worker = Worker(host)
step = host.begin_step()
word = torch.zeros(1, dtype=torch.int32)
first = worker.submit(torch.tensor([0]), [torch.ones(1, 3)], step=step)
worker.wait()
worker.submit(torch.tensor([1]), [torch.ones(1, 3)], step=step, ready=(word.data_ptr(), 1))
"""


def run_script(rest):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + rest],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_the_interpreter_exits_while_tasks_wait():
    result = run_script("print('end')")
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


@pytest.mark.unsanitized("gcc's thread sanitizer knows no threads of forked children")
def test_a_forked_child_starts_with_an_empty_queue():
    result = run_script(
        """
child = os.fork()
if child == 0:
    assert worker.is_idle
    try:
        worker.wait(first)
    except ValueError as error:
        assert "of this process" in str(error), error
    else:
        raise SystemExit("a ticket of the parent was taken")
    worker.wait(worker.submit(torch.tensor([1]), [torch.ones(1, 3)], step=step))
    assert p[1, 0] != 0
    worker.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert p[1, 0] == 0
word[0] = 1
worker.wait()
assert p[1, 0] != 0
print('end')
"""
    )
    assert (result.returncode, result.stdout) == (0, "end\n"), result.stderr


def test_spans_say_when_tasks_ran():
    _, host = make()
    with Worker(host) as worker:
        step = host.begin_step()
        worker.submit(torch.arange(3), grads(3, 0), step=step)
        worker.wait()
        assert worker.take_spans() == []
        worker.record(True)
        before = time.monotonic()  # the clock of spans as well, and a clock never goes back
        worker.submit(torch.arange(3, 7), grads(4, 1), step=step)
        worker.lookahead(torch.arange(2), out=[torch.empty(2, 3)])
        worker.wait()
        update, lookahead = worker.take_spans()
        assert (update.step, update.is_update, update.rows) == (step, True, 4)
        assert (lookahead.is_update, lookahead.rows) == (False, 2)
        assert before <= update.start <= update.end <= lookahead.start <= lookahead.end
        assert lookahead.end <= time.monotonic()
        assert worker.take_spans() == []
        host.end_step(step)


def test_a_lookahead_that_is_apart_overtakes_what_is_not_ready():
    _, host = make()
    gate = Gate()
    with Worker(host) as worker:
        step = host.begin_step()
        worker.submit(torch.arange(0, 64, 2), grads(32, 0), step=step, ready=gate.at(1))
        out = [torch.empty(32, 3)]
        worker.wait(worker.lookahead(torch.arange(1, 64, 2), out=out, apart=True))
        assert not worker.is_idle
        gate.open(1)
        worker.wait()
        host.end_step(step)
