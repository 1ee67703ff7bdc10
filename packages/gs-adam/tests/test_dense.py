# SPDX-License-Identifier: Apache-2.0
"""Dense semantics: torch.optim.Adam, on the host, in one pass over the rows."""

import copy
import itertools
import threading

import numpy as np
import pytest
import torch

from gs_adam import HostAdam
from gs_adam._tensors import as_ids

SHAPES = ((3,), (3,), (4,), (), (1, 3), (15, 3))
RATES = (1.6e-4, 5e-3, 1e-3, 5e-2, 2.5e-3, 1.25e-4)


def make(n_rows, optimizer, *, seed=0, dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(seed)
    params = [
        torch.nn.Parameter(torch.randn(n_rows, *shape, generator=generator).to(dtype))
        for shape in SHAPES
    ]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, RATES, strict=True)]
    return params, optimizer(groups, eps=1e-15, **options)


def gradients(params, step, *, seen=0.5):
    """Gradients over six orders of magnitude; unseen rows have zeros."""
    generator = torch.Generator().manual_seed(1000 + step)
    unseen = torch.rand(len(params[0]), generator=generator) > seen
    grads = []
    for p in params:
        scale = 10 ** (6 * torch.rand(p.shape, generator=generator) - 6)
        grad = torch.randn(p.shape, generator=generator) * scale
        grad[unseen] = 0
        grads.append(grad)
    return grads


def set_grads(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = g.to(p.dtype)


def assert_close(ours, theirs):
    # Every operation may round once more or less than torch's: a few ulp of the value, and of what
    # one step adds, which bounds where values cross zero.
    for a, b, lr in zip(ours, theirs, RATES, strict=True):
        scale = b.abs() + 10 * lr
        assert ((a - b).abs() <= 8 * torch.finfo(torch.float32).eps * scale).all()


def assert_same_bits(a, b):
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


def test_two_hundred_steps_equal_torch_to_a_few_ulp():
    ours, host = make(257, HostAdam, semantics="dense")
    theirs, torch_adam = make(257, torch.optim.Adam)
    # Of the first moment, which crosses zero: the sum of its terms' sizes, and what is left of
    # roundings of one ulp in each step.
    sizes, ulps = ([torch.zeros_like(p) for p in ours] for _ in range(2))
    for step in range(200):
        grads = gradients(ours, step)
        set_grads(ours, grads)
        set_grads(theirs, grads)
        host.step()
        torch_adam.step()
        for size, ulp, grad in zip(sizes, ulps, grads, strict=True):
            size.mul_(0.9).add_(grad.abs(), alpha=0.1)
            ulp.mul_(0.9).add_(size)
    assert_close(ours, theirs)
    for a, b, ulp in zip(ours, theirs, ulps, strict=True):
        mine, reference = host.state[a], torch_adam.state[b]
        # Three roundings of half an ulp in one, two in the other.
        bound = 2.5 * torch.finfo(torch.float32).eps * ulp
        assert ((mine["exp_avg"] - reference["exp_avg"]).abs() <= bound).all()
        torch.testing.assert_close(
            mine["exp_avg_sq"], reference["exp_avg_sq"], rtol=2e-6, atol=1e-12
        )


@pytest.mark.parametrize("betas", [(0.9**8, 0.999**8), (0.0, 0.99), (0.5, 0.9)])
def test_other_betas_and_decoupled_decay_equal_adamw(betas):
    ours, host = make(65, HostAdam, semantics="dense", betas=betas, weight_decay=0.1)
    theirs, torch_adam = make(65, torch.optim.AdamW, betas=betas, weight_decay=0.1)
    for step in range(50):
        grads = gradients(ours, step)
        set_grads(ours, grads)
        set_grads(theirs, grads)
        host.step()
        torch_adam.step()
    assert_close(ours, theirs)


def test_thread_counts_and_parts_give_the_same_bits():
    n_rows = 9000  # more than one thread looks at when a step ends
    runs = [make(n_rows, HostAdam, semantics="dense", threads=threads) for threads in (1, 2, 5)]
    parts, in_parts = make(n_rows, HostAdam, semantics="dense", threads=2)
    for step in range(5):
        grads = gradients(parts, step)
        for params, host in runs:
            set_grads(params, grads)
            host.step()
        seen = grads[0].abs().sum(1).nonzero().flatten().int()
        number = in_parts.begin_step()
        # The later rows first, from two threads; unseen rows are left to end_step.
        halves = [seen[len(seen) // 3 :], seen[: len(seen) // 3]]
        threads = [
            threading.Thread(
                target=in_parts.update,
                args=(ids, [g[ids.long()] for g in grads]),
                kwargs={"step": number},
            )
            for ids in halves
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        in_parts.end_step(number)
    for params, _ in runs:
        assert_same_bits(params, parts)


def in_runs(*lengths):
    """A mask of 700 rows, taken and left in turn; the lengths come again and again."""
    repeated = itertools.islice(itertools.cycle(lengths), 700)
    return torch.cat([torch.full((n,), k % 2 == 0) for k, n in enumerate(repeated)])[:700]


MASKS = {
    "all": torch.ones(700, dtype=torch.bool),
    "none": torch.zeros(700, dtype=torch.bool),
    "one run": in_runs(600, 100),
    "single gaps": in_runs(13, 1, 40, 1),
    "single rows": in_runs(1, 1),
    "runs around the shortest that is one": in_runs(7, 1, 8, 1, 9, 1, 8, 2),
    # A thread's piece of 73 values a row is 128 rows.
    "runs to the ends of pieces": in_runs(128, 128),
    "runs to one before and one beyond": in_runs(127, 2, 127, 1, 128, 1),
    "runs between rows apart": in_runs(1, 3, 1, 1, 30, 2),
}


@pytest.mark.parametrize("case", MASKS)
@pytest.mark.parametrize("semantics", ["dense", "sparse"])
@pytest.mark.parametrize("has_table", [False, True])
def test_runs_of_rows_have_the_bits_of_single_ones(case, semantics, has_table):
    """With and without gradients, by position and by row; and a row is not updated twice."""
    widths, mask = [3, 20, 1, 49], MASKS[case]

    def columns(values):
        parts = values.split(widths, dim=1)
        return list(parts) if has_table else [part.clone() for part in parts]

    def fresh(threads):
        values = columns(torch.randn(700, 73, generator=torch.Generator().manual_seed(0)))
        groups = [{"params": [p], "lr": 0.1 / (k + 1)} for k, p in enumerate(values)]
        return values, HostAdam(groups, semantics=semantics, threads=threads, weight_decay=0.01)

    (whole, host), (single, other) = fresh(3), fresh(1)
    chosen, rest = mask.nonzero().flatten(), (~mask).nonzero().flatten()
    for number in range(4):
        grads = torch.randn(700, 73, generator=torch.Generator().manual_seed(number))
        step = host.begin_step()
        assert other.begin_step() == step
        host.update(mask if number % 2 else mask.numpy(), None, step=step)
        if number < 2:
            host.update(rest, columns(grads[rest]), step=step)
        else:
            host.update(rest.int(), columns(grads), step=step)
        for row in chosen.tolist():
            other.update(torch.tensor([row]), None, step=step)
        for row in rest.tolist():
            other.update(torch.tensor([row]), columns(grads[row : row + 1]), step=step)
        for row in (0, 350, 699):
            with pytest.raises(ValueError, match="rows must be updated once a step"):
                host.update(torch.tensor([row]), None, step=step)
        host.end_step(step)
        other.end_step(step)
    assert_same_bits(whole, single)
    for key in ("exp_avg", "exp_avg_sq"):
        assert_same_bits(
            *([h.state[p][key] for p in ps] for ps, h in ((whole, host), (single, other)))
        )


def test_rows_with_nonfinite_gradients_are_counted_in_runs():
    ours, host = make(300, HostAdam, semantics="dense", threads=2)
    grads = gradients(ours, 0, seen=1)
    for row in (0, 99, 100, 199):
        grads[row % 2][row] = float("nan")
    step = host.begin_step()
    host.update(torch.arange(50, 250), [g[:200] for g in grads], step=step)
    host.end_step(step)
    assert host.nonfinite_rows == 4
    bad = (ours[0].isnan().any(1) | ours[1].isnan().any(1)).nonzero().flatten()
    assert bad.tolist() == [50, 149, 150, 249]


PART = 1 << 17  # rows of a mask that one thread looks at


@pytest.mark.parametrize("n_rows", [0, 1, 7, 8, 9, 64, 1001, PART - 1, PART, PART + 9, 3 * PART])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_a_masks_ids_are_those_of_its_rows(n_rows, share):
    wide = torch.rand(2 * n_rows, generator=torch.Generator().manual_seed(n_rows)) < share
    for mask in (wide[:n_rows], wide[1::2], wide[:n_rows].numpy(), wide[::2].numpy()):
        ids = as_ids(mask, n_rows)
        assert ids.dtype == np.int32
        np.testing.assert_array_equal(ids, np.flatnonzero(mask))


@pytest.mark.parametrize("parts", [(), (0.3,), (0.3, 0.7), (0.0, 1.0)])
def test_rows_that_no_part_had_are_updated_at_the_end(parts):
    """A part that is refused counts for nothing."""
    params, ours = make(200, HostAdam, semantics="dense")
    twins, theirs = make(200, HostAdam, semantics="dense")
    bounds = [int(200 * part) for part in (*parts, 1.0)]
    for step in range(3):
        grads = gradients(params, step)
        now, first = ours.begin_step(), 0
        for last in bounds:
            rows = torch.arange(first, last)
            ours.update(rows, [g[first:last] for g in grads], step=now)
            if last > first:
                with pytest.raises(ValueError, match="once a step"):
                    ours.update(rows[-1:], None, step=now)
            first = last
            if first == 140:
                break
        ours.end_step(now)
        theirs.step(
            None, [g * (torch.arange(200) < first).view(-1, *[1] * (g.ndim - 1)) for g in grads]
        )
        assert_same_bits(params, twins)


def test_a_step_may_begin_before_the_last_one_ends():
    ours, host = make(100, HostAdam, semantics="dense")
    theirs, whole = make(100, HostAdam, semantics="dense")
    first, second = gradients(ours, 0, seen=1), gradients(ours, 1, seen=1)
    low, high = torch.arange(60), torch.arange(60, 100)
    one = host.begin_step()
    host.update(low, [g[:60] for g in first], step=one)
    two = host.begin_step()
    host.update(low, [g[:60] for g in second], step=two)
    with pytest.raises(ValueError, match=r"rows must be updated in the order of steps, got row"):
        host.update(high, [g[60:] for g in second], step=two)
    host.update(high, [g[60:] for g in first], step=one)
    host.end_step(one)
    host.update(high, second, step=two)
    host.end_step(two)
    for grads in (first, second):
        whole.step(grads=grads)
    assert_same_bits(ours, theirs)


def test_rates_hold_from_the_beginning_of_a_step():
    ours, host = make(10, HostAdam, semantics="dense")
    theirs, other = make(10, HostAdam, semantics="dense")
    grads = gradients(ours, 0)
    step = host.begin_step()
    for group in host.param_groups:
        group["lr"] = 1e9
    host.update(None, grads, step=step)
    host.end_step(step)
    other.step(grads=grads)
    assert_same_bits(ours, theirs)


def test_learning_rate_schedulers_drive_it():
    ours, host = make(20, HostAdam, semantics="dense")
    theirs, torch_adam = make(20, torch.optim.Adam)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9) for o in (host, torch_adam)]
    for step in range(20):
        grads = gradients(ours, step)
        set_grads(theirs, grads)
        number = host.begin_step()
        host.update(None, grads, step=number)
        host.end_step(number)
        torch_adam.step()
        for scheduler in schedulers:
            scheduler.step()  # would warn if it had not seen the step
    assert_close(ours, theirs)


def test_state_dicts_go_round_through_torch():
    ours, host = make(33, HostAdam, semantics="dense")
    theirs, torch_adam = make(33, torch.optim.Adam)
    straight, uninterrupted = make(33, HostAdam, semantics="dense")
    for step in range(10):
        grads = gradients(ours, step)
        uninterrupted.step(grads=grads)
        if step < 5:
            host.step(grads=grads)
    torch_adam.load_state_dict(copy.deepcopy(host.state_dict()))
    state = torch_adam.state_dict()
    assert sorted(state["state"][0]) == ["exp_avg", "exp_avg_sq", "step"]
    assert float(state["state"][0]["step"]) == 5
    again, resumed = make(33, HostAdam, semantics="dense", seed=1)
    with torch.no_grad():
        for a, b, t in zip(again, ours, theirs, strict=True):
            a.copy_(b)
            t.copy_(b)
    resumed.load_state_dict(copy.deepcopy(state))
    assert resumed.step_count == 5
    for step in range(5, 10):
        grads = gradients(ours, step)
        resumed.step(grads=grads)
        set_grads(theirs, grads)
        torch_adam.step()
    assert_same_bits(again, straight)
    assert_close(again, theirs)


def test_state_keys_appear_with_the_first_step():
    params, host = make(4, HostAdam, semantics="dense")
    assert not host.state
    host.step(grads=gradients(params, 0))
    for p in params:
        assert sorted(host.state[p]) == ["exp_avg", "exp_avg_sq", "step"]
        assert host.state[p]["exp_avg"].shape == p.shape
        assert float(host.state[p]["step"]) == 1
    assert sorted(host.state_dict()) == ["param_groups", "state"]


def test_rows_that_others_add_and_drop_are_followed():
    """Densification in others' code replaces parameters and resizes what it finds in the state."""
    ours, host = make(50, HostAdam, semantics="dense")
    theirs, torch_adam = make(50, torch.optim.Adam)
    keep = torch.arange(0, 50, 3)

    def resize(params, optimizer):
        for k, group in enumerate(optimizer.param_groups):
            old = group["params"][0]
            new = torch.nn.Parameter(torch.cat([old[keep], old[:7]]).detach())
            state = optimizer.state.pop(old)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.cat([state[key][keep], torch.zeros_like(old[:7])])
            optimizer.state[new] = state
            group["params"] = [new]
            params[k] = new

    for step in range(20):
        if step == 10:
            resize(ours, host)
            resize(theirs, torch_adam)
        grads = gradients(ours, step)
        set_grads(ours, grads)
        set_grads(theirs, grads)
        host.step()
        torch_adam.step()
    assert host.n_rows == len(keep) + 7
    assert_close(ours, theirs)


def test_storage_that_moves_is_followed():
    ours, host = make(12, HostAdam, semantics="dense")
    theirs, torch_adam = make(12, torch.optim.Adam)
    for step in range(6):
        if step == 3:
            for p in (*ours, *theirs):
                p.data = p.data.flip(0).contiguous()
            for optimizer in (host, torch_adam):
                for state in optimizer.state.values():
                    for key in ("exp_avg", "exp_avg_sq"):
                        state[key] = state[key].flip(0).contiguous()
        grads = gradients(ours, step)
        set_grads(theirs, grads)
        host.step(grads=grads)
        torch_adam.step()
    assert_close(ours, theirs)


def test_replaced_parameters_keep_their_state():
    ours, host = make(9, HostAdam, semantics="dense")
    theirs, untouched = make(9, HostAdam, semantics="dense")
    for step in range(4):
        grads = gradients(ours, step)
        if step == 2:
            ours = [torch.nn.Parameter(p.detach().clone()) for p in ours]
            for group, p in zip(host.param_groups, ours, strict=True):
                group["params"] = [p]
        host.step(grads=grads)
        untouched.step(grads=grads)
    assert len(host.state) == len(ours)
    assert_same_bits(ours, theirs)


def test_no_rows_are_no_work():
    params, host = make(0, HostAdam, semantics="dense")
    for step in range(3):
        host.step(grads=gradients(params, step))
    assert host.step_count == 3


def test_columns_of_one_table_are_updated_in_place():
    table = torch.randn(40, 48)
    separate = [torch.nn.Parameter(table[:, :3].clone()), torch.nn.Parameter(table[:, 3:].clone())]
    views = [torch.nn.Parameter(table[:, :3]), torch.nn.Parameter(table[:, 3:])]
    rates = (2.5e-3, 1.25e-4)
    a, b = (
        HostAdam(
            [{"params": [p], "lr": lr} for p, lr in zip(params, rates, strict=True)],
            semantics="dense",
        )
        for params in (views, separate)
    )
    grads = torch.randn(40, 48)
    for _ in range(3):
        a.step(grads=[grads[:, :3], grads[:, 3:]])
        b.step(grads=[grads[:, :3].clone(), grads[:, 3:].clone()])
    assert torch.equal(table[:, :3], separate[0])
    assert torch.equal(table[:, 3:], separate[1])


@pytest.mark.parametrize("semantics", ["dense", "sparse"])
@pytest.mark.parametrize(
    "widths",
    [(1, 1), (3, 3), (1, 2, 3), (3, 5), (7, 1, 1), (3, 9), (5, 6, 4), (3, 13), (3, 20), (3, 24)],
)
def test_columns_of_narrow_tables_keep_their_own_rates(widths, semantics):
    """Rows that follow one another without a gap are no vector's multiple."""
    table = torch.randn(40, sum(widths))
    views = table.split(widths, dim=1)
    apart = [view.clone() for view in views]
    ours, theirs = (
        HostAdam([{"params": [p], "lr": 0.1**k} for k, p in enumerate(params)], semantics=semantics)
        for params in (views, apart)
    )
    for number in range(4):
        grads = list(torch.randn(40, sum(widths)).split(widths, dim=1))
        rows = torch.arange(number, 37)
        ours.step(rows, [grad[rows] for grad in grads])
        theirs.step(rows, [grad[rows] for grad in grads])
    assert_same_bits(views, apart)
    step = ours.begin_step(), theirs.begin_step()
    for host, number in zip((ours, theirs), step, strict=True):
        host.update(torch.arange(40), None, step=number)
        host.end_step(number)
    assert_same_bits(views, apart)
