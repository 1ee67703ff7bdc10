# SPDX-License-Identifier: Apache-2.0
"""A worker whose tensors move, whose tasks are dropped, or whose process forks or ends."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from gs_adam import HostAdam, Worker

N = 40


def _process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600
    )


def test_tensors_do_not_move_under_a_task():
    arrived = threading.Event()
    param = torch.nn.Parameter(torch.zeros(N, 3))
    opt = HostAdam([param])
    with Worker(opt) as worker:
        step = opt.begin_step()
        worker.submit(torch.arange(5), [torch.ones(5, 3)], step=step, ready=arrived.wait)
        opt.end_step(step)
        replaced = torch.nn.Parameter(torch.zeros(N, 3))
        opt.param_groups[0]["params"] = [replaced]
        with pytest.raises(RuntimeError, match="stay where they are until the worker's tasks"):
            opt.begin_step()
        arrived.set()
        worker.wait()
        assert (param[:5] != 0).all()
        opt.end_step(opt.begin_step())


@pytest.mark.parametrize("no", [False, np.False_, 0])
@pytest.mark.parametrize("yes", [True, np.True_, 1, None])
def test_ready_may_be_anybodys_truth(no, yes):
    opt = HostAdam([torch.zeros(N, 3)])
    answer = [no]
    with Worker(opt) as worker:
        step = opt.begin_step()
        ticket = worker.submit(
            torch.arange(5), [torch.ones(5, 3)], step=step, ready=lambda: answer[0]
        )
        threading.Event().wait(0.02)
        assert not worker.is_idle
        answer[0] = yes
        worker.wait(ticket)
        opt.end_step(step)


@pytest.mark.parametrize(
    ("ready", "error"),
    [
        (("a", 1), TypeError), ((8, 0.5), TypeError), ((8, -1), ValueError),
        ((8, 2**32), ValueError), ((-8, 1), ValueError), ((2**64, 1), ValueError),
    ],
)  # fmt: skip
def test_an_address_and_a_value_are_numbers_that_fit(ready, error):
    opt = HostAdam([torch.zeros(N, 3)])
    with Worker(opt) as worker:
        step = opt.begin_step()
        with pytest.raises(error, match="ready must hold"):
            worker.submit(torch.arange(5), [torch.ones(5, 3)], step=step, ready=ready)
        opt.end_step(step)


def test_rows_that_are_waited_for_are_sorted_and_there():
    opt = HostAdam([torch.zeros(N, 3)])
    arrived = threading.Event()
    with Worker(opt) as worker:
        step = opt.begin_step()
        worker.submit(torch.arange(5), [torch.ones(5, 3)], step=step, ready=arrived.wait)
        with pytest.raises(ValueError, match="rows must be sorted"):
            worker.wait(rows=torch.tensor([30, 3]))
        with pytest.raises(IndexError, match="rows must be in"):
            worker.wait(rows=torch.tensor([3, N]))
        arrived.set()
        worker.wait(rows=torch.tensor([3, 30]))
        opt.end_step(step)


def test_rows_of_tasks_that_were_dropped_are_not_said_to_be_done():
    opt = HostAdam([torch.zeros(N, 3)])
    worker = Worker(opt)
    step = opt.begin_step()
    done = worker.submit(torch.arange(8, 9), [torch.ones(1, 3)], step=step)
    worker.wait(done)
    left = worker.submit(torch.arange(5), [torch.ones(5, 3)], step=step, ready=lambda: False)
    worker.close(drain=False)
    for wait in (lambda: worker.wait(left), worker.wait, lambda: worker.wait(rows=torch.arange(3))):
        with pytest.raises(RuntimeError, match="closed before all tasks had run"):
            wait()
    worker.wait(done)


def test_a_worker_that_nobody_holds_does_not_disturb_the_exit():
    ran = _process("""
        import torch
        from gs_adam import HostAdam, Worker
        opt = HostAdam([torch.zeros(40, 3)])
        step = opt.begin_step()
        Worker(opt).submit(torch.arange(5), [torch.ones(5, 3)], step=step, ready=lambda: False)
        print("so far")
    """)
    assert ran.stdout == "so far\n"
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_child_forked_in_the_middle_of_a_step_takes_its_own():
    ran = _process("""
        import os, threading, torch
        from gs_adam import HostAdam
        opt = HostAdam([torch.zeros(40, 3)], semantics="dense")
        opt.step(None, [torch.ones(40, 3)])
        held, end = threading.Event(), threading.Event()
        def hold():
            with opt._lock, opt._calls.call(None):
                held.set()
                end.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            opt.step(None, [torch.ones(40, 3)])
            os._exit(7)
        end.set()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert ran.stdout == "7\n", ran.stderr


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_no_step_is_not_the_last_one(semantics):
    host = HostAdam([torch.zeros(N, 3)], semantics=semantics)
    host.step(torch.tensor([1]), [torch.ones(1, 3)])
    before = host.param_groups[0]["params"][0].clone()
    rows, grads = torch.tensor([3]), [torch.ones(1, 3)]
    with Worker(host) as worker:
        for call in (host.update, worker.submit):
            with pytest.raises(ValueError, match=r"step must be an open step .* got None"):
                call(rows, grads, step=None)
    assert torch.equal(host.param_groups[0]["params"][0], before)


def test_a_task_for_which_there_is_no_thread_is_not_queued():
    done = _process(
        """
        import resource
        import torch
        from gs_adam import HostAdam, Worker
        host = HostAdam([torch.zeros(5, 2)], lr=1.0, threads=1)
        worker, ones = Worker(host), [torch.ones(5, 2)]
        host.step(None, ones)
        step = host.begin_step()
        # No memory for another thread's stack.
        pages = int(open("/proc/self/statm").read().split()[0])
        most = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + (1 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most[1]))
        try:
            worker.submit(None, ones, step=step)
        except RuntimeError as error:
            print("refused", worker.is_idle)
        resource.setrlimit(resource.RLIMIT_AS, most)
        worker.wait()
        before = host.param_groups[0]["params"][0].clone()
        worker.wait(worker.submit(None, ones, step=step))
        host.end_step(step)
        print(bool((host.param_groups[0]["params"][0] - before).abs().max() <= 1.001))
        worker.close()
        """
    )
    assert done.stdout.split("\n")[:2] == ["refused True", "True"], done.stdout + done.stderr
