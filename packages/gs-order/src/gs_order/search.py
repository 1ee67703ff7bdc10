# SPDX-License-Identifier: Apache-2.0
"""The shortest open path through a set of views: exact for a few, iterated local search beyond.

A path of n views lies in an array between two fixed sentinels, node n before the first view and
node n + 1 after the last. Their distances to the views are the costs of starting and of ending
there, so free ends, a given first view, and ends that cost something are one problem:

    cost = D[n, v_0] + D[v_0, v_1] + ... + D[v_{n-1}, n + 1]

Local search applies improving moves until none is left among each view's nearest neighbours:
2-opt (reverse a run), Or-opt (move up to three views, either way round), and Or-3opt (exchange two
adjacent runs). Then, again and again, a local double bridge (three short adjacent runs put in
opposite order, which none of those moves undoes at once) and local search around it; what is not
better is taken back. All random numbers come from the seed, all sums are in a fixed order, so the
path depends on the arguments alone. Bentley, "Fast algorithms for geometric traveling salesman
problems" (1992), and Johnson and McGeoch, "The traveling salesman problem: a case study in local
optimization" (1997), describe these moves, neighbour lists and work queues.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numba import njit

EXACT_VIEWS = 12
"""Up to so many views dynamic programming finds the optimum, in well under a millisecond."""

_N_NEIGHBOURS = 10
_N_NEIGHBOURS_3OPT = 5
_LONGEST_KICK = 50
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
    if time_limit_s is None:
        improve(d, neighbours, path, max_iterations, True, random_state)
        return path[1:-1].copy()
    deadline = time.perf_counter() + time_limit_s
    done = 0
    while True:
        kicks = min(_KICKS_BETWEEN_CLOCKS, max_iterations - done)
        improve(d, neighbours, path, kicks, done == 0, random_state)
        done += kicks
        if done >= max_iterations or time.perf_counter() >= deadline:
            return path[1:-1].copy()


def random_state_of(seed: int) -> Matrix:
    """Where `random_below` starts for a seed: any integer, told apart modulo 2^64."""
    return np.array([seed % 2**64], np.uint64)


def default_iterations(n: int) -> int:
    """Kicks worth about 1 ms up to 64 views, about 50 ms at 512, in proportion to n^2 between."""
    return 500 if n <= 64 else max(500, (500 * n * n) // 4096)


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
def path_cost(d, path):  # type: ignore[no-untyped-def]
    """Cost of a path with its sentinels, summed from first to last."""
    total = 0.0
    for i in range(len(path) - 1):
        total += d[path[i], path[i + 1]]
    return total


@njit(cache=True, nogil=True)
def exact_path(d):  # type: ignore[no-untyped-def]
    """Cheapest path by dynamic programming over subsets (Held and Karp, 1962)."""
    n = d.shape[0] - 2
    n_sets = 1 << n
    best = np.full((n_sets, n), np.inf)  # over paths that visit the set and end at the node
    before = np.zeros((n_sets, n), np.int8)
    for v in range(n):
        best[1 << v, v] = d[n, v]
    for visited in range(1, n_sets):
        for last in range(n):
            cost = best[visited, last]
            if cost == np.inf:
                continue
            for v in range(n):
                if visited >> v & 1:
                    continue
                more = visited | 1 << v
                if cost + d[last, v] < best[more, v]:
                    best[more, v] = cost + d[last, v]
                    before[more, v] = last
    visited = n_sets - 1
    last = 0
    for v in range(1, n):
        if best[visited, v] + d[v, n + 1] < best[visited, last] + d[last, n + 1]:
            last = v
    order = np.empty(n, np.int64)
    for i in range(n - 1, -1, -1):
        order[i] = last
        previous = before[visited, last]
        visited ^= 1 << last
        last = previous
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
def _wake(node, queue, state, waiting):  # type: ignore[no-untyped-def]
    """Append a node to the ring of nodes to look at; ``state`` is (head, length)."""
    if not waiting[node]:
        waiting[node] = True
        queue[(state[0] + state[1]) % len(queue)] = node
        state[1] += 1


@njit(cache=True, nogil=True)
def _best_move(a, d, neighbours, path, at, runs):  # type: ignore[no-untyped-def]
    """The move that shortens the path most among those that give ``a`` a nearer neighbour.

    Returns:
        what the path gets shorter, 0.0 when no move does; ``runs`` (3, 2) receives the runs of
        positions to reverse, one after the other, an empty one as (1, 0).
    """
    last = len(path) - 1
    best = 0.0
    i = at[a]
    for side in (1, -1):
        if not 0 <= i + side <= last:
            continue
        b = path[i + side]
        removed = d[a, b]
        least = 1e-12 * removed  # below it a "gain" may be rounding, and moves could cycle
        for index in range(neighbours.shape[1]):
            c = neighbours[a, index]
            opening = removed - d[a, c]
            if opening <= least:
                break
            j = at[c]
            # 2-opt: a-b and c-e become a-c and b-e; e is on the side of c where b is of a.
            if 0 <= j + side <= last:
                e = path[j + side]
                gain = opening + d[c, e] - d[b, e]
                if gain > best + least:
                    best = gain
                    low, high = min(i, j), max(i, j)
                    if side == 1:
                        _set_runs(runs, low + 1, high, 1, 0, 1, 0)
                    else:
                        _set_runs(runs, low, high - 1, 1, 0, 1, 0)
            best = _best_or_opt(i, j, side, opening, least, best, d, path, runs)
            if index < _N_NEIGHBOURS_3OPT:
                best = _best_or_3opt(
                    i, j, side, opening, least, best, d, neighbours, path, at, runs
                )
    return best


@njit(cache=True, nogil=True)
def _set_runs(runs, a, b, c, d, e, f):  # type: ignore[no-untyped-def]
    runs[0, 0], runs[0, 1], runs[1, 0], runs[1, 1], runs[2, 0], runs[2, 1] = a, b, c, d, e, f


@njit(cache=True, nogil=True)
def _best_or_opt(i, j, side, opening, least, best, d, path, runs):  # type: ignore[no-untyped-def]
    """Or-opt: the run of a (at i) and up to two nodes on its far side goes beside c (at j)."""
    last = len(path) - 1
    if i < 1 or i > last - 1:
        return best
    b, c = path[i + side], path[j]
    for length in range(3):
        end = i - side * length  # the run is a ... e
        if end < 1 or end > last - 1 or end == j:
            break
        e, f = path[end], path[end - side]
        closing = opening + d[e, f] - d[b, f]
        if closing <= best + least:
            continue
        low, high = min(i, end), max(i, end)
        for beside in (1, -1):
            at_g = j + beside
            if not 0 <= at_g <= last or low <= at_g <= high:
                continue
            g = path[at_g]
            gain = closing + d[c, g] - d[e, g]
            if gain <= best + least:
                continue
            best = gain
            # Two adjacent runs change places by reversing each and then both together; the moved
            # run keeps its own reversal when it has to arrive the other way round.
            left = min(j, at_g)
            turned = (side == -1) == (beside == -1)
            first, final = (low, left) if left > high else (left + 1, high)
            if left > high:
                _set_runs(runs, high + 1, left, low, high, first, final)
            else:
                _set_runs(runs, left + 1, low - 1, low, high, first, final)
            if turned:
                runs[1, 0], runs[1, 1] = 1, 0
    return best


@njit(cache=True, nogil=True)
def _best_or_3opt(i, j, side, opening, least, best, d, neighbours, path, at, runs):  # type: ignore[no-untyped-def]
    """Or-3opt: along ``side``,  a b ... e c ... g f  becomes  a c ... g b ... e f."""
    if (j - i) * side < 2:
        return best
    b, c, e = path[i + side], path[j], path[j - side]
    second = opening + d[e, c]
    for index in range(min(_N_NEIGHBOURS_3OPT, neighbours.shape[1])):
        f = neighbours[e, index]
        third = second - d[e, f]
        if third <= best + least:
            break
        k = at[f]
        if (k - j) * side < 1:
            continue
        g = path[k - side]
        gain = third + d[g, f] - d[g, b]
        if gain > best + least:
            best = gain
            if side == 1:
                _set_runs(runs, i + 1, j - 1, j, k - 1, i + 1, k - 1)
            else:
                _set_runs(runs, j + 1, i - 1, k + 1, j, k + 1, i - 1)
    return best


@njit(cache=True, nogil=True)
def _local_search(d, neighbours, path, at, queue, state, waiting, changed):  # type: ignore[no-untyped-def]
    """Empty the queue: improve around each node, wake the nodes of every move. Returns the gain."""
    total = 0.0
    runs = np.empty((3, 2), np.int64)
    while state[1] > 0:
        a = queue[state[0]]
        state[0] = (state[0] + 1) % len(queue)
        state[1] -= 1
        waiting[a] = False
        gain = _best_move(a, d, neighbours, path, at, runs)
        while gain > 0.0:
            total += gain
            for r in range(3):
                low, high = runs[r, 0], runs[r, 1]
                _reverse(path, at, low, high, changed)
                if low <= high:
                    for p in (low - 1, low, high, high + 1):
                        _wake(path[p], queue, state, waiting)
            gain = _best_move(a, d, neighbours, path, at, runs)
    return total


@njit(cache=True, nogil=True)
def random_below(random_state, n):  # type: ignore[no-untyped-def]
    """A number in [0, n) from a 64-bit linear generator with an output mix (splitmix)."""
    random_state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = random_state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return np.int64((x >> np.uint64(33)) % np.uint64(n))


@njit(cache=True, nogil=True)
def improve(d, neighbours, path, n_kicks, settle, random_state):  # type: ignore[no-untyped-def]
    """Improve ``path`` in place: local search if ``settle``, then ``n_kicks`` kicks with repair."""
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
    kept = path.copy()
    longest = max(1, min(_LONGEST_KICK, n // 3))
    for _ in range(n_kicks):
        changed[0], changed[1] = n + 2, -1
        one = 1 + random_below(random_state, longest)
        two = 1 + random_below(random_state, longest)
        three = 1 + random_below(random_state, longest)
        if one + two + three > n:
            continue
        i = 1 + random_below(random_state, n - one - two - three + 1)
        j, k, m = i + one, i + one + two, i + one + two + three
        before = d[path[i - 1], path[i]] + d[path[j - 1], path[j]]
        before += d[path[k - 1], path[k]] + d[path[m - 1], path[m]]
        for p in (i, j, k, m):
            _wake(path[p - 1], queue, state, waiting)
            _wake(path[p], queue, state, waiting)
        # Runs X Y Z become Z Y X: reverse the whole, then each run back.
        _reverse(path, at, i, m - 1, changed)
        _reverse(path, at, i, i + three - 1, changed)
        _reverse(path, at, i + three, i + three + two - 1, changed)
        _reverse(path, at, i + three + two, m - 1, changed)
        j, k = i + three, i + three + two
        after = d[path[i - 1], path[i]] + d[path[j - 1], path[j]]
        after += d[path[k - 1], path[k]] + d[path[m - 1], path[m]]
        gain = _local_search(d, neighbours, path, at, queue, state, waiting, changed)
        if gain - (after - before) >= 0.0:
            for p in range(changed[0], changed[1] + 1):
                kept[p] = path[p]
        else:
            for p in range(changed[0], changed[1] + 1):
                path[p] = kept[p]
                at[path[p]] = p
