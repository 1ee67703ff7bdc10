# SPDX-License-Identifier: Apache-2.0
"""The shortest open path through a set of views: exact for a few, iterated local search beyond.

A path of n views lies in an array between two fixed sentinels, node n before the first view and
node n + 1 after the last. Their distances to the views are the costs of starting and of ending
there, so free ends, a given first view, and ends that cost something are one problem:

    cost = D[n, v_0] + D[v_0, v_1] + ... + D[v_{n-1}, n + 1]

Up to twelve views are solved by dynamic programming. Beyond, a nearest neighbour path is improved
by `local_search`. All random numbers come from the seed and all sums are in a fixed order, so the
path depends on the arguments alone.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numba import njit

from gs_order.local_search import improve, path_cost

EXACT_VIEWS = 12
"""Up to so many views dynamic programming finds the optimum, in well under a millisecond."""

_N_NEIGHBOURS = 12
_KICKS_BETWEEN_CLOCKS = 64

Matrix = np.ndarray[Any, Any]


def shortest_path(
    distance: Matrix,
    *,
    first_cost: Matrix | None = None,
    last_cost: Matrix | None = None,
    initial: Matrix | None = None,
    max_iterations: int | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
) -> Matrix:
    """A short open path through n nodes, by the methods of this module.

    Args:
        distance: (n, n) float64, symmetric, finite.
        first_cost, last_cost: (n,) float64, cost of starting and of ending at each node; inf
            forbids it (one first node at least must be finite); zero when None.
        initial: (n,) int64 permutation to start from; the result is never longer. The nearest
            neighbour path is used instead where it is shorter.
        max_iterations: kicks; `default_iterations` when None.
        time_limit_s: stop after this many seconds even so; the result then depends on the clock.
        seed: of the kicks.

    Returns:
        (n,) int64 permutation.
    """
    n = len(distance)
    d = with_sentinels(distance, first_cost, last_cost)
    if n <= EXACT_VIEWS:
        return exact_path(d)
    path = nearest_neighbour_path(d)
    if initial is not None:
        given = np.concatenate([[n], np.asarray(initial, np.int64), [n + 1]])
        if path_cost(d, given) <= path_cost(d, path):
            path = given
    if max_iterations is None:
        max_iterations = default_iterations(n)
    neighbours = nearest_neighbours(d, min(_N_NEIGHBOURS, n + 1))
    random_state = random_state_of(seed)
    best = path.copy()
    if time_limit_s is None:
        improve(d, neighbours, path, best, max_iterations, True, 1.0, 0.0, random_state)
        return best[1:-1].copy()
    started = time.perf_counter()
    done, heat = 0, 1.0
    while done == 0 or (done < max_iterations and heat > 0.0):
        kicks = min(_KICKS_BETWEEN_CLOCKS, max_iterations - done)
        improve(d, neighbours, path, best, kicks, done == 0, heat, heat, random_state)
        done += max(1, kicks)
        heat = 1.0 - max(
            done / max(1, max_iterations), (time.perf_counter() - started) / time_limit_s
        )
    return best[1:-1].copy()


def random_state_of(seed: int) -> Matrix:
    """Where `random_below` starts for a seed: any integer, told apart modulo 2^64."""
    return np.array([seed % 2**64], np.uint64)


def default_iterations(n: int) -> int:
    """Kicks worth under 1 ms up to 64 views and 30 to 50 ms at 512; ten a view beyond."""
    return max(100, min(n * n // 50, 10 * n))


def with_sentinels(distance: Matrix, first_cost: Matrix | None, last_cost: Matrix | None) -> Matrix:
    """(n + 2, n + 2) float64 distances with the two ends of the path as nodes n and n + 1.

    Forbidden ends cost more than any path can save, but not inf, which would make gains NaN. It is
    a power of two so that adding and removing it rounds nothing else away.
    """
    n = len(distance)
    d = np.zeros((n + 2, n + 2))
    d[:n, :n] = distance
    for node, cost in ((n, first_cost), (n + 1, last_cost)):
        if cost is not None:
            d[node, :n] = cost
    finite = np.isfinite(d)
    if not finite.all():
        total = 2.0 * float(d[finite].max()) * (n + 2) + 1.0
        d[~finite] = 2.0 ** np.ceil(np.log2(total))
    d[:n, n:] = d[n:, :n].T
    return d


@njit(cache=True, nogil=True)
def exact_path(d):  # type: ignore[no-untyped-def]
    """Cheapest path by dynamic programming over subsets (Held and Karp, 1962)."""
    n = d.shape[0] - 2
    n_sets = 1 << n
    # [set, v]: cost of the cheapest path that visits the set and ends at its member v.
    best = np.full((n_sets, n), np.inf)
    for visited in range(1, n_sets):
        for v in range(n):
            if not visited >> v & 1:
                continue
            rest = visited ^ (1 << v)
            cost = np.inf if rest else d[n, v]
            for u in range(n):  # what is not in the rest costs inf
                cost = min(cost, best[rest, u] + d[u, v])
            best[visited, v] = cost
    order = np.empty(n, np.int64)
    visited = n_sets - 1
    after = n + 1
    for i in range(n - 1, -1, -1):
        last = -1
        for v in range(n):
            cheaper = (
                last < 0 or best[visited, v] + d[v, after] < best[visited, last] + d[last, after]
            )
            if visited >> v & 1 and cheaper:
                last = v
        order[i] = last
        visited ^= 1 << last
        after = last
    return order


@njit(cache=True, nogil=True)
def nearest_neighbour_path(d):  # type: ignore[no-untyped-def]
    """From the cheapest first node always on to the nearest node not yet visited."""
    n = d.shape[0] - 2
    path = np.empty(n + 2, np.int64)
    path[0], path[n + 1] = n, n + 1
    left = np.arange(n)
    here = n
    for i in range(n):
        nearest = 0
        for k in range(1, n - i):
            closer = d[here, left[k]] - d[here, left[nearest]]
            if closer < 0 or (closer == 0 and left[k] < left[nearest]):
                nearest = k
        here = left[nearest]
        left[nearest] = left[n - i - 1]
        path[i + 1] = here
    return path


@njit(cache=True, nogil=True)
def nearest_neighbours(d, k):  # type: ignore[no-untyped-def]
    """(n + 2, k) the nearest other nodes of each node, nearest first, ties by number."""
    n = d.shape[0]
    nearest = np.empty((n, k), np.int64)
    for a in range(n):
        found = 0
        for b in range(n):
            if b == a or (found == k and d[a, b] >= d[a, nearest[a, k - 1]]):
                continue
            i = min(found, k - 1)
            while i > 0 and d[a, nearest[a, i - 1]] > d[a, b]:
                nearest[a, i] = nearest[a, i - 1]
                i -= 1
            nearest[a, i] = b
            found = min(found + 1, k)
    return nearest
