# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import CachePlan


def random_sets(seed, n_steps, n_ids):
    rng = np.random.default_rng(seed)
    share = rng.choice([0.1, 0.3, 0.6])
    return [np.flatnonzero(rng.random(n_ids) < share) for _ in range(n_steps)]


def fewest_reads(sets, capacity):
    """The least any cache can read: search over all its possible contents."""
    states = {frozenset(): 0}
    for needed in (frozenset(ids.tolist()) for ids in sets):
        found = {}
        for cached, reads in states.items():
            total = reads + len(needed - cached)
            others = sorted(cached - needed)
            # Keeping more is never worse, so only full choices of what stays matter.
            room = min(len(others), capacity - len(needed))
            for kept in itertools.combinations(others, room):
                state = needed | frozenset(kept)
                found[state] = min(found.get(state, total), total)
        states = found
    return min(states.values())


def least_recently_used(sets, capacity):
    """Reads and evictions of an LRU cache, from its definition on a list."""
    used = {}
    reads, evictions = [], []
    for t, ids in enumerate(sets):
        needed = set(ids.tolist())
        reads.append(sorted(needed - used.keys()))
        excess = len(used.keys() | needed) - capacity
        others = sorted(used.keys() - needed, key=lambda x: (used[x], -x))
        gone = others[: max(0, excess)]
        evictions.append(sorted(gone))
        for x in gone:
            del used[x]
        used.update(dict.fromkeys(needed, t))
    return reads, evictions


SEQUENCES = {
    "seed": st.integers(0, 10**6),
    "n_steps": st.integers(1, 12),
    "n_ids": st.integers(1, 30),
    "spare": st.integers(0, 10),
}


@settings(max_examples=80, deadline=None)
@given(**{**SEQUENCES, "n_steps": st.integers(1, 7), "n_ids": st.integers(1, 7)})
def test_belady_reads_the_least_that_any_cache_can(seed, n_steps, n_ids, spare):
    sets = random_sets(seed, n_steps, n_ids)
    capacity = max(1, max(len(ids) for ids in sets) + spare % 3)
    assert CachePlan(sets, capacity).n_read.sum() == fewest_reads(sets, capacity)


@settings(max_examples=80, deadline=None)
@given(**SEQUENCES)
def test_lru_evicts_what_was_needed_longest_ago(seed, n_steps, n_ids, spare):
    sets = random_sets(seed, n_steps, n_ids)
    capacity = max(len(ids) for ids in sets) + spare
    plan = CachePlan(sets, capacity, policy="lru")
    reads, evictions = least_recently_used(sets, capacity)
    assert [plan[t].read.tolist() for t in range(n_steps)] == reads
    assert [plan[t].evict.tolist() for t in range(n_steps)] == evictions


@settings(max_examples=80, deadline=None)
@given(**SEQUENCES, policy=st.sampled_from(["belady", "lru"]))
def test_a_replay_has_what_it_needs_and_never_exceeds_the_capacity(
    seed, n_steps, n_ids, spare, policy
):
    sets = random_sets(seed, n_steps, n_ids)
    capacity = max(len(ids) for ids in sets) + spare
    plan = CachePlan(sets, capacity, policy=policy)
    cached = set()
    for t, ids in enumerate(sets):
        read, hit, evict = (
            set(getattr(plan[t], name).tolist()) for name in ("read", "hit", "evict")
        )
        assert hit | evict <= cached
        assert not read & cached
        assert not evict or len(cached - evict) + len(read) == capacity, "evict only to make room"
        cached = (cached - evict) | read
        assert read | hit == set(ids.tolist()) <= cached
        assert len(cached) <= capacity
    assert (plan.n_read + plan.n_hit == [len(ids) for ids in sets]).all()


@settings(max_examples=80, deadline=None)
@given(**SEQUENCES)
def test_belady_never_reads_more_than_lru(seed, n_steps, n_ids, spare):
    sets = random_sets(seed, n_steps, n_ids)
    capacity = max(len(ids) for ids in sets) + spare
    belady, lru = (CachePlan(sets, capacity, policy=policy) for policy in ("belady", "lru"))
    assert belady.n_read.sum() <= lru.n_read.sum()
    assert belady.hit_rate >= lru.hit_rate


def test_belady_spares_what_is_needed_next_where_lru_does_not():
    cycle = [[k % 4] for k in range(40)]
    assert CachePlan(cycle, 3, policy="lru").n_read.sum() == 40
    assert CachePlan(cycle, 3).n_read.sum() == fewest_reads([np.array(s) for s in cycle], 3) < 20


def test_blocks_are_cached_in_place_of_rows():
    sets = [np.array([0, 1, 9, 4095, 4096]), torch.tensor([4097, 9000]), np.array([], np.int64)]
    plan = CachePlan(sets, 2, block_size=4096)
    assert [plan[t].read.tolist() for t in range(3)] == [[0, 1], [2], []]
    assert plan[1].hit.tolist() == [1]
    assert plan[1].evict.tolist() == [0]
    assert plan.hit_rate == 0.25
    assert "3 steps, capacity=2, policy='belady'" in repr(plan)


def test_large_ids_and_many_steps_are_no_trouble():
    rng = np.random.default_rng(0)
    sets = [np.sort(rng.choice(2_000, 300, replace=False)) * 2**40 for _ in range(200)]
    belady, lru = (CachePlan(sets, 700, policy=policy) for policy in ("belady", "lru"))
    assert belady.n_read.sum() < 0.9 * lru.n_read.sum()
    assert belady.read.values.max() >= 2**40


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], 1), ValueError, "sets must hold at least one step, got none"),
        (([[1, 2, 3]], 2), ValueError, "capacity must be at least 3, what one step needs, got 2"),
        (([[1], [2, 2]], 3), ValueError, r"sets\[1\] must be sorted, unique ids"),
        (([[3, 1]], 3), ValueError, r"sets\[0\] must be sorted, unique ids"),
        (([[-1, 1]], 3), ValueError, r"sets\[0\] must be sorted, unique ids >= 0"),
        (
            ([np.array([3, 2**63 + 5], "u8")], 2),
            ValueError,
            r"sets\[0\] must be of ids below 2\^63",
        ),
        (([[0.5]], 3), TypeError, r"sets\[0\] must be of integers, got float64"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        CachePlan(*arguments)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="policy must be one of belady, lru, got 'fifo'"):
        CachePlan([[1]], 1, policy="fifo")
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        CachePlan([[1]], 1, block_size=0)
    with pytest.raises(IndexError, match=r"step must be in \[0, 1\), got 1"):
        CachePlan([[1]], 1)[1]
