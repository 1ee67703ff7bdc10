# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_order import reference
from gs_order.local_search import improve, path_cost
from gs_order.search import (
    exact_path,
    nearest_neighbour_path,
    nearest_neighbours,
    random_state_of,
    shortest_path,
    with_sentinels,
)


def random_distances(seed, n, kind):
    rng = np.random.default_rng(seed)
    if kind == "ties":
        d = rng.integers(0, 4, (n, n)).astype(float)
    elif kind == "plane":
        points = rng.random((n, 2))
        d = np.linalg.norm(points[:, None] - points[None], axis=-1)
    else:
        visible = rng.random((200, n)) < 0.3
        d = reference.xor_counts(visible).astype(float)
    d = np.triu(d, 1)
    return d + d.T


KINDS = st.sampled_from(["ties", "plane", "sets"])


def searched(d, path, *, n_kicks, n_neighbours=10, seed=0):
    neighbours = nearest_neighbours(d, min(n_neighbours, len(d) - 1))
    best = path.copy()
    improve(d, neighbours, path.copy(), best, n_kicks, True, 1.0, 0.0, random_state_of(seed))
    return best


def cheapest(d, first, last):
    n = len(d)
    return min(
        first[p[0]] + sum(d[p[i], p[i + 1]] for i in range(n - 1)) + last[p[-1]]
        for p in itertools.permutations(range(n))
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), kind=KINDS)
def test_a_few_views_get_the_cheapest_path_with_costly_ends(seed, n, kind):
    d = random_distances(seed, n, kind)
    rng = np.random.default_rng(seed + 1)
    first, last = rng.random(n) * d.max(initial=1), rng.random(n) * d.max(initial=1)
    path = shortest_path(d, first_cost=first, last_cost=last)
    cost = first[path[0]] + reference.path_length(d, path) + last[path[-1]]
    assert cost == pytest.approx(cheapest(d, first, last), rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(4, 11), kind=KINDS)
def test_local_search_alone_comes_near_the_exact_path(seed, n, kind):
    d = with_sentinels(random_distances(seed, n, kind), None, None)
    path = searched(d, nearest_neighbour_path(d), n_kicks=300, seed=seed)
    exact = np.concatenate([[n], exact_path(d), [n + 1]])
    # Kicks reach every path in time; after 300 of them so few views are at most a hair away.
    assert path_cost(d, path) <= 1.03 * path_cost(d, exact) + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 80), kind=KINDS, kicks=st.sampled_from([0, 3, 60])
)
def test_local_search_keeps_a_permutation_and_never_gets_worse(seed, n, kind, kicks):
    distance = random_distances(seed, n, kind)
    d = with_sentinels(distance, None, None)
    start = np.random.default_rng(seed).permutation(n)
    path = np.concatenate([[n], start, [n + 1]])
    before = path_cost(d, path)
    path = searched(d, path, n_kicks=kicks, seed=seed)
    assert (path[0], path[-1]) == (n, n + 1)
    assert sorted(path[1:-1]) == list(range(n))
    assert path_cost(d, path) <= before * (1 + 1e-12)
    given_start = shortest_path(distance, initial=start, max_iterations=kicks)
    assert reference.path_length(distance, given_start) <= before * (1 + 1e-12)


def test_local_search_leaves_nothing_for_2opt_or_opt_among_all_views():
    # With as many neighbours as there are views the lists prune nothing that can gain.
    n = 40
    d = with_sentinels(random_distances(3, n, "plane"), None, None)
    path = np.concatenate([[n], np.random.default_rng(0).permutation(n), [n + 1]])
    path = searched(d, path, n_kicks=0, n_neighbours=n + 1)
    best = path_cost(d, path)
    for i in range(1, n + 1):
        for j in range(i + 1, n + 1):
            turned = np.concatenate([path[:i], path[i : j + 1][::-1], path[j + 1 :]])
            assert path_cost(d, turned) >= best - 1e-9
            if j - i < 3:
                run, rest = path[i : j + 1], np.delete(path, np.arange(i, j + 1))
                for place in range(1, len(rest)):
                    for piece in (run, run[::-1]):
                        moved = np.concatenate([rest[:place], piece, rest[place:]])
                        assert path_cost(d, moved) >= best - 1e-9


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), k=st.integers(1, 12), kind=KINDS)
def test_nearest_neighbours_are_the_nearest(seed, n, k, kind):
    d = with_sentinels(random_distances(seed, n, kind), None, None)
    k = min(k, n + 1)
    nearest = nearest_neighbours(d, k)
    for a in range(n + 2):
        others = np.array([b for b in range(n + 2) if b != a])
        wanted = others[np.argsort(d[a, others], kind="stable")][:k]
        assert (nearest[a] == wanted).all()


def test_a_forbidden_first_view_is_never_first_even_at_great_cost():
    d = random_distances(1, 30, "plane")
    d[17] = d[:, 17] = 1e6  # as a first view 17 would save one of its two long edges
    d[17, 17] = 0
    first = np.full(30, np.inf)
    first[4] = 0
    assert shortest_path(d, first_cost=first)[0] == 4
    assert 17 in (shortest_path(d)[0], shortest_path(d)[-1])
