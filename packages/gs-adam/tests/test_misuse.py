# SPDX-License-Identifier: Apache-2.0
"""What a caller may get wrong, and what then must not happen: foreign memory, hangs, lost steps."""

import copy
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from gs_adam import DeviceAdam, HostAdam, Schedule, Worker, flush_rows, update_rows

N = 40


def _plain(last: int = 0):
    return torch.ones(N, 3), torch.zeros(N, 3), torch.zeros(N, 3), torch.full((N,), last).int()


def _process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600
    )


def test_a_schedule_takes_no_step_before_one_has_begun():
    first = Schedule()
    arrays = _plain()
    with pytest.raises(ValueError, match="must have begun a step"):
        update_rows(*arrays, None, None, first)
    for _ in range(3):
        first.begin(lr=1e-2)
    update_rows(*arrays, torch.arange(5), torch.ones(5, 3), first)
    second = Schedule()
    second.load_state_dict(first.state_dict())
    before = [array.clone() for array in arrays]
    with pytest.raises(ValueError, match="must have begun a step since it was made or restored"):
        update_rows(*arrays, torch.arange(5, 9), torch.ones(4, 3), second)
    assert all(torch.equal(a, b) for a, b in zip(arrays, before, strict=True))
    flush_rows(*arrays, None, second)
    second.begin(lr=1e-2)
    update_rows(*arrays, torch.arange(5, 9), torch.ones(4, 3), second)


def _columns(table: torch.Tensor, *bounds: tuple[int, int]) -> list[torch.Tensor]:
    return [table[:, first:last] for first, last in bounds]


def test_columns_of_the_same_rows_may_be_parameters_and_moments():
    table, moments = torch.randn(N, 12), torch.zeros(N, 16)
    params = _columns(table, (0, 3), (3, 11))
    state = {
        "exp_avg": _columns(moments, (0, 3), (6, 14)),
        "exp_avg_sq": [moments[:, 3:6], torch.zeros(N, 8)],
    }
    host = HostAdam(params, state=state, semantics="dense")
    host.step(grads=[torch.ones_like(param) for param in params])
    assert (moments[:, 14:] == 0).all()


@pytest.mark.parametrize("shared", ["columns", "shifted rows", "other strides", "bytes", "itself"])
def test_parameters_that_share_memory_are_refused(shared):
    flat = torch.randn(N * 12 + 12)
    table = flat[: N * 12].view(N, 12)
    first = table[:, 2:6]
    second = {
        "columns": table[:, 5:9],
        "shifted rows": flat[7:].as_strided((N, 8), (12, 1)),  # the next row's first columns
        "other strides": flat.as_strided((N, 2), (6, 1)),
        "bytes": torch.frombuffer(memoryview(flat.numpy()).cast("B")[30:-2], dtype=torch.float32)[
            : N * 12
        ].view(N, 12)[:, :1],
        "itself": first.view(N, 4),
    }[shared]
    if shared == "bytes":
        assert second.data_ptr() % 4 == 2
    with pytest.raises(ValueError, match=r"params\[1\] must have memory of its own, got some of"):
        HostAdam([first, second], semantics="dense").step(
            grads=[torch.ones_like(first), torch.ones_like(second)]
        )


def test_moments_that_are_the_parameter_are_refused():
    param, before = torch.randn(N, 3), torch.zeros(N, 3)
    state = {"exp_avg": [param], "exp_avg_sq": [before]}
    with pytest.raises(ValueError, match=r"exp_avg of params\[0\] must have memory of its own"):
        HostAdam([param], state=state, semantics="dense")
    assert not before.any()


@pytest.mark.parametrize("last", [-1, -(10**7), -(2**31)])
def test_steps_before_the_first_reach_no_table(last):
    schedule, arrays = Schedule(), _plain()
    for _ in range(600):  # more than any table of recent steps holds
        schedule.begin(lr=1e-2)
    arrays[3][7] = last
    never = _plain()
    flush_rows(*arrays, None, schedule)
    flush_rows(*never, None, schedule)
    for ours, expected in zip(arrays, never, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("last", [-1, -(10**7)])
def test_adopted_steps_are_looked_at(last):
    params, exp_avg, exp_avg_sq, last_step = _plain()
    last_step[3] = last
    state = {"exp_avg": [exp_avg], "exp_avg_sq": [exp_avg_sq], "last_step": last_step}
    with pytest.raises(ValueError, match=f"last_step must be at least 0, got {last} to 0"):
        HostAdam([params], state=state)


@pytest.mark.parametrize("last", [-1, 3])
def test_loaded_steps_are_looked_at(last):
    opt = HostAdam([torch.zeros(N, 3)])
    for _ in range(2):
        opt.step(torch.arange(4), [torch.ones(4, 3)])
    saved = opt.state_dict()
    saved["gs_adam"]["last_step"] = saved["gs_adam"]["last_step"].clone()
    saved["gs_adam"]["last_step"][9] = last
    with pytest.raises(ValueError, match="last_step must be at least 0 and at most 2"):
        HostAdam([torch.zeros(N, 3)]).load_state_dict(saved)


def test_a_state_that_does_not_fit_changes_nothing():
    opt = HostAdam([torch.zeros(N, 3)])
    for _ in range(3):
        opt.step(torch.arange(4), [torch.ones(4, 3)])
    saved = opt.state_dict()
    own = saved["gs_adam"]
    short = [{**group, "missed": group["missed"][:-1]} for group in own["schedule"]]
    other = HostAdam([torch.zeros(N, 3)])
    other.step(torch.arange(9), [torch.full((9, 3), 2.0)])
    before = other.state_dict()
    moments = {key: before["state"][0][key].clone() for key in ("exp_avg", "exp_avg_sq")}
    for broken, message in (
        ({**own, "schedule": short}, "rates of the 3 steps .* got 2"),
        ({"schedule": own["schedule"]}, "must hold last_step"),
        ({"last_step": own["last_step"]}, "must hold schedule"),
    ):
        with pytest.raises(ValueError, match=message):
            other.load_state_dict({**saved, "gs_adam": broken})
        after = other.state_dict()
        assert other.step_count == 1
        for key, value in moments.items():
            assert torch.equal(after["state"][0][key], value)
    other.load_state_dict(saved)
    assert other.step_count == 3


def test_rows_do_not_sleep_since_before_rates_are_known():
    # The state of torch.optim.Adam says how many steps there were, not which.
    schedule = Schedule()
    schedule.load_state_dict({"step": 5, "groups": []})
    w, m, v, last = _plain(5)
    flush_rows(w, m, v, last, None, schedule)
    last[7] = 3
    for _ in range(2):
        with pytest.raises(ValueError, match=r"last_step must be at least 5, .* got 3 of row 7"):
            flush_rows(w, m, v, last, None, schedule)
        schedule.begin(0.1)
    with pytest.raises(ValueError, match=r"last_step must be at least 5, .* got 3 of row 7"):
        update_rows(w, m, v, last, torch.tensor([6, 7]), torch.ones(2, 3), schedule)
    assert (w == 1).all()
    assert int(last[6]) == 5
    update_rows(w, m, v, last, torch.tensor([6, 8]), torch.ones(2, 3), schedule)
    again = Schedule()
    again.load_state_dict(schedule.state_dict())
    with pytest.raises(ValueError, match=r"last_step must be at least 5, .* got 3 of row 7"):
        flush_rows(w, m, v, last, None, again)
    last[7] = 5
    flush_rows(w, m, v, last, None, again)


def test_storage_and_states_do_not_sleep_since_before_rates_are_known():
    host = HostAdam([torch.ones(N, 3)])
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(N, 3))], eps=1e-15)
    adam.param_groups[0]["params"][0].grad = torch.ones(N, 3)
    for _ in range(5):
        adam.step()
    host.load_state_dict(copy.deepcopy(adam.state_dict()))
    host.step(torch.arange(3), [torch.ones(3, 3)])
    saved = copy.deepcopy(host.state_dict())
    HostAdam([torch.ones(N, 3)]).load_state_dict(copy.deepcopy(saved))
    saved["gs_adam"]["last_step"][3] = 2
    with pytest.raises(ValueError, match="last_step must be at least 5 and at most 6, got 2 to 6"):
        HostAdam([torch.ones(N, 3)]).load_state_dict(saved)
    state = {key: [torch.zeros(N, 3)] for key in ("exp_avg", "exp_avg_sq")}
    with pytest.raises(ValueError, match="last_step must be at least 5 and at most 6, got 0 to 0"):
        host.rebind([torch.ones(N, 3)], state={**state, "last_step": torch.zeros(N).int()})


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_a_state_just_taken_from_torch_can_be_saved_again(semantics):
    param = torch.nn.Parameter(torch.ones(N, 3))
    adam = torch.optim.Adam([param], eps=1e-15)
    param.grad = torch.ones(N, 3)
    for _ in range(5):
        adam.step()
    host = HostAdam([param.detach().clone()])
    host.load_state_dict(copy.deepcopy(adam.state_dict()))
    saved = copy.deepcopy(host.state_dict())
    again = HostAdam([param.detach().clone()], semantics=semantics)
    again.load_state_dict(copy.deepcopy(saved))
    rows, grads = torch.arange(N), [torch.ones(N, 3)]
    for one in (host, again):
        one.step(rows, grads)
    assert again.step_count == 6
    assert torch.equal(host.param_groups[0]["params"][0], again.param_groups[0]["params"][0])
    saved["gs_adam"]["last_step"][3] = 2
    with pytest.raises(ValueError, match="must hold"):
        HostAdam([param.detach().clone()]).load_state_dict(saved)


def test_a_schedule_has_no_step_below_zero():
    with pytest.raises(ValueError, match="step of at least 0, got -5"):
        Schedule().load_state_dict({"step": -5, "groups": []})


def test_rows_keep_their_shape_when_storage_moves():
    opt = HostAdam([torch.zeros(N, 3)])
    with pytest.raises(ValueError, match=r"params\[0\] must have rows of shape \(3,\) as before"):
        opt.rebind([torch.zeros(N, 4)])
    opt.step(torch.arange(4), [torch.ones(4, 3)])


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


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_memory_given_up_while_a_step_is_open_is_an_error_and_not_written(is_replaced, semantics):
    param = torch.nn.Parameter(torch.zeros(50_000, 3))
    opt = HostAdam([param], semantics=semantics)
    opt.step(None, [torch.ones_like(param)])
    step = opt.begin_step()
    opt.update(torch.arange(10), [torch.ones(10, 3)], step=step)
    if is_replaced:
        opt.param_groups[0]["params"] = [param := torch.nn.Parameter(torch.zeros(50_000, 3))]
    else:
        param.data = torch.zeros(50_000, 3)
    others = [torch.zeros(50_000, 3) for _ in range(8)]
    message = "must stay where they are while a step is open, got others"
    for use in (
        lambda: opt.update(torch.arange(10, 20), [torch.ones(10, 3)], step=step),
        lambda: opt.flush(torch.arange(10)),
        lambda: opt.lookahead(torch.arange(10), step=step),
        lambda: opt.end_step(step),
    ):
        with pytest.raises(RuntimeError, match=message):
            use()
    assert not any(other.any() for other in others)
    opt.step(None, [torch.ones(50_000, 3)])
    assert opt.step_count == 3
    assert param.all()


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
def test_a_parameter_may_be_another_object_with_the_same_memory_while_a_step_is_open(semantics):
    values = torch.zeros(N, 3)
    opt = HostAdam([torch.nn.Parameter(values)], semantics=semantics)
    step = opt.begin_step()
    opt.param_groups[0]["params"] = [torch.nn.Parameter(values)]
    opt.update(torch.arange(5), [torch.ones(5, 3)], step=step)
    opt.end_step(step)
    assert values[:5].all()
    opt.step(torch.arange(5, 9), [torch.ones(4, 3)])
    assert values[:9].all()


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


@pytest.mark.parametrize(
    ("ids", "error"), [([3, 1], ValueError), ([1, 1], ValueError), ([1, N], IndexError)]
)
def test_ids_are_looked_at_where_penalties_are_added_on_the_cpu(ids, error):
    param = torch.zeros(N, 3)
    opt = DeviceAdam([param])
    with pytest.raises(error, match="ids must be"):
        opt.step(torch.tensor(ids), [torch.ones(2, 3)], penalties=[("exp", 0.1)])
    assert not param.any()


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


@pytest.mark.parametrize("semantics", ["dense", "deferred", "sparse"])
@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (torch.tensor([5, 3]), ValueError),
        (torch.tensor([N]), IndexError),
        (torch.tensor([-4]), IndexError),
        (torch.tensor([1.5]), TypeError),
        ([1, 2], TypeError),
    ],
)
def test_rows_to_flush_are_looked_at_whether_any_sleep_or_not(semantics, rows, error):
    host = HostAdam([torch.zeros(N, 3)], semantics=semantics)
    host.step(torch.tensor([1]), [torch.ones(1, 3)])
    with pytest.raises(error, match="rows"):
        host.flush(rows)


def test_betas_stay_where_storage_with_rows_that_sleep_was_bound():
    tensors = [torch.zeros(N, 3) for _ in range(3)]
    last_step = torch.zeros(N, dtype=torch.int32)
    state = {"exp_avg": [tensors[1]], "exp_avg_sq": [tensors[2]], "last_step": last_step}
    host = HostAdam([tensors[0]], state=state)
    host.step(torch.arange(3), [torch.ones(3, 3)])
    host.step(torch.arange(1), [torch.ones(1, 3)])
    param, average, square = (tensor.clone() for tensor in tensors)
    slept = last_step.clone()
    host.flush()  # here none sleeps any more, but in the copies some do
    state = {"exp_avg": [average], "exp_avg_sq": [square], "last_step": slept}
    host.rebind([param], state=state)
    host.param_groups[0]["betas"] = (0.5, 0.9)
    with pytest.raises(ValueError, match="betas must stay"):
        host.step(torch.arange(1), [torch.ones(1, 3)])
    host.flush()
    host.step(torch.arange(1), [torch.ones(1, 3)])


def test_a_state_dict_that_has_moved_on_says_so():
    host = HostAdam([torch.zeros(N, 3)])
    host.step(torch.arange(4), [torch.ones(4, 3)])
    kept = host.state_dict()
    host.step(torch.arange(4), [torch.ones(4, 3)])
    with pytest.raises(ValueError, match=r"stepped since; load a copy\.deepcopy\(\)"):
        host.load_state_dict(kept)


def test_parameters_and_moments_of_a_callers_own_storage_are_apart():
    schedule = Schedule()
    schedule.begin(lr=1e-2)
    param, average, square, last_step = _plain()
    within = average.view(torch.int32).flatten()[:N]
    for *tables, name in (
        (param, param, square, last_step, "exp_avg"),
        (param, average, average, last_step, "sq"),
        (param, average, square, within, "last_step"),
    ):
        with pytest.raises(ValueError, match=f"{name}.* must have memory of its own"):
            update_rows(*tables, torch.arange(5), torch.ones(5, 3), schedule)


def test_parameters_that_are_views_of_their_negatives_are_refused():
    with pytest.raises(ValueError, match="must hold its values, got a view of their negatives"):
        HostAdam([torch._neg_view(torch.ones(N, 3))])


def test_flushing_tells_autograd_that_values_change():
    param = torch.nn.Parameter(torch.ones(N, 3))
    host = HostAdam([param])
    host.step(torch.arange(4), [torch.ones(4, 3)])
    host.step(torch.arange(1), [torch.ones(1, 3)])
    squares = (param**2).sum()
    host.flush()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.backward()


def test_torchs_default_device_is_not_where_rows_of_the_host_are():
    done = _process(
        """
        import torch
        from gs_adam import DeviceAdam, DeviceRows, HostAdam
        cpu = {"device": "cpu"}
        torch.set_default_device("meta")
        ids = torch.arange(3, **cpu)
        adam = DeviceAdam([torch.zeros(5, 2, **cpu)], lr=1.0)
        adam.step(ids, [torch.ones(3, 2, **cpu)], penalties=[("exp", 0.1)])
        host = HostAdam([torch.zeros(5, 2, **cpu)], lr=1.0)
        step = host.begin_step()
        tables = [torch.zeros(5, 2, **cpu) for _ in range(3)]
        last = torch.zeros(5, dtype=torch.int32, **cpu)
        rows = DeviceRows(host, "cpu")
        rows.update(*tables, ids.int(), last, ids.int(), torch.ones(3, 2, **cpu), step=step)
        print(tables[0][:, 0].tolist(), last.tolist())
        """
    )
    assert done.stdout.strip() == "[-1.0, -1.0, -1.0, 0.0, 0.0] [1, 1, 1, 0, 0]", done.stderr


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda host: host.lookahead(None, step=1, pending=torch.ones(3)), r"pending must be \("),
        (lambda host: host.append_rows(2.5), "count must be a whole number, got 2.5"),
        (lambda host: host.keep_rows([3, 1]), "rows must be sorted and unique, got 3 and 1 at 0"),
        (lambda host: host.permute_rows([0] * N), "got 40 ids, 1 of them distinct"),
        (lambda host: HostAdam([torch.ones(3, 1)], betas=(0.9,)), "betas must be two numbers"),
        (lambda host: HostAdam([{"params": []}]), "params must hold at least one tensor"),
        (lambda host: DeviceAdam([{"params": []}]), "params must hold at least one tensor"),
        (lambda host: Worker(torch.optim.Adam([torch.ones(3)])), "must be a HostAdam, got Adam"),
        (lambda host: Worker(host).flush(None, priority=1.5), "priority must be a whole number"),
        (lambda host: Worker(host).flush(None, priority=2**40), "priority must be at most"),
        (lambda host: Worker(host).wait(-1), "ticket must be at least 1, got -1"),
        (lambda host: Schedule(1.5), "n_groups must be a whole number, got 1.5"),
        (lambda host: host.load_state_dict(_without_step(host)), "must hold step of params"),
    ],
)
def test_errors_name_what_was_wrong(call, message):
    host = HostAdam([torch.zeros(N, 3)])
    host.step(torch.arange(4), [torch.ones(4, 3)])
    with pytest.raises((TypeError, ValueError), match=message):
        call(host)


def _without_step(host: HostAdam) -> dict:
    state = host.state_dict()
    moments = {key: value for key, value in state["state"][0].items() if key != "step"}
    return {**state, "state": {0: moments}}


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_a_step_ends_by_any_whole_number_and_by_nothing_else(semantics):
    adam = HostAdam([torch.zeros(N, 3)], semantics=semantics)
    for kind in (np.int64, np.array, torch.tensor):
        adam.end_step(kind(adam.begin_step()))
        assert not adam.open_steps
    adam.begin_step()
    with pytest.raises(ValueError, match=r"step must be an open step \(open: \[4\]\), got 4.0"):
        adam.end_step(4.0)
    adam.end_step(4)


@pytest.mark.parametrize("name", ["keep_rows", "permute_rows", "zero_rows"])
def test_sparse_ids_are_refused(name):
    adam = HostAdam([torch.zeros(N, 3)])
    with pytest.raises(TypeError, match=r"must be a dense tensor, got layout torch.sparse_coo"):
        getattr(adam, name)(torch.arange(N).to_sparse())


def test_gradients_that_would_be_written_over_are_refused() -> None:
    host = HostAdam([torch.zeros(4, 3)])
    (param,) = host.param_groups[0]["params"]
    host.step(None, [torch.ones(4, 3)])
    for grads in ([param], [host.state[param]["exp_avg"]]):
        with pytest.raises(ValueError, match=r"grads\[0\] must have memory of its own, got some"):
            host.step(None, grads)
    assert host.step_count == 1
    table, schedule = torch.zeros(4, 12), Schedule()
    schedule.begin(lr=0.1)
    *state, grads = _columns(table, (0, 3), (3, 6), (6, 9), (8, 11))
    last = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"grads\[0\] must have .* got some of exp_avg_sq\[0\]"):
        update_rows(*state, last, None, grads, schedule)
    update_rows(*state, last, None, table[:, 9:], schedule)
