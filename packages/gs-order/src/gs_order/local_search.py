# SPDX-License-Identifier: Apache-2.0
"""Iterated local search on a path between two sentinels (see `search`), compiled.

Around each node in a queue the best of these moves is made, among those that give the node a nearer
neighbour than the one it has, until no node has one:

    2-opt    reverse a run of the path
    Or-opt   move a run of up to three nodes elsewhere, either way round
    Or-3opt  exchange two adjacent runs

Then, again and again, a kick: a double bridge on three short adjacent runs, which are put in
opposite order (no move above undoes that at once), and local search around it. A kick that leaves
the path longer is taken back unless it lies within the present heat, which falls to zero over the
search; the best path met is the result. Distances, neighbour lists, the queue and the double bridge
are described by Bentley, "Fast algorithms for geometric traveling salesman problems" (1992), and
Johnson and McGeoch, "The traveling salesman problem: a case study in local optimization" (1997).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from gs_order.path_moves import best_move, runs_of

LONGEST_KICK = 30
HEAT = 0.1
"""Of the mean distance along the path: what a kick may cost at first and still be kept."""


@njit(cache=True, nogil=True)
def improve(  # type: ignore[no-untyped-def]
    d, neighbours, path, best_path, n_kicks, settle, first_heat, last_heat, random_state
):
    """Kick ``path`` and repair it ``n_kicks`` times.

    Args:
        d: (n + 2, n + 2) float64 distances.
        neighbours: (n + 2, k) int64, nearest first.
        path: (n + 2,) int64, from n to n + 1; where to start, and where the search has got to.
        best_path: the shortest path met so far, a copy of ``path`` at first; updated.
        settle: whether to start with local search around every node.
        first_heat, last_heat: from 1 to 0 over the whole search.
        random_state: (1,) uint64, of `random_below`.
    """
    n = len(path) - 2
    at = np.empty(n + 2, np.int64)
    for i in range(n + 2):
        at[path[i]] = i
    queue = np.empty(n + 2, np.int64)
    waiting = np.zeros(n + 2, np.bool_)
    state = np.zeros(2, np.int64)
    changed = np.array([n + 2, -1])
    if settle:
        for i in range(n + 2):
            _wake(path[i], queue, state, waiting)
        _local_search(d, neighbours, path, at, queue, state, waiting, changed)
        best_path[:] = path
    kept = path.copy()
    kept_cost = path_cost(d, path)
    best_cost = path_cost(d, best_path)
    scale = HEAT * kept_cost / (n + 1)
    longest = min(LONGEST_KICK, n // 3)
    if longest == 0:
        return
    for kick in range(n_kicks):
        heat = scale * (first_heat + (last_heat - first_heat) * kick / n_kicks)
        changed[0], changed[1] = n + 2, -1
        cost = kept_cost
        cost += _double_bridge(d, path, at, longest, queue, state, waiting, changed, random_state)
        cost -= _local_search(d, neighbours, path, at, queue, state, waiting, changed)
        if cost < best_cost:
            best_cost = cost
            best_path[:] = path
        if cost <= kept_cost + heat:
            kept_cost = cost
            for p in range(changed[0], changed[1] + 1):
                kept[p] = path[p]
        else:
            for p in range(changed[0], changed[1] + 1):
                path[p] = kept[p]
                at[path[p]] = p


@njit(cache=True, nogil=True)
def path_cost(d, path):  # type: ignore[no-untyped-def]
    """Cost of a path with its sentinels, summed from first to last."""
    total = 0.0
    for i in range(len(path) - 1):
        total += d[path[i], path[i + 1]]
    return total


@njit(cache=True, nogil=True)
def random_below(random_state, n):  # type: ignore[no-untyped-def]
    """A number in [0, n) from a 64-bit counter with an output mix (splitmix64)."""
    random_state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = random_state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return np.int64((x >> np.uint64(33)) % np.uint64(n))


@njit(cache=True, nogil=True)
def _double_bridge(d, path, at, longest, queue, state, waiting, changed, random_state):  # type: ignore[no-untyped-def]
    """Put three adjacent runs X Y Z in the order Z Y X; returns what the path gets longer."""
    n = len(path) - 2
    x = 1 + random_below(random_state, longest)
    y = 1 + random_below(random_state, longest)
    z = 1 + random_below(random_state, longest)
    i = 1 + random_below(random_state, n - x - y - z + 1)
    end = i + x + y + z
    cost = 0.0
    for p in (i, i + x, i + x + y, end):
        cost -= d[path[p - 1], path[p]]
        _wake(path[p - 1], queue, state, waiting)
        _wake(path[p], queue, state, waiting)
    # Reverse the whole, then each run back.
    _reverse(path, at, i, end - 1, changed)
    _reverse(path, at, i, i + z - 1, changed)
    _reverse(path, at, i + z, i + z + y - 1, changed)
    _reverse(path, at, i + z + y, end - 1, changed)
    for p in (i, i + z, i + z + y, end):
        cost += d[path[p - 1], path[p]]
    return cost


@njit(cache=True, nogil=True)
def _wake(node, queue, state, waiting):  # type: ignore[no-untyped-def]
    """Append a node to the ring of nodes to look at; ``state`` is (head, length)."""
    if not waiting[node]:
        waiting[node] = True
        queue[(state[0] + state[1]) % len(queue)] = node
        state[1] += 1


@njit(cache=True, nogil=True)
def _reverse(path, at, i, j, changed):  # type: ignore[no-untyped-def]
    """Reverse positions i..j; ``changed`` keeps the range touched since it was reset."""
    if i >= j:
        return
    changed[0] = min(changed[0], i)
    changed[1] = max(changed[1], j)
    while i < j:
        a, b = path[i], path[j]
        path[i], path[j] = b, a
        at[b], at[a] = i, j
        i += 1
        j -= 1


@njit(cache=True, nogil=True)
def _local_search(d, neighbours, path, at, queue, state, waiting, changed):  # type: ignore[no-untyped-def]
    """Empty the queue: improve around each node, wake the nodes of every move. Returns the gain."""
    total = 0.0
    move = np.empty(5, np.int64)
    runs = np.empty((3, 2), np.int64)
    while state[1] > 0:
        a = queue[state[0]]
        state[0] = (state[0] + 1) % len(queue)
        state[1] -= 1
        waiting[a] = False
        gain = best_move(a, d, neighbours, path, at, move)
        while gain > 0.0:
            total += gain
            runs_of(move, runs)
            for r in range(3):
                low, high = runs[r, 0], runs[r, 1]
                _reverse(path, at, low, high, changed)
                if low <= high:
                    for p in (low - 1, low, high, high + 1):
                        _wake(path[p], queue, state, waiting)
            gain = best_move(a, d, neighbours, path, at, move)
    return total
