# SPDX-License-Identifier: Apache-2.0
"""Rows come and go: densification, re-ordering, storage that moves."""

import pytest
import torch

from gs_adam import HostAdam


def make(n_rows=40, **options):
    generator = torch.Generator().manual_seed(5)
    p = torch.nn.Parameter(torch.randn(n_rows, 6, generator=generator))
    return p, HostAdam([p], lr=0.05, **options)


def walk(host, rows, number):
    generator = torch.Generator().manual_seed(number)
    grads = torch.randn(host.n_rows, 6, generator=generator)
    host.step(rows, [grads[rows]])


def replace(host, values):
    new = torch.nn.Parameter(values.detach().clone())
    host.param_groups[0]["params"] = [new]
    return new


@pytest.mark.parametrize("semantics", ["dense", "deferred"])
def test_append_keep_and_permute_edit_state_as_the_rows_are_edited(semantics):
    """The same rows in another order, some of them new, must move as if nothing had happened."""
    p, host = make(semantics=semantics)
    q, other = make(semantics=semantics)
    for number in range(20):
        for h in (host, other):
            walk(h, torch.arange(number % 5, 40, 5), number)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    kept = torch.arange(0, 40, 2)
    host.permute_rows(order)
    p = replace(host, p[order])
    host.keep_rows(kept)
    p = replace(host, p[kept])
    host.append_rows(3)
    p = replace(host, torch.cat([p, torch.ones(3, 6)]))
    assert host.n_rows == 23
    rows = order[kept]  # where the kept rows are in the other optimizer
    for number in range(100, 110):
        grads = torch.randn(40, 6, generator=torch.Generator().manual_seed(number))
        other.step(torch.arange(40), [grads])
        host.step(torch.arange(20), [grads[rows]])
    for h in (host, other):
        h.flush()
    assert torch.equal(p[:20], q[rows])
    assert torch.equal(p[20:], torch.ones(3, 6))  # new rows have no moments and sleep in place
    host.step(torch.tensor([20]), [torch.ones(1, 6)])
    # One step from nothing at t: lr (1-b1) / (1-b1^t) * sqrt(1-b2^t) / sqrt(1-b2).
    t = host.step_count
    moved = 0.05 * 0.1 / (1 - 0.9**t) * (1 - 0.999**t) ** 0.5 / 0.001**0.5
    torch.testing.assert_close(p[20].detach(), torch.full((6,), 1 - moved))


def test_zero_rows_brings_them_up_to_date_and_stops_them():
    p, host = make()
    q, other = make()
    for h in (host, other):
        walk(h, torch.arange(40), 0)
        for number in range(1, 10):
            walk(h, torch.arange(5), number)
    host.zero_rows([30, 7, 7])
    other.flush()
    assert torch.equal(p[[7, 30]], q[[7, 30]])
    assert not torch.equal(p[8], q[8])
    stopped = p[[7, 30]].detach().clone()
    for number in range(10, 20):
        walk(host, torch.arange(5), number)
    host.flush()
    assert torch.equal(p[[7, 30]], stopped)


def test_rows_that_change_without_an_operation_are_named():
    p, host = make()
    walk(host, torch.arange(40), 0)
    before = host.step_count
    replace(host, torch.cat([p, p[:2]]))
    with pytest.raises(
        ValueError, match=r"exp_avg of params\[0\] must have shape \(42, 6\) .* call"
    ):
        host.begin_step()
    for key in ("exp_avg", "exp_avg_sq"):
        state = host.state[host.param_groups[0]["params"][0]]
        state[key] = torch.cat([state[key], state[key][:2]])
    with pytest.raises(
        ValueError, match=r"params must have 40 rows as the optimizer's state, got 42"
    ):
        host.step(grads=[torch.zeros(42, 6)])
    assert host.step_count == before


def test_row_operations_refuse_what_they_cannot_do():
    _, host = make()
    with pytest.raises(ValueError, match=r"count must be at least 0, got -1"):
        host.append_rows(-1)
    with pytest.raises(ValueError, match=r"rows must be sorted and unique"):
        host.keep_rows([3, 2])
    with pytest.raises(IndexError, match=r"rows must be in \[0, 40\), got 1 to 40"):
        host.keep_rows([1, 40])
    with pytest.raises(ValueError, match=r"order must be a permutation of 40 rows"):
        host.permute_rows(torch.zeros(40, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"order must be int32, int64 or bool, got torch.float32"):
        host.permute_rows(torch.zeros(40))
    step = host.begin_step()
    with pytest.raises(RuntimeError, match=r"a row operation needs steps \[1\] to end first"):
        host.append_rows(1)
    host.end_step(step)


def storage(table):
    n_rows = len(table)
    return {
        "exp_avg": [table[:, 6:12]],
        "exp_avg_sq": [table[:, 12:18]],
        "last_step": torch.zeros(n_rows, dtype=torch.int32),
    }


def test_adopted_storage_is_written_to_and_may_grow():
    p, plain = make()
    table = torch.zeros(40, 18)
    table[:, :6] = p.detach()
    state = storage(table)
    host = HostAdam([torch.nn.Parameter(table[:, :6])], lr=0.05, state=state)
    for number in range(12):
        for h in (host, plain):
            walk(h, torch.arange(number % 3, 40, 3), number)
    with pytest.raises(RuntimeError, match=r"state must be edited by its owner"):
        host.append_rows(2)
    grown = torch.cat([table, torch.zeros(2, 18)])
    larger = storage(grown)
    larger["last_step"][:40] = state["last_step"]
    larger["last_step"][40:] = host.step_count
    host.rebind([torch.nn.Parameter(grown[:, :6])], state=larger)
    for number in range(12, 20):
        rows = torch.arange(number % 3, 40, 3)
        grads = torch.randn(40, 6, generator=torch.Generator().manual_seed(number))
        for h in (host, plain):
            h.step(rows, [grads[rows]])
    host.flush()
    plain.flush()
    assert torch.equal(grown[:40, :6], p)
    assert torch.equal(grown[:40, 6:12], plain.state[p]["exp_avg"])
    assert not grown[40:].any()


def test_rebind_refuses_what_does_not_fit():
    p, host = make()
    walk(host, torch.arange(40), 0)
    with pytest.raises(ValueError, match=r"params must be 1 tensors, got 2"):
        host.rebind([p, p])
    with pytest.raises(ValueError, match=r"params must have 40 rows as the state, got 41"):
        host.rebind([torch.zeros(41, 6)])
    table = torch.zeros(40, 18)
    with pytest.raises(
        ValueError, match=r"state must hold \['exp_avg', 'exp_avg_sq', 'last_step'\]"
    ):
        host.rebind([table[:, :6]], state={"exp_avg": []})
    walk(host, torch.arange(40), 1)  # still on the old tensors
    assert host.param_groups[0]["params"][0] is p
