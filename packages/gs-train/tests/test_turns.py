# SPDX-License-Identifier: Apache-2.0
"""Turns: each microbatch is drawn once, and all ranks agree on what travels."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.ranks.turns import NOTHING, Turns


class Table(NamedTuple):
    counts: np.ndarray
    work: list[int]
    paces: list[float]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    n_ranks, n_microbatches = draw(st.integers(1, 9)), draw(st.integers(0, 20))
    count = st.one_of(st.just(0), st.integers(0, 10**6))
    counts = [draw(st.lists(count, min_size=n, max_size=n)) for n in [n_microbatches] * n_ranks]
    work = draw(st.lists(st.integers(0, 100), min_size=n_microbatches, max_size=n_microbatches))
    paces = draw(st.lists(st.floats(0.5, 2.0), min_size=n_ranks, max_size=n_ranks))
    return Table(np.array(counts, np.int64).reshape(n_ranks, n_microbatches), work, paces)


@settings(deadline=None)
@given(tables())
def test_each_microbatch_is_drawn_once_in_its_round(table: Table) -> None:
    n_ranks, n = table.counts.shape
    turns = Turns.of(*table)
    together = [tuple(turn.microbatches) for turn in turns.rounds]
    assert [m for turn in together for m in turn] == list(range(n))
    assert all(len(turn) == n_ranks for turn in together[:-1])
    for turn in turns.rounds:
        assert len(turn.drawn) == n_ranks
        assert sorted(m for m in turn.drawn if m != NOTHING) == list(turn.microbatches)
        assert all(turn.drawn[turn.drawer(m)] == m for m in turn.microbatches)


@settings(deadline=None)
@given(tables())
def test_what_a_rank_sends_is_what_another_gets(table: Table) -> None:
    turns = Turns.of(*table)
    ranks = range(turns.n_ranks)
    arrived = np.zeros_like(table.counts)
    for index, turn in enumerate(turns.rounds):
        splits = [turns.splits(index, rank) for rank in ranks]
        for source in ranks:
            for to in ranks:
                n = splits[source].sent[to]
                assert n == splits[to].received[source]
                assert splits[source].back.received[to] == splits[to].back.sent[source]
                if turn.drawn[to] != NOTHING:
                    arrived[source, turn.drawn[to]] += n
                else:
                    assert n == 0
    assert (arrived == table.counts).all()


@settings(deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_a_clock_decides_who_draws_and_nothing_else(table: Table, random: Random) -> None:
    turns = Turns.of(*table)
    others = [random.uniform(0.1, 10) for _ in table.paces]
    again = Turns.of(table.counts, table.work, others)
    ranks = range(turns.n_ranks)
    for index, (one, other) in enumerate(zip(turns.rounds, again.rounds, strict=True)):
        assert sorted(one.drawn) == sorted(other.drawn)
        for rank in ranks:  # what leaves a rank is the same, whoever gets it
            sent = (sum(each.splits(index, rank).sent) for each in (turns, again))
            assert len(set(sent)) == 1


def test_the_slowest_rank_gets_the_least() -> None:
    counts = np.ones((3, 6), np.int64)
    turns = Turns.of(counts, [90, 80, 70, 60, 50, 40], paces=[1.0, 2.0, 1.2])
    assert [turn.drawn for turn in turns.rounds] == [(0, 2, 1), (3, 5, 4)]
    assert turns.rounds[1].drawer(5) == 1


def test_ranks_of_one_pace_take_turns_with_the_largest() -> None:
    turns = Turns.of(np.ones((2, 4), np.int64), [9, 7, 6, 5])
    assert [turn.drawn for turn in turns.rounds] == [(0, 1), (3, 2)]


def test_a_view_that_nobody_sees_is_drawn_too() -> None:
    turns = Turns.of([[0, 4, 0], [0, 1, 0]])
    assert [turn.drawn for turn in turns.rounds] == [(1, 0), (NOTHING, 2)]
    assert turns.splits(0, 0) == ((4, 0), (4, 1))
    assert turns.splits(0, 1) == ((1, 0), (0, 0))
    assert turns.splits(1, 1) == ((0, 0), (0, 0))


def test_ranks_without_a_view_send_what_they_own() -> None:
    turns = Turns.of([[5], [7], [0]], paces=[2.0, 1.0, 3.0])
    assert turns.rounds[0].drawn == (NOTHING, 0, NOTHING)
    assert turns.splits(0, 0) == ((0, 5, 0), (0, 0, 0))
    assert turns.splits(0, 1) == ((0, 7, 0), (5, 7, 0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2],), r"counts must be \(W, M\) of one rank or more, got \(2,\)"),
        (([[1, -2]],), "counts must be at least 0, got -2"),
        (([[1, 2]], [1]), r"work must be \(2,\), finite and at least 0, got \[1.0\]"),
        (([[1, 2]], [1, 2], [float("nan")]), r"paces must be \(1,\), finite"),
        (([[1, 2]], [1, 2], [0.0]), r"paces must be above 0, got \[0.0\]"),
    ],
)
def test_tables_that_say_nothing_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Turns.of(*arguments)
