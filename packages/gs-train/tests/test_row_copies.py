# SPDX-License-Identifier: Apache-2.0
"""Rows taken and added to, all six attributes at once, against torch's indexing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gs_train.rows import copies as row_copies
from gs_train.rows.attributes import columns
from gs_train.rows.copies import add_rows, take_rows
from gs_train.rows.initial_sums import FIRST_NOTED, NOTHING, InitialSums

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
N, SLOTS, R = 300, 90, 70


def _values(device: str, k: int, *, n: int = N, slots: int = SLOTS) -> dict[str, Tensor]:
    """Whole numbers, so that sums are exact in any order; the appearance in rows of one table."""
    g = torch.Generator().manual_seed(k)
    shapes = {"means": (n, 3), "scales": (n, 3), "quats": (n, 4), "opacities": (n,)}
    values = {name: torch.randint(-99, 99, shape, generator=g) for name, shape in shapes.items()}
    table = torch.randint(-99, 99, (slots, 3 + 3 * k), generator=g)
    values = {name: part.float().to(device) for name, part in values.items()}
    return values | columns(table.float().to(device))


def _rows(device: str, n: int, dtype: torch.dtype, *, of: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randperm(of, generator=g)[:n]
    if n:
        ids[0] = of - 1 if of - 1 not in ids else ids[0]
    return ids.to(device, dtype)


@DEVICES
@pytest.mark.parametrize("k", [0, 3, 8, 15])
@pytest.mark.parametrize("n", [0, 1, R])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_taken_rows_are_copies_of_those_asked_for(device, k, n, dtype):
    values = _values(device, k)
    ids = _rows(device, n, dtype, of=N, seed=1)
    slots = _rows(device, n, dtype, of=SLOTS, seed=2)
    taken = take_rows(values, ids, slots)
    assert list(taken) == list(values)
    for name, part in taken.items():
        at = slots if name.startswith("sh") else ids
        assert torch.equal(part, values[name][at.long()])
        assert part.is_contiguous()


@DEVICES
def test_lists_may_be_every_other_element_of_longer_ones(device):
    values = _values(device, 3)
    ids = _rows(device, R, torch.int64, of=N, seed=7)[::2]
    slots = _rows(device, R, torch.int32, of=SLOTS, seed=8)[::2]
    taken = take_rows(values, ids, slots)
    for name, part in taken.items():
        assert torch.equal(part, values[name][(slots if name.startswith("sh") else ids).long()])
    totals = {name: torch.zeros_like(part) for name, part in values.items()}
    add_rows(totals, taken, ids, slots)
    for name, total in totals.items():
        at = (slots if name.startswith("sh") else ids).long()
        assert torch.equal(total[at], taken[name])
        assert total.count_nonzero() == taken[name].count_nonzero()


@DEVICES
def test_one_list_of_rows_serves_all_attributes(device):
    values = _values(device, 15, slots=N)
    ids = _rows(device, R, torch.int64, of=N, seed=3)
    for name, part in take_rows(values, ids).items():
        assert torch.equal(part, values[name][ids])


@DEVICES
@pytest.mark.parametrize("k", [0, 15])
@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("has_slots", [True, False])
def test_gradients_are_added_to_their_rows_and_to_no_other(device, k, has_ids, has_slots):
    ids = _rows(device, R, torch.int32, of=N, seed=4) if has_ids else None
    slots = _rows(device, R, torch.int64, of=SLOTS, seed=5) if has_slots else None
    totals = _values(device, k, n=N if has_ids else R, slots=SLOTS if has_slots else R)
    parts = {name: part.contiguous() for name, part in _values(device, k, n=R, slots=R).items()}
    expected = {name: total.clone() for name, total in totals.items()}
    for name, total in expected.items():
        at = slots if name.startswith("sh") else ids
        total[slice(None) if at is None else at.long()] += parts[name]
    add_rows(totals, parts, ids, slots)
    for name, total in totals.items():
        assert torch.equal(total, expected[name]), name


@DEVICES
@pytest.mark.parametrize("k", [0, 3, 15])
@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("is_partial", [True, False])
def test_sums_begin_with_what_is_said(device, k, is_own, is_partial):
    """With rows of another table, with what was noted, or with nothing; what was in the sums
    counts only where they are their own beginning."""
    slots = _rows(device, R, torch.int32, of=SLOTS, seed=9)
    totals = _values(device, k)
    parts = {name: part.contiguous() for name, part in _values(device, k, n=R, slots=R).items()}
    if is_partial:
        parts["shN"] = None
    carried = totals if is_own else _values(device, k, slots=SLOTS + 5)
    noted = _values(device, k, slots=17)
    at = slots.clone() if is_own else _rows(device, R, torch.int32, of=SLOTS + 5, seed=10)
    at[::3], at[1::3] = NOTHING, FIRST_NOTED - (at[1::3] % 17)
    at[1], at[4] = FIRST_NOTED, FIRST_NOTED - 16
    expected = {name: total.clone() for name, total in totals.items()}
    for name in ("sh0", "shN"):
        rows = torch.zeros_like(expected[name][:R])
        for r, place in enumerate(at.tolist()):
            if place >= 0:
                rows[r] = carried[name][place]
            elif place <= FIRST_NOTED:
                rows[r] = noted[name][FIRST_NOTED - place]
        expected[name][slots.long()] = rows if parts[name] is None else rows + parts[name]
    for name in ("means", "scales", "quats", "opacities"):
        expected[name][:R] += parts[name]
    ids = torch.arange(R, device=device)
    add_rows(totals, parts, ids, slots, InitialSums(at, carried, noted))
    for name, total in totals.items():
        assert torch.equal(total, expected[name]), name


@DEVICES
def test_a_part_without_a_gradient_adds_nothing(device):
    totals = _values(device, 3, slots=N)
    before = {name: total.clone() for name, total in totals.items()}
    ids = _rows(device, R, torch.int64, of=N, seed=6)
    add_rows(totals, dict.fromkeys(totals) | {"means": torch.ones((R, 3), device=device)}, ids, ids)
    before["means"][ids] += 1
    for name, total in totals.items():
        assert torch.equal(total, before[name]), name


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_sum_over_the_rows_of_all_parts_is_the_dense_sum(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    chosen = data.draw(st.lists(st.sets(st.integers(0, n - 1)), max_size=5))
    union = torch.tensor(sorted(set().union(*chosen)), dtype=torch.int32)
    like = {"means": torch.zeros(n, 3), "opacities": torch.zeros(n)}
    total = {name: value.new_zeros((len(union), *value.shape[1:])) for name, value in like.items()}
    dense = {name: torch.zeros_like(value) for name, value in like.items()}
    for k, rows in enumerate(chosen):
        ids = torch.tensor(sorted(rows), dtype=torch.int32)
        parts = {
            name: torch.randint(-9, 10, (len(ids), *value.shape[1:])).float() if k != 1 else None
            for name, value in like.items()
        }
        place = torch.searchsorted(union, ids)
        add_rows(total, parts, place, place)
        for name, part in parts.items():
            if part is not None:
                dense[name].index_add_(0, ids.long(), part)
    for name in like:
        assert torch.equal(total[name], dense[name][union.long()])


@pytest.mark.gpu
def test_on_a_gpu_all_attributes_are_one_launch():
    values = _values("cuda", 15)
    assert row_copies._is_fused(values)
    at = torch.full((R,), NOTHING, dtype=torch.int32, device="cuda")
    others, none, wider = (columns(torch.zeros(n, w)) for n, w in ((7, 48), (0, 48), (7, 51)))
    for noted in (others, none):
        assert row_copies._is_fused(values, InitialSums(at, values, noted))
    assert not row_copies._is_fused(values, InitialSums(at, values, wider))
    assert not row_copies._is_fused({"means": values["means"]})
    assert not row_copies._is_fused(values | {"means": values["means"].double()})
