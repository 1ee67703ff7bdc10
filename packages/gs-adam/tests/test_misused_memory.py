# SPDX-License-Identifier: Apache-2.0
"""Parameters, moments and gradients that share memory, move, or are not where they seem to be."""

import subprocess
import sys
import textwrap

import pytest
import torch

from gs_adam import HostAdam, Schedule, update_rows

N = 40


def _plain(last: int = 0):
    return torch.ones(N, 3), torch.zeros(N, 3), torch.zeros(N, 3), torch.full((N,), last).int()


def _process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600
    )


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


def test_rows_keep_their_shape_when_storage_moves():
    opt = HostAdam([torch.zeros(N, 3)])
    with pytest.raises(ValueError, match=r"params\[0\] must have rows of shape \(3,\) as before"):
        opt.rebind([torch.zeros(N, 4)])
    opt.step(torch.arange(4), [torch.ones(4, 3)])


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
