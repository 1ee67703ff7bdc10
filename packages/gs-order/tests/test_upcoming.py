# SPDX-License-Identifier: Apache-2.0
"""Next needs against a search of the lists."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import CachePlan, Upcoming

N_ITEMS = 9
LISTS = st.lists(
    st.lists(st.integers(0, N_ITEMS - 1), unique=True, max_size=N_ITEMS), max_size=6
)  # fmt: skip


def next_need(lists: list[list[int]], item: int, first: int) -> int:
    return next((t for t in range(first, len(lists)) if item in lists[t]), Upcoming.NEVER)


@settings(max_examples=150, deadline=None)
@given(chunks=st.lists(LISTS, max_size=5), data=st.data())
def test_next_needs_are_those_that_a_search_finds(
    chunks: list[list[list[int]]], data: st.DataObject
) -> None:
    upcoming = Upcoming(N_ITEMS)
    known: list[list[int]] = []
    told = dict.fromkeys(range(N_ITEMS), Upcoming.NEVER)
    for chunk in chunks:
        items, steps = upcoming.add([np.array(ids, np.int32) for ids in chunk])
        known += chunk
        assert items.tolist() == sorted(set(items.tolist()))
        assert all(told[item] == Upcoming.NEVER for item in items.tolist())
        told |= dict(zip(items.tolist(), steps.tolist(), strict=True))
        # Items that are told of are those whose need became known, and no others.
        for item in range(N_ITEMS):
            assert told[item] == next_need(known, item, upcoming.step)
        for _ in range(data.draw(st.integers(0, upcoming.n_known))):
            step = upcoming.step
            items, following = upcoming.advance()
            assert items.tolist() == known[step]
            told |= dict(zip(items.tolist(), following.tolist(), strict=True))
            assert told == {i: next_need(known, i, step + 1) for i in range(N_ITEMS)}
    assert upcoming.n_known == len(known) - upcoming.step


def test_a_cache_that_follows_reads_as_little_as_one_that_is_planned() -> None:
    random = np.random.default_rng(1)
    lists = [np.flatnonzero(random.random(30) < 0.2) for _ in range(60)]
    upcoming, held, reads = Upcoming(30), set[int](), 0
    next_use = np.full(30, Upcoming.NEVER)
    items, steps = upcoming.add(lists)
    next_use[items] = steps
    for needed in lists:
        reads += len(set(needed.tolist()) - held)
        others = sorted(held - set(needed.tolist()), key=lambda item: int(next_use[item]))
        held = set(needed.tolist()) | set(others[: 15 - len(needed)])
        items, following = upcoming.advance()
        next_use[items] = following
    assert reads == CachePlan(lists, 15).n_read.sum()


def test_tensors_and_lists_are_taken() -> None:
    upcoming = Upcoming(5)
    items, steps = upcoming.add([torch.tensor([3, 1]), [0], np.array([], np.int64), (3,)])
    assert (items.tolist(), steps.tolist()) == ([0, 1, 3], [1, 0, 0])
    assert [part.tolist() for part in upcoming.advance()] == [[3, 1], [3, Upcoming.NEVER]]
    assert repr(upcoming) == "Upcoming(5 items, step 1, 3 known)"


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ([[0], [5]], ValueError, "lists[1] must be of items from 0 to 4, got others"),
        ([[-1]], ValueError, "lists[0] must be of items from 0 to 4, got others"),
        ([[[1]]], ValueError, "lists[0] must be of items from 0 to 4, got others"),
        ([[1, 2, 1]], ValueError, "lists[0] must not name an item twice"),
        ([[0.5]], TypeError, "lists[0] must be of integers, got float64"),
        ([["a"]], TypeError, "lists[0] must be an array of numbers"),
        (7, TypeError, "lists must be a sequence, got 7"),
    ],
)
def test_wrong_lists_are_named_and_change_nothing(
    lists: Any, error: type[Exception], message: str
) -> None:
    upcoming = Upcoming(5)
    upcoming.add([[1]])
    with pytest.raises(error, match=re.escape(message)):
        upcoming.add(lists)
    assert (upcoming.n_known, upcoming.step) == (1, 0)
    assert [part.tolist() for part in upcoming.advance()] == [[1], [Upcoming.NEVER]]
    with pytest.raises(IndexError, match="step 1 must be known, got no needs of it"):
        upcoming.advance()
    assert upcoming.step == 1
