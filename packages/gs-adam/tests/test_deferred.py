# SPDX-License-Identifier: Apache-2.0
"""Deferred semantics: rows sleep, and dense Adam comes out all the same."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_adam import HostAdam

RATE = 1e-2


def decay(kind, step, n_steps):
    return {
        "constant": 1.0,
        "exponential": 0.01 ** (step / n_steps),
        "warm-up": min(1.0, step / (n_steps / 4)),
        "cyclic": 0.55 + 0.45 * math.cos(2 * math.pi * step / 37),
    }[kind]


def start(n_rows, width, near, generator):
    values = torch.rand(n_rows, width, generator=generator) * 2 - 1
    return values * 1e-3 if near == 0 else 1 + 0.1 * values


def errors(kind, eps, size, near, *, n_steps=1150, weight_decay=0.0, betas=(0.9, 0.999), seed=0):
    """Largest errors of deferred and of torch's float32 dense Adam against float64 dense Adam.

    Rows are seen with 1 to 30 % probability; 30 of them sleep for 1000 steps.
    """
    generator = torch.Generator().manual_seed(seed)
    n_rows, width = 200, 5
    begin = start(n_rows, width, near, generator)
    ours, single = (torch.nn.Parameter(begin.clone()) for _ in range(2))
    double = torch.nn.Parameter(begin.double())
    options = {"lr": RATE, "eps": eps, "betas": betas, "weight_decay": weight_decay}
    deferred = HostAdam([ours], **options)
    dense = [torch.optim.AdamW([p], foreach=False, **options) for p in (single, double)]
    chance = 0.01 + 0.29 * torch.rand(n_rows, generator=generator)
    for step in range(n_steps):
        for optimizer in (deferred, *dense):
            optimizer.param_groups[0]["lr"] = RATE * decay(kind, step, n_steps)
        seen = torch.rand(n_rows, generator=generator) < chance
        if 100 < step < 1110:
            seen[:30] = False
        grads = torch.randn(n_rows, width, generator=generator) * size
        grads *= 10 ** (-2 * torch.rand(n_rows, width, generator=generator))
        grads[~seen] = 0
        deferred.step(seen, [grads[seen]])
        single.grad, double.grad = grads, grads.double()
        for optimizer in dense:
            optimizer.step()
    deferred.flush()
    return tuple(float((p.double() - double).detach().abs().max()) for p in (ours, single))


# Elements whose epsilon is negligible, whose epsilon matters and whose epsilon is all there is,
# with moments down to denormal ones.
@pytest.mark.parametrize(
    ("kind", "eps", "size", "near"),
    [
        ("constant", 1e-15, 1.0, 1),
        ("constant", 1e-15, 1e-12, 0),
        ("constant", 1e-4, 1e-6, 1),
        ("exponential", 1e-15, 1.0, 0),
        ("exponential", 1e-8, 1e-6, 1),
        ("exponential", 1e-15, 1e-20, 0),
        ("warm-up", 1e-15, 1e-20, 1),
        ("warm-up", 1e-8, 1.0, 0),
        ("cyclic", 1e-15, 1e-14, 0),
        ("cyclic", 1e-4, 1e-20, 1),
    ],
)
def test_sleeping_rows_are_as_exact_as_dense_adam_in_float32(kind, eps, size, near):
    ours, single = errors(kind, eps, size, near)
    assert ours <= 2 * single


@pytest.mark.parametrize("betas", [(0.9**4, 0.999**4), (0.9**16, 0.999**16), (0.0, 0.9)])
def test_other_betas_are_as_exact(betas):
    ours, single = errors("cyclic", 1e-15, 1e-10, 0, n_steps=400, betas=betas)
    assert ours <= 2 * single


def test_weight_decay_goes_on_in_sleep():
    ours, single = errors("cyclic", 1e-15, 1.0, 1, weight_decay=0.05)
    assert ours <= 2 * single


@pytest.mark.parametrize("slept", [1, 2, 7, 30, 100, 395, 396, 397, 398, 1500])
@pytest.mark.parametrize("size", [1e-4, 1e-11, 1e-13, 1e-15, 1e-17, 1e-19])
@pytest.mark.parametrize("first", [1, 3, 40, 1000])
def test_one_sleep_equals_its_steps_in_float64(slept, size, first):
    """Against the dense recursion in float64, whatever epsilon's part in it: early steps change it
    fast and are summed term by term, later ones use the corrected form."""
    eps, rate = 1e-15, 0.37
    p = torch.nn.Parameter(torch.zeros(8, 3))
    host = HostAdam([p], lr=rate, eps=eps)
    nothing = torch.zeros(0, dtype=torch.int32)
    for _ in range(first - 1):
        host.step(nothing, [torch.zeros(0, 3)])
    grads = size * torch.linspace(0.5, 2, 24).reshape(8, 3)
    host.step(grads=[grads])
    w, m, v = (x.double().clone() for x in (p.detach(), *moments(host, p)))
    begin = w.clone()
    for step in range(first + 1, first + slept + 1):
        m *= 0.9
        v *= 0.999
        correction1, correction2 = 1 - 0.9**step, 1 - 0.999**step
        w -= rate * m / correction1 / ((v / correction2).sqrt() + eps)
    for _ in range(slept):
        host.step(nothing, [torch.zeros(0, 3)])
    host.flush()
    moved = (w - begin).abs()
    # A handful of float32 roundings of the movement, and one of the value itself.
    bound = 6e-7 * moved + 6e-8 * w.abs()
    assert ((p.detach().double() - w).abs() <= bound).all()
    torch.testing.assert_close(moments(host, p)[0].double(), m, rtol=3e-7, atol=1.5e-45)
    torch.testing.assert_close(moments(host, p)[1].double(), v, rtol=3e-7, atol=1.5e-45)


def moments(host, p):
    return host.state[p]["exp_avg"], host.state[p]["exp_avg_sq"]


def run(n_steps, *, threads=None, parts=1, flush_every=0, n_rows=300):
    generator = torch.Generator().manual_seed(3)
    params = [
        torch.nn.Parameter(torch.randn(n_rows, *shape, generator=generator))
        for shape in ((3,), (), (1, 3), (7, 3))
    ]
    host = HostAdam(
        [{"params": [p], "lr": RATE / (k + 1)} for k, p in enumerate(params)], threads=threads
    )
    for number in range(n_steps):
        rows = (torch.rand(n_rows, generator=generator) < 0.1).nonzero().flatten().int()
        grads = [torch.randn(len(rows), *p.shape[1:], generator=generator) for p in params]
        step = host.begin_step()
        for part in torch.arange(len(rows)).chunk(parts):
            host.update(rows[part], [g[part] for g in grads], step=step)
        host.end_step(step)
        if flush_every and number % flush_every == 0:
            host.flush()
    return host, params


def test_batching_and_threads_give_the_same_bits():
    _, whole = run(40, threads=1)
    for threads, parts in ((2, 1), (1, 7), (3, 4)):
        _, params = run(40, threads=threads, parts=parts)
        assert all(torch.equal(a, b) for a, b in zip(params, whole, strict=True))


def test_a_checkpoint_keeps_rows_asleep_and_continues_bit_for_bit():
    host, params = run(30)
    saved = copy.deepcopy(host.state_dict())
    assert (saved["gs_adam"]["last_step"] < 30).any()
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    twin = HostAdam([{"params": [p], "lr": 1.0} for p in twins])
    twin.load_state_dict(saved)
    rows = torch.arange(0, 300, 2, dtype=torch.int32)
    for number in range(500):
        grads = [torch.full((150, *p.shape[1:]), 0.01 * number) for p in params]
        for optimizer in (host, twin):
            optimizer.step(rows[: 150 - number % 2], [g[: 150 - number % 2] for g in grads])
    host.flush()
    twin.flush()
    assert all(torch.equal(a, b) for a, b in zip(params, twins, strict=True))


def test_a_dense_state_dict_wakes_all_rows():
    p, q = (torch.nn.Parameter(torch.ones(20, 3)) for _ in range(2))
    dense, deferred = torch.optim.Adam([p], eps=1e-15), HostAdam([q], eps=1e-15)
    p.grad = torch.randn(20, 3)
    for _ in range(5):
        dense.step()
    with torch.no_grad():
        q.copy_(p)
    deferred.load_state_dict(copy.deepcopy(dense.state_dict()))
    assert deferred.step_count == 5
    p.grad = torch.zeros(20, 3)
    for _ in range(5):
        dense.step()
        deferred.step(torch.zeros(20, dtype=torch.bool), [torch.zeros(0, 3)])
    deferred.flush()
    torch.testing.assert_close(q, p, rtol=1e-6, atol=1e-9)


def test_a_flushed_state_dict_goes_to_torch():
    host, params = run(20)
    host.flush()
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    torch_adam = torch.optim.Adam([{"params": [p]} for p in twins])
    torch_adam.load_state_dict(copy.deepcopy(host.state_dict()))
    grads = [torch.randn_like(p) for p in params]
    host.step(grads=grads)
    for p, g in zip(twins, grads, strict=True):
        p.grad = g
    torch_adam.step()
    for a, b in zip(params, twins, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_a_sleeping_state_dict_is_refused_by_dense_semantics():
    host, params = run(5)
    twin = HostAdam([{"params": [p.detach().clone()]} for p in params], semantics="dense")
    with pytest.raises(ValueError, match=r"state_dict must hold no sleeping rows .* flush before"):
        twin.load_state_dict(host.state_dict())


def test_elements_that_never_moved_stay_where_they_are():
    p = torch.nn.Parameter(torch.randn(50, 4))
    before = p.detach().clone()
    host = HostAdam([p], lr=1.0)
    for _ in range(500):
        host.step(torch.tensor([0]), [torch.ones(1, 4)])
    host.flush()
    assert torch.equal(p[1:], before[1:])
    assert torch.isfinite(p).all()


def test_betas_may_change_only_after_a_flush():
    p = torch.nn.Parameter(torch.zeros(10, 2))
    q = torch.nn.Parameter(torch.zeros(10, 2, dtype=torch.float64))
    host, dense = HostAdam([p], lr=0.1), torch.optim.Adam([q], lr=0.1, eps=1e-15)

    def step():
        grads = torch.zeros(10, 2)
        grads[3] = 1
        host.step(torch.tensor([3]), [grads[3:4]])
        q.grad = grads.double()
        dense.step()

    step()
    for optimizer in (host, dense):
        optimizer.param_groups[0]["betas"] = (0.8, 0.99)
    with pytest.raises(ValueError, match=r"betas must stay \(0.9, 0.999\) while rows sleep, got"):
        host.step(torch.tensor([5]), [torch.ones(1, 2)])
    assert host.step_count == 1
    host.flush()
    for _ in range(30):
        step()
    host.flush()
    torch.testing.assert_close(p.detach().double(), q.detach(), rtol=1e-6, atol=1e-8)


@settings(max_examples=25, deadline=None)
@given(
    n_rows=st.integers(1, 40),
    widths=st.lists(st.integers(0, 19), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_tensors_side_by_side_in_a_table_equal_separate_ones(n_rows, widths, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(n_rows, sum(widths) + 3, generator=generator)
    views = [torch.nn.Parameter(part) for part in table[:, 3:].split(widths, dim=1)]
    alone = [torch.nn.Parameter(v.detach().clone()) for v in views]
    state = torch.zeros(n_rows, 2, sum(widths))
    side_by_side = {
        "exp_avg": list(state[:, 0].split(widths, dim=1)),
        "exp_avg_sq": list(state[:, 1].split(widths, dim=1)),
        "last_step": torch.zeros(n_rows, dtype=torch.int32),
    }

    def groups(params):
        return [{"params": [p], "lr": 0.1 / (k + 1)} for k, p in enumerate(params)]

    hosts = HostAdam(groups(views), state=side_by_side), HostAdam(groups(alone))
    for _ in range(6):
        rows = (torch.rand(n_rows, generator=generator) < 0.5).nonzero().flatten()
        grads = torch.randn(len(rows), sum(widths), generator=generator)
        hosts[0].step(rows, list(grads.split(widths, dim=1)))
        hosts[1].step(rows, [g.clone() for g in grads.split(widths, dim=1)])
    ahead = [
        host.lookahead(
            torch.arange(n_rows), out=list(torch.empty_like(table[:, 3:]).split(widths, 1))
        )
        for host in hosts
    ]
    for host in hosts:
        host.flush()
    for k, (view, own) in enumerate(zip(views, alone, strict=True)):
        assert torch.equal(view, own)
        assert torch.equal(ahead[0][k], view)
        assert torch.equal(ahead[1][k], view)
