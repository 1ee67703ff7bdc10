# SPDX-License-Identifier: Apache-2.0
"""Rows of a device, caught up elsewhere: the bits that a flush would leave."""

import pytest
import torch

from gs_adam import DeviceRows, RowSchedule

from .slots import DEVICES, SHAPES, Host, Slots, chosen, rate, width_of


def asleep(device, *, n_rows=60, shapes=SHAPES, n_steps=160, size=1.0, seed=0, **options):
    """Slots of rows that have slept for different times."""
    generator = torch.Generator().manual_seed(seed)
    host = Host(n_rows, shapes, **options)
    slots = Slots(host, n_rows + 7, device, (torch.int32, torch.int64)[seed % 2])
    slots.enter(torch.arange(n_rows))
    for number in range(n_steps):
        step = host.begin(rate(number))
        seen = chosen(n_rows, 0.03, generator)
        seen = seen[(seen >= 10) | (number < 20)]  # ten sleep for longer than any window
        grads = torch.randn(len(seen), width_of(shapes), generator=generator)
        grads *= size * 10 ** (-3 * torch.rand(grads.shape, generator=generator))
        slots.update(seen, grads, step)
        host.adam.end_step(step)
    return slots


def everything(slots):
    tables = [*slots.tables, *([] if slots.last_step is None else [slots.last_step])]
    return [table.clone() for table in tables]


def assert_flush_leaves(slots, asked):
    """What `lookahead` says of rows, in any order, is what `flush` leaves, bit for bit."""
    before = everything(slots)
    at, ids = slots.lists(asked)
    ahead = slots.rows.lookahead(*slots.tables, at, slots.last_step, ids)
    for ours, old in zip(everything(slots), before, strict=True):
        assert torch.equal(ours.nan_to_num(), old.nan_to_num())
    slots.rows.flush(*slots.tables, at, slots.last_step, ids)
    assert torch.equal(torch.cat(ahead, 1), slots.tables[0][at.long()])
    assert [part.shape[1] for part in ahead] == [width_of([s]) for s in slots.host.shapes]
    return ahead, before


# Windows of 397, 65 and 50 steps; epsilon is negligible, matters, is all.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.9**8, 0.999**8)])
@pytest.mark.parametrize(
    ("size", "eps", "weight_decay"),
    [(1.0, 1e-15, 0.0), (1e-12, 1e-15, 0.05), (1e-20, 1e-15, 0.0), (1e-6, 1e-8, 0.1)],
)
def test_looking_ahead_gives_the_bits_that_flush_leaves(device, betas, size, eps, weight_decay):
    slots = asleep(device, size=size, betas=betas, eps=eps, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(9)
    ahead, before = assert_flush_leaves(slots, chosen(60, 0.7, generator))
    at = slots.lists(chosen(60, 0.7, generator.manual_seed(9)))[0].long()
    assert not torch.equal(torch.cat(ahead, 1), before[0][at])
    # All of them, in order, some of which are awake now.
    in_order = torch.tensor(sorted(slots.slot_of, key=slots.slot_of.__getitem__))
    assert_flush_leaves(slots, in_order)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "shapes",
    [((1, 3), (0, 3)), ((3,), (0,), (7,), (6,)), ((1, 1), (1,), (1,), (1,)), ((1027,),), ((0, 3),)],
    ids=lambda shapes: f"{len(shapes)} of {width_of(shapes)}",
)
def test_rows_that_are_looked_at_may_have_any_width(device, seed, shapes):
    slots = asleep(device, shapes=shapes, seed=seed, n_rows=20, n_steps=40)
    assert_flush_leaves(slots, torch.arange(20))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias_correction", ["global", "off"])
def test_sparse_rows_are_copied(device, bias_correction):
    slots = asleep(device, semantics="sparse", bias_correction=bias_correction, n_steps=30)
    assert_flush_leaves(slots, torch.arange(60))


@pytest.mark.parametrize("device", DEVICES)
def test_before_the_first_step_rows_are_copied(device):
    slots = Slots(Host(8), 8, device)
    slots.enter(torch.arange(8))
    assert_flush_leaves(slots, torch.arange(7, -1, -1))
    assert_flush_leaves(slots, torch.arange(0))


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_may_be_the_callers_in_the_parameters_shapes(device):
    slots = asleep(device, n_steps=30)
    at, ids = slots.lists(torch.tensor([5, 50, 7]))
    out = [torch.full((3, *shape), torch.nan, device=device) for shape in SHAPES]
    given = slots.rows.lookahead(*slots.tables, at, slots.last_step, ids, out=out)
    assert all(a is b for a, b in zip(given, out, strict=True))
    expected = slots.rows.lookahead(*slots.tables, at, slots.last_step, ids)
    for a, b in zip(out, expected, strict=True):
        assert torch.equal(a.flatten(1), b)


@pytest.mark.parametrize("device", DEVICES)
def test_one_list_serves_tables_that_hold_last_steps_beside_the_rows(device):
    steps = RowSchedule([{"lr": 0.1}, {"lr": 0.2}])
    rows = DeviceRows(steps, device, widths=[3, 2])
    tables = [torch.rand(9, 5).to(device) for _ in range(3)]
    last_step = torch.zeros(9, dtype=torch.int32, device=device)
    first = torch.tensor([0, 4, 8], device=device)
    for _ in range(4):
        step = steps.begin_step()
        grads = torch.ones(len(first), 5, device=device)
        rows.update(*tables, first, last_step, first, grads, step=step)
        steps.end_step(step)
        first = first[:1]
    at = torch.tensor([8, 0, 4, 2], device=device)
    ahead = torch.cat(rows.lookahead(*tables, at, last_step, at), 1)
    rows.flush(*tables, at, last_step, at)
    assert torch.equal(ahead, tables[0][at])


def arguments(slots):
    at, ids = slots.lists(torch.tensor([3, 0, 5]))
    values = dict(zip(("param", "exp_avg", "exp_avg_sq"), slots.tables, strict=True))
    out = [torch.zeros(3, width_of([shape]), device=slots.device) for shape in SHAPES]
    return {**values, "slots": at, "last_step": slots.last_step, "ids": ids, "out": out}


BAD = {
    "double": ("exp_avg", lambda t: t.double(), TypeError, r"exp_avg must be float32, got"),
    "elsewhere": ("param", lambda t: t.to("meta"), ValueError, r"param must be on c\w+(:0)?, got"),
    "narrow": ("param", lambda t: t[:, :47], ValueError, r"param must have shape \(C, 48\), got"),
    "float slots": ("slots", lambda t: t.float(), TypeError, "slots must be int32 or int64, got"),
    "no such slot": ("slots", lambda t: t + 7, IndexError, r"slots must be in \[0, 7\), got \d"),
    "no last_step": ("last_step", lambda t: None, ValueError, "last_step must be given where rows"),
    "fewer ids": ("ids", lambda t: t[:2], ValueError, "ids must be 3 as slots, got 2"),
    "no such row": ("ids", lambda t: t + 5, IndexError, r"ids must be in \[0, 10\), got 10"),
    "one tensor": ("out", lambda t: t[0], TypeError, "out must be a list of tensors, got Tensor"),
    "too few": ("out", lambda t: t[:1], ValueError, "out must be 2 tensors, one a parameter"),
    "an array": ("out", lambda t: [t[0].cpu().numpy(), t[1]], TypeError, r"out\[0\] must be a tor"),
    "double out": ("out", lambda t: [t[0], t[1].double()], TypeError, r"out\[1\] must be float32"),
    "out elsewhere": (
        "out",
        lambda t: [t[0].to("meta"), t[1]],
        ValueError,
        r"out\[0\] must be on c\w+(:0)?, got meta",
    ),
    "fewer rows": (
        "out",
        lambda t: [t[0], t[1][:2]],
        ValueError,
        r"out\[1\] must have 3 rows of 45 values, got shape \(2, 45\)",
    ),
    "gaps": (
        "out",
        lambda t: [t[0].repeat(1, 2)[:, :3], t[1]],
        ValueError,
        r"out\[0\] must be contiguous, got strides \(6, 1\)",
    ),
    "twice": (
        "out",
        lambda t: [t[1].view(-1)[:9].view(3, 3), t[1]],
        ValueError,
        r"out\[1\] must have memory of its own, got some of out\[0\]",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments_of_a_look_write_nothing(device, bad, monkeypatch):
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    name, spoil, error, message = BAD[bad]
    host = Host(10)
    slots = Slots(host, 7, device)
    slots.enter(torch.arange(7))
    host.adam.end_step(host.begin())
    before, given = everything(slots), arguments(slots)
    out = given["out"]
    given[name] = spoil(given[name])
    with pytest.raises(error, match=message):
        slots.rows.lookahead(**given)
    assert not any(part.any() for part in out)
    for a, b in zip(everything(slots), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["param", "exp_avg", "exp_avg_sq"])
def test_outputs_in_the_tables_are_refused(device, name):
    slots = asleep(device, n_rows=10, n_steps=3)
    given = arguments(slots)
    given["out"][0] = given[name].view(-1)[-9:].view(3, 3)
    with pytest.raises(ValueError, match=rf"out\[0\] must have memory of its own, got .* {name}"):
        slots.rows.lookahead(**given)


@pytest.mark.parametrize("device", DEVICES)
def test_looking_ahead_needs_steps_to_end_first(device):
    host = Host(10)
    slots = Slots(host, 10, device)
    slots.enter(torch.arange(10))
    step = host.begin()
    with pytest.raises(RuntimeError, match=r"lookahead\(\) needs steps \[1\] to end first"):
        slots.rows.lookahead(**arguments(slots))
    host.adam.end_step(step)
    slots.rows.lookahead(**arguments(slots))
