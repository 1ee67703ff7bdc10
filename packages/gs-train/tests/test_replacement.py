# SPDX-License-Identifier: Apache-2.0
"""Rows that come and go touch no others, and leave no place empty."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replaced import sources

from gs_train.rows.replacement import ROOM, Replacement, grown

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@given(data=st.data(), n=st.integers(0, 40), n_new=st.integers(0, 40))
@settings(deadline=None, max_examples=300)
def test_places_are_those_of_the_rule(data: st.DataObject, n: int, n_new: int) -> None:
    removed = data.draw(st.lists(st.sampled_from(range(n)), unique=True).map(sorted)) if n else []
    change = Replacement.of(n, torch.tensor(removed, dtype=torch.int32), n_new)
    rows = change.edited(torch.arange(n), torch.arange(n, n + n_new))
    assert rows.tolist() == sources(n, removed, n_new)
    assert change.n_after == len(rows)
    touched = {*change.placed.tolist(), *change.moved_to.tolist()}
    stay = [i for i in range(min(n, change.n_after)) if i not in touched]
    assert rows[stay].tolist() == stay
    assert len(change.moved_to) <= len(removed)
    assert sorted({*change.vacant.tolist(), *change.placed.tolist()} & set(range(n))) == removed


def test_new_rows_are_spread_over_the_places_of_removed_ones() -> None:
    even = Replacement.of(100, torch.arange(0, 100, 2), 50)
    assert even.placed.tolist() == list(range(0, 100, 2))
    more = Replacement.of(100, torch.tensor([10, 60]), 4)
    assert more.placed.tolist() == [10, 100, 60, 101]
    fewer = Replacement.of(100, torch.tensor([10, 30, 50, 70]), 2)
    assert fewer.placed.tolist() == [10, 50]
    assert (fewer.moved_from.tolist(), fewer.moved_to.tolist()) == ([98, 99], [30, 70])


@pytest.mark.parametrize("device", DEVICES)
def test_one_value_for_all_new_rows_and_values_from_elsewhere(device: str) -> None:
    change = Replacement.of(5, torch.tensor([1, 3], device=device), 3)
    rows = torch.arange(10.0, device=device).view(5, 2)
    assert change.edited(rows.clone(), 0)[change.placed].tolist() == [[0, 0]] * 3
    new = torch.full((3, 2), 7.0)
    assert change.edited(rows.clone(), new)[change.placed].tolist() == [[7, 7]] * 3


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (0, 3)])
def test_memory_has_room_ahead_and_is_used_again(shape: tuple[int, ...]) -> None:
    rows = torch.rand(160, *shape)
    larger = grown(rows, 161, None)
    assert torch.equal(larger[:160], rows)
    larger[160] = 1  # what is behind the rows is undefined, and may be NaN
    address = larger.data_ptr()
    again = grown(larger, 161 + 161 // ROOM, None)
    assert again.data_ptr() == address
    assert torch.equal(again[:161], larger)
    fewer = again[:7]
    assert grown(fewer, 100, None).data_ptr() == address
    beyond = grown(again, 172, None)
    assert (beyond.data_ptr() != address) == bool(beyond.numel())
    assert torch.equal(beyond[:161], larger)


def test_there_is_no_room_beyond_the_most_rows_ever() -> None:
    larger = grown(torch.zeros(100, 4), 104, 105)
    assert larger.untyped_storage().nbytes() == 105 * 4 * 4
    assert grown(larger, 104, 105) is larger
