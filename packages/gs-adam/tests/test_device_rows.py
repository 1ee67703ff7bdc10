# SPDX-License-Identifier: Apache-2.0
"""Rows that visit a device: what the host optimizer would have made of them."""

import copy

import numpy as np
import pytest
import torch

from gs_adam import DeviceRows, HostAdam

from .held_stream import held
from .slots import DEVICES, RATES, SHAPES, Host, Slots, assert_same, chosen, columns, rate, width_of


def visits(device, *, shapes=SHAPES, n_rows=60, n_steps=160, size=1.0, seed=0, **options):
    """The same steps on a host alone and on one whose rows visit slots; both when all are back."""
    generator = torch.Generator().manual_seed(seed)
    alone, host = (Host(n_rows, shapes, **options) for _ in range(2))
    slots = Slots(host, 20, device, (torch.int32, torch.int64)[seed % 2])
    for number in range(n_steps):
        step = alone.begin(rate(number))
        assert host.begin(rate(number)) == step
        seen = chosen(n_rows, 0.02 if number % 50 > 5 else 0.3, generator)
        grads = torch.randn(len(seen), width_of(shapes), generator=generator)
        grads *= size * 10 ** (-3 * torch.rand(grads.shape, generator=generator))
        alone.update(seen, grads, step)
        present = torch.tensor([int(i) in slots.slot_of for i in seen], dtype=torch.bool)
        wants = seen[~present & (torch.rand(len(seen), generator=generator) < 0.7)]
        slots.enter(wants[: 20 - len(slots.slot_of)])
        present = torch.tensor([int(i) in slots.slot_of for i in seen], dtype=torch.bool)
        if number % 3 == 0:
            slots.wake(seen[present], step)
        slots.update(seen[present], grads[present], step)
        host.update(seen[~present], grads[~present], step)
        alone.adam.end_step(step)
        host.adam.end_step(step)
        there = torch.tensor(sorted(slots.slot_of), dtype=torch.int64)
        slots.leave(there[torch.rand(len(there), generator=generator) < 0.05])
    slots.leave(torch.tensor(sorted(slots.slot_of), dtype=torch.int64))
    return alone, host


# The windows of these betas are 397, 65 and 50 steps; epsilon is negligible, matters, is all.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.9**8, 0.999**8)])
@pytest.mark.parametrize(
    ("size", "eps", "weight_decay"),
    [(1.0, 1e-15, 0.0), (1e-12, 1e-15, 0.05), (1e-20, 1e-15, 0.0), (1e-6, 1e-8, 0.1)],
)
def test_rows_that_visit_are_as_those_that_stay(device, betas, size, eps, weight_decay):
    options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
    alone, host = visits(device, size=size, **options)
    assert torch.equal(host.last_step, alone.last_step)
    assert_same(host.tables, alone.tables, device)
    for one in (alone, host):
        one.adam.flush()
    assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias_correction", ["global", "off"])
def test_sparse_rows_move_in_their_own_steps_alone(device, bias_correction):
    alone, host = visits(
        device, semantics="sparse", bias_correction=bias_correction, n_steps=60, weight_decay=0.1
    )
    assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 3), (0, 3)),
        ((1, 3), (3, 3)),
        ((1, 3), (8, 3)),
        ((3,), (0,), (7,), (6,)),
        ((1, 1), (1,), (1,), (1,)),
        ((700,), (800,)),
        ((1027,),),
        ((0, 3),),
    ],
    ids=lambda shapes: f"{len(shapes)} of {width_of(shapes)}",
)
def test_rows_may_have_any_width(device, seed, shapes):
    alone, host = visits(device, shapes=shapes, seed=seed, n_rows=30, n_steps=40)
    assert torch.equal(host.last_step, alone.last_step)
    if width_of(shapes):
        assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("size", "near"), [(1.0, 1), (1e-12, 0), (1e-20, 0)])
def test_rows_of_a_device_are_as_exact_as_dense_adam_in_float32(device, size, near):
    generator = torch.Generator().manual_seed(0)
    n_rows, shapes = 100, ((1, 3), (3, 3))
    host = Host(n_rows, shapes, lr=1e-2, eps=1e-15, betas=(0.8, 0.99))
    values = torch.rand(n_rows, 12, generator=generator) * 2 - 1
    host.tables[0].copy_(1 + 0.1 * values if near else 1e-3 * values)
    begin = host.tables[0].clone()
    groups = [
        [torch.nn.Parameter(p) for p in columns(begin.to(t), shapes)]
        for t in (torch.float32, torch.float64)
    ]
    dense = [
        torch.optim.Adam(
            [{"params": [p], "lr": RATES[k]} for k, p in enumerate(params)],
            foreach=False, eps=1e-15, betas=(0.8, 0.99),
        )
        for params in groups
    ]  # fmt: skip
    slots = Slots(host, n_rows, device)
    slots.enter(torch.arange(n_rows))
    for number in range(500):
        step = host.begin(rate(number))
        seen = chosen(n_rows, 0.05, generator)
        # Some sleep for longer than the window, 191 steps.
        seen = seen[(seen >= 20) | (number < 100) | (number > 400)]
        grads = size * torch.randn(len(seen), 12, generator=generator)
        slots.update(seen, grads, step)
        host.adam.end_step(step)
        full = torch.zeros(n_rows, 12).index_copy_(0, seen, grads)
        for optimizer, params in zip(dense, groups, strict=True):
            for k, (p, g) in enumerate(zip(params, columns(full, shapes), strict=True)):
                optimizer.param_groups[k]["lr"] = RATES[k] * rate(number)
                p.grad = g.to(p.dtype)
            optimizer.step()
    slots.leave(torch.arange(n_rows))
    host.adam.flush()
    single, double = (torch.cat([p.detach().flatten(1) for p in params], 1) for params in groups)
    ours = (host.tables[0].double() - double).abs().max()
    assert ours <= 2 * (single.double() - double).abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
def test_rows_sleep_through_thousands_of_steps(device, weight_decay):
    alone, host = (Host(10, weight_decay=weight_decay, betas=(0.7, 0.95)) for _ in range(2))
    slots = Slots(host, 12, device)
    slots.enter(torch.arange(10))
    generator = torch.Generator().manual_seed(0)
    for number in range(2600):
        step = alone.begin(rate(number))
        host.begin(rate(number))
        if number in (0, 1, 40, 700, 1100, 1101, 2590):
            ids = chosen(10, 0.6, generator)
            grads = torch.randn(len(ids), 48, generator=generator) * 1e-6
            alone.update(ids, grads, step)
            slots.update(ids, grads, step)
        alone.adam.end_step(step)
        host.adam.end_step(step)
    step = alone.begin()
    host.begin()
    slots.wake(torch.arange(10), step)
    slots.leave(torch.arange(10))
    assert (host.last_step == 2600).all()
    alone.adam.update(np.arange(10), columns(torch.zeros(10, 48), SHAPES), step=step)
    host.adam.update(np.arange(10), columns(torch.zeros(10, 48), SHAPES), step=step)
    assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_are_awake_are_not_touched(device):
    host = Host(6)
    slots = Slots(host, 6, device)
    slots.enter(torch.arange(6))
    host.adam.end_step(host.begin())
    step = host.begin()
    slots.update(torch.tensor([1, 4]), torch.ones(2, 48), step)
    host.adam.end_step(step)
    step = host.begin()
    before = [table.clone() for table in slots.tables]
    slots.wake(torch.tensor([4, 1]), step)
    assert all(torch.equal(a, b) for a, b in zip(slots.tables, before, strict=True))
    assert slots.last_step.tolist() == [0, 2, 0, 0, 2, 0]
    slots.wake(torch.tensor([5, 4]), step)
    assert slots.last_step.tolist() == [0, 2, 0, 0, 2, 2]


@pytest.mark.parametrize("device", DEVICES)
def test_order_alignment_and_strides_change_no_bit(device):
    generator = torch.Generator().manual_seed(2)
    results = []
    for kind in ("plain", "in order", "tables apart", "grads apart", "grads in wider rows"):
        host = Host(40)
        slots = Slots(host, 50, device)
        slots.enter(torch.arange(40))
        if kind == "tables apart":
            for k, table in enumerate(slots.tables):
                shifted = torch.empty(table.numel() + 1, device=device)[1:].view(table.shape)
                slots.tables[k] = shifted.copy_(table)
        generator.manual_seed(2)
        for _ in range(30):
            step = host.begin()
            ids = chosen(40, 0.3, generator)
            grads = torch.randn(len(ids), 48, generator=generator).to(device)
            if kind == "in order":
                order = torch.tensor([slots.slot_of[int(i)] for i in ids]).argsort()
                ids, grads = ids[order], grads[order.to(device)]
            if kind == "grads apart":
                grads = torch.cat([torch.zeros(1, device=device), grads.flatten()])[1:].view(-1, 48)
            if kind == "grads in wider rows":
                grads = torch.cat([grads, grads[:, :4]], 1)[:, :48]
            slots.update(ids, grads, step)
            host.adam.end_step(step)
        results.append([*slots.tables, slots.last_step])
    for other in results[1:]:
        for a, b in zip(other, results[0], strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
def test_no_rows_are_no_work(device, semantics):
    host = Host(5, semantics=semantics)
    slots = Slots(host, 5, device)
    slots.enter(torch.arange(5))
    before = [table.clone() for table in slots.tables]
    step = host.begin()
    slots.wake(torch.arange(0), step)
    slots.update(torch.arange(0), torch.zeros(0, 48), step)
    host.adam.end_step(step)
    assert all(torch.equal(a, b) for a, b in zip(slots.tables, before, strict=True))
    assert host.adam.step_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_open_steps_have_rates_of_their_own(device):
    alone, host = Host(8), Host(8)
    slots = Slots(host, 8, device)
    slots.enter(torch.arange(8))
    grads = torch.randn(8, 48, generator=torch.Generator().manual_seed(0))
    even, odd = torch.arange(0, 8, 2), torch.arange(1, 8, 2)
    for _ in range(3):
        for one in (alone, host):
            one.adam.end_step(one.begin())
        first, second = host.begin(1.0), host.begin(7.0)
        slots.update(odd, grads[odd], second)
        slots.update(even, grads[even], first)
        slots.wake(even, second)
        slots.update(even, grads[odd], second)
        for step in (first, second):
            host.adam.end_step(step)
        step = alone.begin(1.0)
        alone.update(even, grads[even], step)
        alone.adam.end_step(step)
        step = alone.begin(7.0)
        alone.update(odd, grads[odd], step)
        alone.update(even, grads[odd], step)
        alone.adam.end_step(step)
    slots.leave(torch.arange(8))
    assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
def test_steps_that_are_open_may_be_many_and_visited_in_any_order(device):
    """More steps than a device keeps the sleeps of, from the last to the first, then back."""
    n_open, n_rows = 7, 70
    alone, host = Host(n_rows), Host(n_rows)
    slots = Slots(host, n_rows, device)
    slots.enter(torch.arange(n_rows))
    grads = torch.randn(n_rows, 48, generator=torch.Generator().manual_seed(0))
    parts = [torch.arange(k, n_rows, n_open) for k in range(n_open)]
    for turn in range(4):
        rates = [rate(n_open * turn + k) for k in range(n_open)]
        steps = [host.begin(each) for each in rates]
        for k in reversed(range(n_open)):
            slots.update(parts[k], grads[parts[k]], steps[k])
        for k in range(turn, n_open - 1):
            slots.update(parts[k], grads[parts[k]], steps[k + 1])
        for step in steps:
            host.adam.end_step(step)
        for k, each in enumerate(rates):
            step = alone.begin(each)
            alone.update(parts[k], grads[parts[k]], step)
            if k > turn:
                alone.update(parts[k - 1], grads[parts[k - 1]], step)
            alone.adam.end_step(step)
    slots.leave(torch.arange(n_rows))
    assert torch.equal(host.last_step, alone.last_step)
    assert_same(host.tables, alone.tables, device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_restored_schedule_catches_up_the_same_rows(device):
    host = Host(9, betas=(0.5, 0.9))
    slots = Slots(host, 9, device)
    slots.enter(torch.arange(9))
    other = Host(9, betas=(0.5, 0.9))
    twin = Slots(other, 9, device)
    # What it has seen so far is not what it is about to load.
    for _ in range(3):
        step = other.begin(3.0)
        twin.enter(torch.arange(9)) if step == 1 else None
        twin.update(torch.arange(9), torch.ones(9, 48), step)
        other.adam.end_step(step)
    grads = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    for number in range(200):
        step = host.begin(rate(number))
        ids = torch.arange(number % 3, 9, 4) if number < 100 else torch.tensor([2])
        slots.update(ids, grads[ids], step)
        host.adam.end_step(step)
    other.adam.load_state_dict(copy.deepcopy(host.adam.state_dict()))
    twin.tables = [table.clone() for table in slots.tables]
    twin.last_step = slots.last_step.clone()
    twin.slot_of = dict(slots.slot_of)
    for number in range(3):
        for one, rows in ((host, slots), (other, twin)):
            step = one.begin(rate(number + 50))
            rows.update(torch.arange(9), grads, step)
            one.adam.end_step(step)
    assert all(torch.equal(a, b) for a, b in zip(slots.tables, twin.tables, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_betas_change_when_rows_are_awake(device):
    alone, host = Host(6), Host(6)
    slots = Slots(host, 6, device)
    slots.enter(torch.arange(6))
    for betas in ((0.9, 0.999), (0.6, 0.95), (0.8, 0.99)):
        for number in range(90):
            step = alone.begin()
            host.begin()
            ids = torch.tensor([number % 5, 5]) if number % 30 == 0 else torch.tensor([5])
            alone.update(ids, torch.ones(len(ids), 48), step)
            slots.update(ids, torch.ones(len(ids), 48), step)
            alone.adam.end_step(step)
            host.adam.end_step(step)
        alone.adam.flush()
        # Those that visit are caught up in a step that gives them no more.
        step = alone.begin()
        host.begin()
        slots.wake(torch.arange(6), step)
        alone.update(torch.arange(6), torch.zeros(6, 48), step)
        slots.update(torch.arange(6), torch.zeros(6, 48), step)
        for one in (alone, host):
            one.adam.end_step(step)
            one.adam.flush()
            for group in one.adam.param_groups:
                group["betas"] = betas
    slots.leave(torch.arange(6))
    assert_same(host.tables, alone.tables, device)


def arguments(slots):
    ids = torch.tensor([3, 0, 5])
    slot_ids, ids = slots.lists(ids)
    values = dict(zip(("param", "exp_avg", "exp_avg_sq"), slots.tables, strict=True))
    grads = torch.ones(3, 48, device=slots.device)
    return {**values, "slots": slot_ids, "last_step": slots.last_step, "ids": ids, "grads": grads}


BAD = {
    "an array": ("param", lambda t: t.cpu().numpy(), TypeError, r"param must be a torch tensor"),
    "double": ("exp_avg", lambda t: t.double(), TypeError, r"exp_avg must be float32, got"),
    "elsewhere": ("param", lambda t: t.to("meta"), ValueError, r"param must be on c\w+(:0)?, got"),
    "narrow": ("param", lambda t: t[:, :47], ValueError, r"param must have shape \(C, 48\), got"),
    "short": ("exp_avg_sq", lambda t: t[:6], ValueError, r"exp_avg_sq must have shape \(7, 48\)"),
    "turned": ("exp_avg", lambda t: t.T.contiguous().T, ValueError, "exp_avg must be contiguous"),
    "float slots": ("slots", lambda t: t.float(), TypeError, "slots must be int32 or int64, got"),
    "a mask": ("slots", lambda t: t > 1, TypeError, "slots must be int32 or int64, got torch.bool"),
    "a matrix": ("slots", lambda t: t[None], ValueError, "slots must have one dimension"),
    "a slot twice": (
        "slots",
        lambda t: t[[0, 1, 0]],
        ValueError,
        r"slots must be distinct, got \d",
    ),
    "no such slot": ("slots", lambda t: t + 7, IndexError, r"slots must be in \[0, 7\), got \d"),
    "slot -1": ("slots", lambda t: t - 7, IndexError, r"slots must be in \[0, 7\), got -\d"),
    "no last_step": ("last_step", lambda t: None, ValueError, "last_step must be given where rows"),
    "wide last_step": ("last_step", lambda t: t.long(), TypeError, "last_step must be int32, got"),
    "no ids": ("ids", lambda t: None, ValueError, "ids must be given where rows sleep, got None"),
    "fewer ids": ("ids", lambda t: t[:2], ValueError, "ids must be 3 as slots, got 2"),
    "an id twice": ("ids", lambda t: t[[0, 1, 1]], ValueError, "ids must be distinct, got 0 twice"),
    "no such row": ("ids", lambda t: t + 5, IndexError, r"ids must be in \[0, 10\), got 10"),
    "fewer grads": ("grads", lambda t: t[:2], ValueError, r"grads must have shape \(3, 48\), got"),
    "double grads": ("grads", lambda t: t.double(), TypeError, "grads must be float32, got"),
    "no grads": ("grads", lambda t: None, TypeError, "grads must be a torch tensor, got NoneType"),
    "grads with gaps": (
        "grads",
        lambda t: t.repeat(1, 2)[:, ::2],
        ValueError,
        r"grads must have contiguous rows, got strides \(96, 2\)",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments_change_nothing(device, bad, monkeypatch):
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    name, spoil, error, message = BAD[bad]
    host = Host(10)
    slots = Slots(host, 7, device)
    slots.enter(torch.arange(7))
    for _ in range(3):
        host.adam.end_step(host.begin())
    step = host.begin()
    before = [t.clone() for t in (*slots.tables, slots.last_step)]
    given = arguments(slots)
    given[name] = spoil(given[name])
    with pytest.raises(error, match=message):
        slots.rows.update(**given, step=step)
    if name != "grads":
        del given["grads"]
        with pytest.raises(error, match=message):
            slots.rows.wake(**given, step=step)
    for a, b in zip((*slots.tables, slots.last_step), before, strict=True):
        assert torch.equal(a, b)
    slots.rows.update(**arguments(slots), step=step)
    assert slots.last_step[[0, 3, 5]].tolist() == [4, 4, 4]


def test_last_steps_of_inference_mode_are_written_with_their_rows():
    plain, inferred = Host(10), Host(10)
    left = []
    for host in (plain, inferred):
        slots = Slots(host, 10, "cpu")
        slots.enter(torch.arange(10))
        if host is inferred:
            with torch.inference_mode():
                slots.last_step = slots.last_step.clone()
            assert slots.last_step.is_inference()
        for _ in range(3):
            step = host.begin()
            slots.wake(torch.tensor([6, 2]), step)
            slots.update(torch.tensor([6, 2]), torch.ones(2, 48), step)
            host.adam.end_step(step)
        left.append([*slots.tables, slots.last_step])
    for ours, theirs in zip(*left, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_is_updated_once_in_an_open_step(device, monkeypatch):
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    host = Host(10)
    slots = Slots(host, 7, device)
    slots.enter(torch.arange(7))
    step = host.begin()
    slots.update(torch.tensor([2, 6]), torch.ones(2, 48), step)
    before = [table.clone() for table in slots.tables]
    message = "ids must be updated once a step, got row 6 in step 1 after its update in step 1"
    with pytest.raises(ValueError, match=message):
        slots.update(torch.tensor([3, 6]), torch.ones(2, 48), step)
    with pytest.raises(ValueError, match=r"step must be an open step \(open: \[1\]\), got 2"):
        slots.update(torch.tensor([3]), torch.ones(1, 48), 2)
    host.adam.end_step(step)
    with pytest.raises(ValueError, match=r"step must be an open step \(open: \[\]\), got 1"):
        slots.wake(torch.tensor([3]), 1)
    assert all(torch.equal(a, b) for a, b in zip(slots.tables, before, strict=True))


def test_optimizers_that_rows_cannot_leave_are_refused():
    with pytest.raises(ValueError, match="adam must have deferred or sparse semantics, got dense"):
        DeviceRows(HostAdam([torch.zeros(3, 2)], semantics="dense"), "cpu")
    with pytest.raises(ValueError, match="adam must have skip_nonfinite=False, got True"):
        DeviceRows(HostAdam([torch.zeros(3, 2)], skip_nonfinite=True), "cpu")
    with pytest.raises(ValueError, match="device must be the CPU or a CUDA device, got meta"):
        DeviceRows(HostAdam([torch.zeros(3, 2)]), "meta")


def test_non_finite_gradients_are_counted_on_the_cpu():
    host = Host(4)
    slots = Slots(host, 4, "cpu")
    slots.enter(torch.arange(4))
    grads = torch.ones(3, 48)
    grads[1, 7] = torch.nan
    slots.update(torch.tensor([2, 0, 3]), grads, host.begin())
    assert host.adam.nonfinite_rows == 1


@pytest.mark.gpu
def test_one_visit_differs_from_the_hosts_by_two_ulp_at_most():
    for betas, weight_decay in (((0.9, 0.999), 0.0), ((0.5, 0.9), 0.1)):
        host = Host(2000, betas=betas, weight_decay=weight_decay)
        generator = torch.Generator().manual_seed(0)
        for number in range(120):
            step = host.begin(rate(number))
            seen = chosen(2000, 0.03, generator)
            grads = torch.randn(len(seen), 48, generator=generator)
            grads *= 10 ** (-20 * torch.rand(grads.shape, generator=generator))
            host.update(seen, grads, step)
            host.adam.end_step(step)
        slots = Slots(host, 2000, "cuda")
        slots.enter(torch.arange(2000))
        begin = host.tables[0].clone()
        step = host.begin()
        grads = torch.randn(2000, 48, generator=generator) * 1e-3
        slots.update(torch.arange(2000), grads, step)
        host.update(torch.arange(2000), grads, step)
        order, _ = slots.lists(torch.arange(2000))
        ours = [table[order].cpu() for table in slots.tables]
        ulp = 2**-23
        size = torch.maximum(host.tables[0].abs(), (host.tables[0] - begin).abs())
        assert ((ours[0] - host.tables[0]).abs() <= 2 * ulp * size).all()
        for a, b in zip(ours[1:], host.tables[1:], strict=True):
            assert ((a - b).abs() <= 2 * ulp * b.abs()).all()


@pytest.mark.gpu
@pytest.mark.asynchrony
def test_it_never_waits_for_the_device():
    host = Host(1000)
    slots = Slots(host, 1000, "cuda")
    slots.enter(torch.arange(1000))
    lists = slots.lists(torch.arange(0, 1000, 3))
    grads = torch.ones(334, 48, device="cuda")

    def once():
        step = host.begin()
        slots.rows.wake(*slots.tables, lists[0], slots.last_step, lists[1], step=step)
        slots.rows.update(*slots.tables, lists[0], slots.last_step, lists[1], grads, step=step)
        host.adam.end_step(step)

    once()  # allocates page-locked memory
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    with held():
        once()
        done.record()
        assert not done.query()
    assert done.query()


@pytest.mark.gpu
def test_streams_share_a_steps_tables():
    alone, host = Host(3000), Host(3000)
    slots = Slots(host, 3000, "cuda")
    slots.enter(torch.arange(3000))
    halves = torch.arange(0, 3000, 2), torch.arange(1, 3000, 2)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    lists = [slots.lists(half) for half in halves]
    grads = torch.randn(1500, 48, generator=torch.Generator().manual_seed(0))
    on_device = grads.cuda()
    torch.cuda.synchronize()
    for number in range(40):
        step = alone.begin(rate(number))
        host.begin(rate(number))
        # The stream that uploads is late, and the other one has to wait for it. A delay too short
        # hides a fault; the outcome of right code is the same.
        with torch.cuda.stream(streams[number % 2]):
            torch.cuda._sleep(1_000_000)
        for turn in (number % 2, 1 - number % 2):
            if number % 4 == 3 and turn:
                continue
            with torch.cuda.stream(streams[turn]):
                where, ids = lists[turn]
                slots.rows.update(*slots.tables, where, slots.last_step, ids, on_device, step=step)
            alone.update(halves[turn], grads, step)
        alone.adam.end_step(step)
        host.adam.end_step(step)
    torch.cuda.synchronize()
    slots.leave(torch.arange(3000))
    assert torch.equal(host.last_step, alone.last_step)
    assert_same(host.tables, alone.tables, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("bad", [name for name in BAD if BAD[name][0] not in ("slots", "ids")])
def test_bad_arguments_are_refused_in_the_same_words_where_ids_are_trusted(bad, monkeypatch):
    monkeypatch.delenv("GS_CHECK_INDEX", raising=False)
    name, spoil, error, message = BAD[bad]
    host = Host(10)
    slots = Slots(host, 7, "cuda")
    slots.enter(torch.arange(7))
    for _ in range(3):
        host.adam.end_step(host.begin())
    step = host.begin()
    before = [t.clone() for t in (*slots.tables, slots.last_step)]
    given = arguments(slots)
    given[name] = spoil(given[name])
    with pytest.raises(error, match=message):
        slots.rows.update(**given, step=step)
    for a, b in zip((*slots.tables, slots.last_step), before, strict=True):
        assert torch.equal(a, b)
