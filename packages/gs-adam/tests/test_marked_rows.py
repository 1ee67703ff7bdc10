# SPDX-License-Identifier: Apache-2.0
"""Marks choose among the rows of a call of `DeviceRows`, without a word to the host."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .held_stream import held
from .slots import DEVICES, SHAPES, Host, Slots, width_of

OF_WIDTH = {"quads": SHAPES, "single": ((3,), (0,), (7,)), "wider than a block": ((700,), (900,))}


def begun(semantics, device, shapes, seed, n_rows=12):
    """A host with a step open, and slots with its rows, some of which sleep."""
    host = Host(n_rows, shapes, semantics=semantics, betas=(0.5, 0.9))
    slots = Slots(host, n_rows + 2, device, (torch.int32, torch.int64)[seed % 2])
    slots.enter(torch.arange(n_rows))
    generator = torch.Generator().manual_seed(seed)
    for number in range(70):  # the window is 65 steps
        step = host.begin()
        ids = torch.arange(n_rows) if number == 0 else torch.arange(number % 5, n_rows, 4)
        if number in (0, 1, 40, 69):
            grads = torch.randn(len(ids), width_of(shapes), generator=generator)
            slots.update(ids, grads * 10 ** (-12.0 * (seed % 3)), step)
        host.adam.end_step(step)
    return host, slots, host.begin()


def call(slots, name, ids, grads, step, marks=None):
    """`wake`, or an update, of rows in any order."""
    where, ids = slots.lists(ids)
    given = {} if marks is None else {"marks": marks.to(slots.device)}
    if name == "update":
        given["grads"] = grads.to(slots.device)
    getattr(slots.rows, name)(*slots.tables, where, slots.last_step, ids, step=step, **given)


def left(slots):
    """All that a call may write."""
    kept = [table.nan_to_num().cpu() for table in slots.tables]
    return kept if slots.last_step is None else [*kept, slots.last_step.cpu()]


def compare(semantics, device, shapes, name, marks, order, seed):
    """Marked rows of a call, and those rows alone."""
    (_, ours, step), (_, theirs, _) = (begun(semantics, device, shapes, seed) for _ in range(2))
    generator = torch.Generator().manual_seed(seed + 1)
    grads = torch.randn(len(order), width_of(shapes), generator=generator)
    grads[~marks] = torch.nan  # never read
    call(ours, name, order, grads, step, marks)
    call(theirs, name, order[marks], grads[marks], step)
    for a, b in zip(left(ours), left(theirs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@pytest.mark.parametrize("name", ["wake", "update"])
@settings(max_examples=40, deadline=None)
@given(
    order=st.permutations(range(12)),
    marks=st.lists(st.booleans(), max_size=12),
    width=st.sampled_from(sorted(OF_WIDTH)),
    seed=st.integers(0, 5),
)
def test_marked_rows_are_as_if_they_alone_had_been_given(
    semantics, name, order, marks, width, seed
):
    marks = torch.tensor(marks, dtype=torch.bool)
    order = torch.tensor(order)[: len(marks)]
    compare(semantics, "cpu", OF_WIDTH[width], name, marks, order, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@pytest.mark.parametrize("name", ["wake", "update"])
@pytest.mark.parametrize("width", OF_WIDTH)
@pytest.mark.parametrize("seed", range(6))
def test_marked_rows_of_a_gpu_are_as_if_they_alone_had_been_given(semantics, name, width, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(12, generator=generator)[: 12 - seed % 3]
    marks = torch.rand(len(order), generator=generator) < (0.5, 0.9)[seed % 2]
    compare(semantics, "cuda", OF_WIDTH[width], name, marks, order, seed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@pytest.mark.parametrize("name", ["wake", "update"])
@pytest.mark.parametrize("count", [0, 12])
def test_without_a_mark_nothing_changes(device, semantics, name, count):
    host, slots, step = begun(semantics, device, SHAPES, 0)
    before = left(slots)
    ids = torch.arange(count)
    call(slots, name, ids, torch.ones(count, 48), step, torch.zeros(count, dtype=torch.bool))
    for a, b in zip(left(slots), before, strict=True):
        assert torch.equal(a, b)
    host.adam.end_step(step)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["wake", "update"])
def test_all_marks_are_as_none(device, name):
    (_, ours, step), (_, theirs, _) = (begun("deferred", device, SHAPES, 1) for _ in range(2))
    ids = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    call(ours, name, ids, torch.ones(12, 48), step, torch.ones(12, dtype=torch.bool))
    call(theirs, name, ids, torch.ones(12, 48), step)
    for a, b in zip(left(ours), left(theirs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_are_not_marked_may_have_been_updated(device, monkeypatch):
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    _, slots, step = begun("deferred", device, SHAPES, 0)
    ids = torch.tensor([3, 8, 5])
    call(slots, "update", ids, torch.ones(3, 48), step, torch.tensor([True, False, True]))
    before = left(slots)
    with pytest.raises(ValueError, match="ids must be updated once a step, got row 5 in step 71"):
        call(slots, "update", ids, torch.ones(3, 48), step, torch.tensor([False, True, True]))
    for a, b in zip(left(slots), before, strict=True):
        assert torch.equal(a, b)
    call(slots, "update", ids, torch.ones(3, 48), step, torch.tensor([False, True, False]))
    assert slots.last_step.tolist().count(step) == 3


BAD = {
    "a list": (lambda m, slots: m.tolist(), TypeError, "marks must be a torch tensor, got list"),
    "bytes": (lambda m, slots: m.byte(), TypeError, r"marks must be bool, got torch\.uint8"),
    "fewer": (lambda m, slots: m[:2], ValueError, "marks must be 3 as slots, got 2"),
    "a column": (lambda m, slots: m[:, None], ValueError, "marks must have one dimension"),
    "with gaps": (
        lambda m, slots: m.repeat_interleave(2)[::2],
        ValueError,
        r"marks must have one dimension and be contiguous, got shape \(3,\) and strides \(2,\)",
    ),
    "elsewhere": (
        lambda m, slots: m.to("meta"),
        ValueError,
        r"marks must be on c\w+(:0)?, got meta",
    ),
    "of a table": (
        lambda m, slots: slots.tables[2].view(torch.bool).flatten()[96:99],
        ValueError,
        "marks must have memory of its own, got some of exp_avg_sq",
    ),
    "of last_step": (
        lambda m, slots: slots.last_step.view(torch.bool)[-3:],
        ValueError,
        "marks must have memory of its own, got some of last_step",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["wake", "update"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_marks_change_nothing(device, name, bad):
    spoil, error, message = BAD[bad]
    _, slots, step = begun("deferred", device, SHAPES, 0)
    before = left(slots)
    where, ids = slots.lists(torch.tensor([3, 8, 5]))
    marks = spoil(torch.tensor([True, False, True], device=device), slots)
    given = {"grads": torch.ones(3, 48, device=device)} if name == "update" else {}
    with pytest.raises(error, match=message):
        getattr(slots.rows, name)(
            *slots.tables, where, slots.last_step, ids, step=step, marks=marks, **given
        )
    for a, b in zip(left(slots), before, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "other"), [("slots", "exp_avg"), ("ids", "last_step")])
def test_lists_of_rows_are_apart_from_what_is_written(device, name, other):
    _, slots, step = begun("deferred", device, SHAPES, 0)
    where, ids = slots.lists(torch.tensor([3, 8, 5]))
    given = {"slots": where, "ids": ids, "last_step": slots.last_step, "exp_avg": slots.tables[1]}
    given[name] = given[other].view(torch.int32).flatten()[3:6]
    with pytest.raises(ValueError, match=f"{name} must have memory .* got some of {other}"):
        slots.rows.wake(param=slots.tables[0], exp_avg_sq=slots.tables[2], step=step, **given)


@pytest.mark.gpu
def test_marks_are_made_and_read_on_the_stream():
    _, slots, step = begun("deferred", "cuda", SHAPES, 0)
    where, ids = slots.lists(torch.arange(12))
    marks = torch.zeros(12, dtype=torch.bool, device="cuda")
    chosen = torch.arange(12, device="cuda") % 3 == 0
    grads = torch.ones(12, 48, device="cuda")

    def update():
        slots.rows.update(*slots.tables, where, slots.last_step, ids, grads, step=step, marks=marks)

    slots.rows.wake(*slots.tables, where, slots.last_step, ids, step=step)  # uploads the tables
    marks.copy_(chosen.logical_not())
    marks.zero_()
    update()  # of no row: kernels are loaded
    torch.cuda.synchronize()
    with held():
        marks.copy_(chosen)
        update()
        done = torch.cuda.Event()
        done.record()
        assert not done.query()
    done.synchronize()
    assert (slots.last_step == step).nonzero().flatten().tolist() == [0, 3, 6, 9]
