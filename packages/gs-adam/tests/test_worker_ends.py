# SPDX-License-Identifier: Apache-2.0
"""Workers whose tasks fail, wait for good, or are waited for by themselves."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from gs_adam import DeviceAdam, HostAdam, Worker

from .waiting import FOLDER, ctrl_c, once_in, until

N = 10
ROWS, GRADS = torch.arange(3), [torch.ones(3, 3)]


def _failed(semantics: str = "deferred") -> HostAdam:
    """An optimizer whose worker's task has failed, and nobody has been told."""

    def fail() -> None:
        raise KeyError("no gradients")

    host = HostAdam([torch.zeros(N, 3)], semantics=semantics)
    host.kept = Worker(host)  # type: ignore[attr-defined]
    step = host.begin_step()
    host.kept.submit(ROWS, GRADS, step=step, ready=fail)  # type: ignore[attr-defined]
    until(lambda: host.kept.is_idle)  # type: ignore[attr-defined]
    return host


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_the_optimizer_tells_what_its_worker_left_out(semantics):
    host = _failed(semantics)
    assert host.open_steps == (1,)
    with pytest.raises(KeyError, match="no gradients"):
        host.end_step(1)
    assert host.open_steps == ()
    for call in (
        host.state_dict,
        host.flush,
        lambda: host.append_rows(1),
        lambda: host.step(ROWS, GRADS),
        lambda: host.load_state_dict(HostAdam([torch.zeros(N, 3)]).state_dict()),
    ):
        with pytest.raises(KeyError, match="no gradients"):
            call()
    assert host.step_count == 1


def _process(code: str) -> subprocess.CompletedProcess[str]:
    start = """
import gc, os, sys, threading, torch
from gs_adam import HostAdam, Worker
from waiting import has_ended, until
"""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": FOLDER},
    )


BEGIN = """
host = HostAdam([torch.zeros(10, 3)])
worker = Worker(host)
step = host.begin_step()
def submit(ready):
    return worker.submit(torch.arange(3), [torch.ones(3, 3)], step=step, ready=ready)
"""


def test_a_failure_that_nobody_asked_for_is_printed_at_the_end():
    done = _process(BEGIN + "submit(lambda: 1 / 0)\nuntil(lambda: worker.is_idle)\nprint('end')")
    assert done.stdout == "end\n"
    assert "A task of a gs_adam.Worker failed, and nobody asked" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_failure_that_somebody_was_told_is_not():
    done = _process(
        BEGIN + "submit(lambda: 1 / 0)\ntry: worker.wait()\nexcept ZeroDivisionError: print('told')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_the_interpreter_ends_though_ready_never_returns():
    done = _process(
        BEGIN
        + """
runs = threading.Event()
def ready():
    runs.set()
    threading.Event().wait()
submit(ready)
runs.wait()
print("end")
"""
    )
    assert (done.returncode, done.stdout) == (0, "end\n")


@pytest.mark.parametrize("held", [False, True])
def test_ready_may_return_while_the_interpreter_ends(held):
    done = _process(
        f"""
        class AtTheEnd:
            # Dropped after the worker was left behind: lets its task's `ready` return, and keeps
            # the interpreter until the thread has been refused Python's lock, which ends it.
            go_on = threading.Lock()
            has_ended, until = staticmethod(has_ended), staticmethod(until)
            def __del__(self):
                self.go_on.release()
                self.until(lambda: self.has_ended(self.thread))
        at_the_end = AtTheEnd()
        at_the_end.go_on.acquire()
        runs = threading.Event()
        def ready():
            at_the_end.thread = threading.get_native_id()
            runs.set()
            at_the_end.go_on.acquire()
        def begin():
            host = HostAdam([torch.zeros(10, 3)])
            worker = Worker(host)
            step = host.begin_step()
            worker.submit(torch.arange(3), [torch.ones(3, 3)], step=step, ready=ready)
            runs.wait()
            return worker if {held} else None
        worker = begin()
        gc.collect()
        print("end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_worker_may_be_dropped_though_ready_never_returns():
    done = _process(
        """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runs, collects = threading.Event(), threading.Event()
        def ready():
            runs.set()
            collects.wait()  # and for Python's lock, which only the end of the worker gives away
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
        def begin():
            host = HostAdam([torch.zeros(10, 3)])
            worker = Worker(host)
            step = host.begin_step()
            worker.submit(torch.arange(3), [torch.ones(3, 3)], step=step, ready=ready)
            runs.wait()
        def told_once(phase, info):
            gc.callbacks.clear()
            collects.set()
        gc.disable()
        begin()
        gc.callbacks.append(told_once)
        try:
            # Ctrl-C cannot be told of where objects are collected, but after that.
            sys.setswitchinterval(1000)
            gc.collect()
            for _ in range(3):
                pass
        except KeyboardInterrupt:
            print("told")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")


def test_a_task_that_outlives_its_optimizer_finds_the_memory_that_it_writes():
    done = _process(
        """
        n = 2_000_000  # so much goes back to the system as soon as nobody holds it
        started, go_on, threads = threading.Event(), threading.Event(), []
        def ready():
            threads.append(threading.get_native_id())
            started.set()
            return go_on.wait()
        def begin():
            host = HostAdam([torch.zeros(n, 8)])
            worker = Worker(host)
            step = host.begin_step()
            worker.submit(None, [torch.ones(n, 8)], step=step, ready=ready)
            started.wait()
        begin()  # the end of the worker stops waiting
        gc.collect()
        go_on.set()
        until(lambda: has_ended(threads[0]))
        print("end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_task_that_runs_longer_than_the_exit_waits_finds_its_memory():
    done = _process(
        """
        n, nothing = 4_000_000, torch.zeros(0, dtype=torch.int32)
        host = HostAdam([torch.zeros(n, 8)], threads=1)
        host.step(None, [torch.full((n, 8), 1e-17)])
        for _ in range(300):
            host.step(nothing, [torch.zeros(0, 8)])
        # By replay, which takes longer than the two seconds that the exit waits; on a machine where
        # it takes less nothing is left behind, and the outcome is the same.
        started = threading.Event()
        Worker(host).flush(None, ready=started.set)
        started.wait()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_became_ready_after_a_worker_was_closed_does_not_run():
    host, started = HostAdam([torch.zeros(N, 3)]), threading.Event()
    worker, step = Worker(host), host.begin_step()

    def ready() -> bool:
        started.set()
        until(lambda: worker.is_closed)
        return True

    ticket = worker.submit(ROWS, GRADS, step=step, ready=ready)
    started.wait()
    worker.close(drain=False)
    assert not host.param_groups[0]["params"][0].any()
    with pytest.raises(RuntimeError, match="got closed before all tasks had run"):
        worker.wait(ticket)


def test_closing_without_draining_tells_what_nobody_was_told():
    host = _failed()
    with pytest.raises(KeyError, match="no gradients"):
        host.kept.close(drain=False)
    host.kept.close(drain=False)  # told once


@pytest.mark.parametrize("again", range(20))
def test_closing_ends_a_close_that_drains(again):
    host = HostAdam([torch.zeros(N, 3)])
    worker, step = Worker(host), host.begin_step()
    worker.submit(ROWS, GRADS, step=step, ready=lambda: False)
    told = []

    def drain():
        try:
            worker.close()
        except RuntimeError as error:
            told.append(str(error))

    threads = [threading.Thread(target=drain) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: worker.is_closed)
    worker.close(drain=False)
    for thread in threads:
        thread.join()
    # Those that came before it had been said that all would run.
    assert 1 <= len(told) <= 3
    assert set(told) == {
        "worker must be open until all tasks have run, got close(drain=False) meanwhile"
    }
    worker.close()


def test_closing_waits_for_a_task_whose_ready_has_closed_the_worker():
    param = torch.zeros(N, 3)
    host = HostAdam([param])
    worker, step = Worker(host), host.begin_step()
    begun, go_on = threading.Event(), threading.Event()

    def ready():
        worker.close()
        begun.set()
        go_on.wait()

    worker.submit(ROWS, GRADS, step=step, ready=ready)
    begun.wait()
    with once_in(Worker.close, go_on.set):
        worker.close()
    assert worker.is_idle
    assert param[ROWS].all()


def test_leaving_with_an_error_keeps_it_and_adds_the_tasks():
    host = _failed()
    with pytest.raises(ValueError, match="the caller's") as caught, host.kept:
        raise ValueError("the caller's")
    assert "no gradients" in caught.value.__notes__[0]


def test_a_failure_of_a_worker_that_nobody_kept_is_printed_at_the_end():
    done = _process(
        """
        host = HostAdam([torch.zeros(10, 3)])
        def ready():
            raise KeyError("no gradients")
        step = host.begin_step()
        worker = Worker(host)
        worker.submit(torch.arange(3), [torch.ones(3, 3)], step=step, ready=ready)
        until(lambda: worker.is_idle)
        del worker
        """
    )
    assert done.returncode == 0
    assert "nobody asked" in done.stderr
    assert "no gradients" in done.stderr


def test_a_worker_may_be_collected_on_its_own_thread():
    done = _process(
        """
        gc.disable()
        collects, threads = threading.Event(), []
        def ready():
            if collects.is_set():
                threads.append(threading.get_native_id())
                gc.collect()
            return False
        def begin():
            host = HostAdam([torch.zeros(10, 3)])
            worker = Worker(host)
            step = host.begin_step()
            worker.submit(torch.arange(3), [torch.ones(3, 3)], step=step, ready=ready)
        begin()
        collects.set()
        until(lambda: threads and has_ended(threads[0]))
        print("end")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.fixture
def _ctrl_c_raises():
    """Ctrl-C raises: tests that are started in the background inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_raises")
@pytest.mark.parametrize("drain", [True, False])
def test_closing_answers_ctrl_c(drain):
    host = HostAdam([torch.zeros(N, 3)])
    worker = Worker(host)
    released = threading.Event()
    if drain:
        worker.submit(ROWS, GRADS, step=host.begin_step(), ready=released.is_set)
    else:
        runs = threading.Event()

        def ready() -> bool:
            runs.set()
            return released.wait()

        worker.submit(ROWS, GRADS, step=host.begin_step(), ready=ready)
        runs.wait()
    with pytest.raises(KeyboardInterrupt), once_in(Worker.close, ctrl_c):
        worker.close(drain=drain)
    released.set()
    worker.close(drain=drain)
    assert worker.is_closed


@pytest.mark.usefixtures("_ctrl_c_raises")
def test_ctrl_c_ends_waiting_for_what_does_not_come():
    host, come = HostAdam([torch.zeros(N, 3)], semantics="dense"), threading.Event()
    with Worker(host) as worker:
        step = host.begin_step()
        ticket = worker.submit(ROWS, GRADS, step=step, ready=come.is_set)
        for within, wait in (
            (Worker.wait, lambda: worker.wait(ticket)),
            (Worker.wait, worker.wait),
            (Worker.wait, lambda: worker.wait(rows=ROWS)),
            (HostAdam.end_step, lambda: host.end_step(step)),
        ):
            with pytest.raises(KeyboardInterrupt), once_in(within, ctrl_c):
                wait()
        come.set()
        host.end_step(step)


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, SystemExit])
def test_a_step_whose_end_was_stopped_can_still_be_ended(stopped_by):
    host, twin = (HostAdam([torch.zeros(N, 3)], lr=0.1, semantics="dense") for _ in range(2))
    twin.step(grads=[torch.ones(N, 3)])
    twin.step(ROWS, GRADS)
    host.step(grads=[torch.ones(N, 3)])
    step, released = host.begin_step(), threading.Event()

    def stop(*_):
        raise stopped_by

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with Worker(host) as worker:
            worker.submit(ROWS, GRADS, step=step, ready=released.is_set)
            told = once_in(HostAdam.end_step, lambda: signal.raise_signal(signal.SIGUSR1))
            with pytest.raises(stopped_by), told:
                host.end_step(step)
            assert host.open_steps == (step,)
            released.set()
            host.end_step(step)
    finally:
        signal.signal(signal.SIGUSR1, before)
    ours, theirs = (opt.param_groups[0]["params"][0] for opt in (host, twin))
    assert torch.equal(ours, theirs)


def test_a_task_does_not_wait_for_itself():
    host = HostAdam([torch.zeros(N, 3)])
    worker = Worker(host)
    worker.submit(ROWS, GRADS, step=host.begin_step(), ready=lambda: worker.wait())
    with pytest.raises(ValueError, match="wait must be called from another thread than the worker"):
        worker.wait()


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_looking_ahead_is_in_the_order_of_steps(semantics):
    host = HostAdam([torch.randn(N, 3)], lr=0.1, semantics=semantics)
    host.step(grads=[torch.randn(N, 3)])
    one, two = host.begin_step(), host.begin_step()
    host.update(ROWS, GRADS, step=one)
    if semantics == "dense":
        with pytest.raises(ValueError, match=r"after the steps before, got row \d+ in step 3"):
            host.lookahead(None, step=two)
    ahead = host.lookahead(ROWS, step=two)[0]
    host.update(ROWS, None, step=two)
    assert torch.equal(host.lookahead(ROWS, step=two)[0], ahead)
    with pytest.raises(ValueError, match=r"before later steps update them, got row \d in step 2"):
        host.lookahead(ROWS, step=one)
    host.lookahead(torch.arange(3, N), step=one)


def test_other_default_types_and_devices_change_nothing():
    expected = HostAdam([torch.zeros(N, 3)])
    expected.step(ROWS, GRADS)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        host = HostAdam([torch.zeros(N, 3, dtype=torch.float32, device="cpu")])
        host.step(ROWS, GRADS)
        ahead = host.lookahead(ROWS)[0]
        host.zero_rows([])
        state = host.state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert ahead.dtype == torch.float32
    assert torch.equal(ahead, expected.lookahead(ROWS)[0])
    assert {t.device.type for t in state["state"][0].values()} == {"cpu"}
    assert state["state"][0]["step"].dtype == torch.float32


def test_a_step_is_counted_exactly_whatever_the_default_type_is():
    torch.set_default_dtype(torch.bfloat16)
    try:
        device = DeviceAdam([torch.zeros(N, 3, dtype=torch.float32)])
        for _ in range(300):
            device.step(None, [torch.ones(N, 3, dtype=torch.float32)])
    finally:
        torch.set_default_dtype(torch.float32)
    assert device.state_dict()["state"][0]["step"] == 300


def test_gradients_without_memory_of_their_own_are_told_or_read_rightly():
    host = HostAdam([torch.zeros(N, 3)])
    for grad, text in (
        (torch.ones(N, 3).to_sparse(), r"grads\[0\] must be a dense tensor, got layout"),
        (torch.ones(N, 3, device="meta"), r"grads\[0\] must have memory, got a meta tensor"),
    ):
        with pytest.raises(TypeError, match=text):
            host.step(None, [grad])
    with pytest.raises(TypeError, match="rows must be a dense tensor"):
        host.step(ROWS.to_sparse(), GRADS)
    host.step(None, [torch._neg_view(torch.ones(N, 3))])
    assert (host.param_groups[0]["params"][0] > 0).all()
    with pytest.raises(ValueError, match=r"out\[0\] must hold its values, got a view of their neg"):
        host.lookahead(ROWS, out=[torch._neg_view(torch.ones(3, 3))])
    with pytest.raises(ValueError, match="groups must hold betas, eps as Adam's do"):
        host.load_state_dict(torch.optim.SGD([torch.zeros(N, 3)], lr=1.0).state_dict())
    with pytest.raises(TypeError, match=r"threads must be a whole number, got 1\.5"):
        HostAdam([torch.zeros(N, 3)], threads=1.5)
    with pytest.raises(ValueError, match="params must be at most 32, got 33"):
        HostAdam([torch.zeros(N, 1) for _ in range(33)])
    with pytest.raises(TypeError, match=r"exp_avg of params\[0\] must be a tensor, got NoneType"):
        HostAdam([torch.zeros(N, 3)], semantics="sparse",
                 state={"exp_avg": [None], "exp_avg_sq": [None]})  # fmt: skip


def test_a_task_finds_its_memory_also_after_an_edit_that_found_none():
    done = _process(
        """
        n = 2_000_000  # so much goes back to the system as soon as nobody holds it
        param = torch.nn.Parameter(torch.zeros(n, 16))
        host = HostAdam([param], semantics="sparse")
        host.step(torch.arange(4), [torch.ones(4, 16)])
        try:
            host.append_rows(2**31 - n - 10)
        except (MemoryError, RuntimeError):
            print("no memory")
        worker, step, go = Worker(host), host.begin_step(), threading.Event()
        worker.submit(torch.arange(n), [torch.ones(n, 16)], step=step, ready=go.wait)
        param.data = torch.zeros(n, 16)
        go.set()
        worker.wait()
        print("done")
        """
    )
    assert (done.returncode, done.stdout) == (0, "no memory\ndone\n"), done.stderr
