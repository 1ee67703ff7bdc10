# SPDX-License-Identifier: Apache-2.0
"""`DeviceRows.wake` counts marked rows, and those of them that slept, where they are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_adam import DeviceRows, RowSchedule

from .held_stream import held
from .slots import DEVICES, SHAPES, Host, Slots, width_of

WIDTHS = {"quads": SHAPES, "single": ((3,), (0,), (7,)), "wider than a block": ((700,), (900,))}
N_ROWS = 12


def begun(semantics, device, shapes, seed=0):
    """Slots whose rows were updated in different steps, and a step that is open."""
    host = Host(N_ROWS, shapes, semantics=semantics)
    slots = Slots(host, N_ROWS + 2, device, (torch.int32, torch.int64)[seed % 2])
    slots.enter(torch.arange(N_ROWS))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(5):
        step = host.begin()
        ids = (torch.rand(N_ROWS, generator=generator) < 0.4).nonzero().flatten()
        slots.update(ids, torch.ones(len(ids), width_of(shapes)), step)
        host.adam.end_step(step)
    return slots, host.begin()


def wake(slots, ids, step, marks, counts):
    where, ids = slots.lists(ids)
    marks = None if marks is None else marks.to(slots.device)
    slots.rows.wake(
        *slots.tables, where, slots.last_step, ids, step=step, marks=marks, counts=counts
    )


def expected(slots, ids, step, marks):
    """The same two numbers, by last_step as it is now."""
    marked = ids if marks is None else ids[marks]
    if slots.last_step is None:
        return [len(marked), 0]
    return [len(marked), int((slots.last_step.cpu()[marked] < step - 1).sum())]


def compare(semantics, device, width, order, marks, seed):
    slots, step = begun(semantics, device, WIDTHS[width], seed)
    counts = torch.tensor([7, 2**40], device=device)
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    total = torch.tensor([7, 2**40])
    for ids in (first, second, order):  # the last one finds rows that the others have woken
        chosen = None if marks is None else marks[: len(ids)]
        total += torch.tensor(expected(slots, ids, step, chosen))
        wake(slots, ids, step, chosen, counts)
        assert counts.tolist() == total.tolist()
    untouched, _ = begun(semantics, device, WIDTHS[width], seed)
    for ids in (first, second, order):
        wake(untouched, ids, step, None if marks is None else marks[: len(ids)], None)
    for ours, theirs in zip(slots.tables, untouched.tables, strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@settings(max_examples=40, deadline=None)
@given(
    order=st.permutations(range(N_ROWS)),
    marks=st.none() | st.lists(st.booleans(), min_size=N_ROWS, max_size=N_ROWS),
    n_rows=st.integers(0, N_ROWS),
    width=st.sampled_from(sorted(WIDTHS)),
    seed=st.integers(0, 3),
)
def test_rows_and_sleepers_are_added_to_the_counts(semantics, order, marks, n_rows, width, seed):
    marks = None if marks is None else torch.tensor(marks)
    compare(semantics, "cpu", width, torch.tensor(order)[:n_rows], marks, seed)


@pytest.mark.gpu
@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_gpu_adds_the_same_to_the_counts(semantics, width, is_marked, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(N_ROWS, generator=generator)[: N_ROWS - 3 * (seed % 2)]
    marks = torch.rand(N_ROWS, generator=generator) < 0.6 if is_marked else None
    compare(semantics, "cuda", width, order, marks, seed)


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_of_many_rows_count_each_row_once(device):
    n_rows = 20_000
    schedule = RowSchedule([{}, {}])
    rows = DeviceRows(schedule, device, widths=[3, 45])
    for _ in range(4):
        schedule.end_step(schedule.begin_step())
    step = schedule.begin_step()
    generator = torch.Generator().manual_seed(0)
    last_step = torch.randint(0, step, (n_rows,), generator=generator, dtype=torch.int32)
    marks = torch.rand(n_rows, generator=generator) < 0.7
    n_slept = int(((last_step < step - 1) & marks).sum())
    tables = [torch.ones(n_rows, 48, device=device) for _ in range(3)]
    ids = torch.arange(n_rows, device=device)
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    last_step, marks = last_step.to(device), marks.to(device)
    rows.wake(*tables, ids, last_step, ids, step=step, marks=marks, counts=counts)
    assert counts.tolist() == [int(marks.sum()), n_slept]
    rows.wake(*tables, ids, last_step, ids, step=step, marks=marks, counts=counts)
    assert counts.tolist() == [2 * int(marks.sum()), n_slept]


@pytest.mark.parametrize("device", DEVICES)
def test_in_the_first_step_no_row_has_slept(device):
    host = Host(N_ROWS)
    slots = Slots(host, N_ROWS, device)
    slots.enter(torch.arange(N_ROWS))
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    wake(slots, torch.arange(5), host.begin(), None, counts)
    assert counts.tolist() == [5, 0]


BAD = {
    "a list": (lambda c, _: c.tolist(), TypeError, "counts must be a torch tensor, got list"),
    "narrow": (lambda c, _: c.int(), TypeError, r"counts must be int64, got torch\.int32"),
    "three": (lambda c, _: c.repeat(2)[:3], ValueError, "counts must have two entries, got 3"),
    "a row": (lambda c, _: c[None], ValueError, "counts must have one dimension"),
    "elsewhere": (
        lambda c, _: c.to("meta"),
        ValueError,
        r"counts must be on c\w+(:0)?, got meta",
    ),
    "of ids": (
        lambda _, ids: ids[:2],
        ValueError,
        "ids must have memory of its own, got some of counts",
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", BAD)
def test_bad_counts_change_nothing(device, bad):
    spoil, error, message = BAD[bad]
    slots, step = begun("deferred", device, SHAPES, seed=1)
    before = [*(table.clone() for table in slots.tables), slots.last_step.clone()]
    where, ids = slots.lists(torch.tensor([3, 8, 5]))
    counts = spoil(torch.zeros(2, dtype=torch.int64, device=device), ids)
    with pytest.raises(error, match=message):
        slots.rows.wake(*slots.tables, where, slots.last_step, ids, step=step, counts=counts)
    assert ids.tolist() == [3, 8, 5]
    for now, then in zip((*slots.tables, slots.last_step), before, strict=True):
        assert torch.equal(now.nan_to_num(), then.nan_to_num())


def test_counts_of_inference_mode_are_written_with_their_rows():
    slots, step = begun("deferred", "cpu", SHAPES)
    with torch.inference_mode():
        counts = torch.zeros(2, dtype=torch.int64)
    ids = torch.arange(N_ROWS)
    wanted = expected(slots, ids, step, None)
    wake(slots, ids, step, None, counts)
    assert counts.tolist() == wanted


@pytest.mark.gpu
def test_rows_are_counted_on_the_stream():
    slots, step = begun("deferred", "cuda", SHAPES)
    ids, counts = torch.arange(N_ROWS), torch.zeros(2, dtype=torch.int64, device="cuda")
    wanted = expected(slots, ids, step, None)
    where, ids = slots.lists(ids)
    given = (*slots.tables, where, slots.last_step, ids)
    slots.rows.wake(*given, step=step, marks=torch.zeros(N_ROWS, dtype=torch.bool, device="cuda"))
    torch.cuda.synchronize()
    with held():
        slots.rows.wake(*given, step=step, counts=counts)
        done = torch.cuda.Event()
        done.record()
        assert not done.query()
    done.synchronize()
    assert counts.tolist() == wanted
