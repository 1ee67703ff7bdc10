# SPDX-License-Identifier: Apache-2.0
"""Moves on a path (see `local_search`): the best one around a node, and what it reverses."""

from __future__ import annotations

from numba import njit

N_NEIGHBOURS_3OPT = 6

_ROUNDING = 1e-12
"""Of the distance given up: a smaller gain may be rounding, and moves could cycle."""

_NEVER = -1e300
_TWO_OPT, _OR_OPT, _OR_3OPT = range(3)


@njit(cache=True, nogil=True)
def best_move(a, d, neighbours, path, at, move):  # type: ignore[no-untyped-def]
    """The move that shortens the path most among those that give ``a`` a nearer neighbour.

    With b the neighbour on one ``side`` that a gives up and c the one it gets:

        2-opt    a-b, c-g become a-c, b-g; g is on the side of c where b is of a
        Or-opt   the run a ... e behind a (away from b) goes between c and g, on either side of c;
                 f is what lay behind e, so that a-b, e-f, c-g become a-c, b-f, e-g
        Or-3opt  seen towards b,  a b ... e c ... g f  becomes  a c ... g b ... e f

    Returns:
        what the path gets shorter, 0.0 when no move does that; ``move`` receives its kind, the
        positions of a, c and g (Or-3opt: f), and the side; of an Or-opt the side is multiplied by
        the length of the run.
    """
    last = len(path) - 1
    best = 0.0
    i = at[a]
    for side in (1, -1):
        if not 0 <= i + side <= last:
            continue
        b = path[i + side]
        removed = d[a, b]
        least = _ROUNDING * removed
        if removed - d[a, neighbours[a, 0]] <= least:
            continue
        e1, e2, close1, close2, close3 = _runs_behind(a, b, i, side, d, path)
        for index in range(neighbours.shape[1]):
            c = neighbours[a, index]
            opening = removed - d[a, c]
            if opening <= least:
                break
            j = at[c]
            for beside in (1, -1):
                k = j + beside
                if k == i or not 0 <= k <= last:
                    continue
                g = path[k]
                cut = opening + d[c, g]
                if beside == side and cut - d[b, g] > best + least:
                    best = cut - d[b, g]
                    move[0], move[1], move[2], move[3], move[4] = _TWO_OPT, i, j, k, side
                # c or g may lie behind a; the run must end before it.
                room = min((i - j) * side, (i - k) * side)
                room = room if room > 0 else max((i - j) * side, (i - k) * side)
                room = room if room > 0 else last
                if room > 0 and cut + close1 - d[a, g] > best + least:
                    best = cut + close1 - d[a, g]
                    move[0], move[1], move[2], move[3], move[4] = _OR_OPT, i, j, k, side
                if room > 1 and cut + close2 - d[e1, g] > best + least:
                    best = cut + close2 - d[e1, g]
                    move[0], move[1], move[2], move[3], move[4] = _OR_OPT, i, j, k, 2 * side
                if room > 2 and cut + close3 - d[e2, g] > best + least:
                    best = cut + close3 - d[e2, g]
                    move[0], move[1], move[2], move[3], move[4] = _OR_OPT, i, j, k, 3 * side
            if index >= N_NEIGHBOURS_3OPT or (j - i) * side < 2:
                continue
            e = path[j - side]
            second = opening + d[e, c]
            for inner in range(min(N_NEIGHBOURS_3OPT, neighbours.shape[1])):
                f = neighbours[e, inner]
                third = second - d[e, f]
                if third <= best + least:
                    break
                k = at[f]
                if (k - j) * side < 1:
                    continue
                g = path[k - side]
                if third + d[g, f] - d[g, b] > best + least:
                    best = third + d[g, f] - d[g, b]
                    move[0], move[1], move[2], move[3], move[4] = _OR_3OPT, i, j, k, side
    return best


@njit(cache=True, nogil=True)
def _runs_behind(a, b, i, side, d, path):  # type: ignore[no-untyped-def]
    """Ends of the runs of two and three nodes behind a, and what closing up gains for each length.

    Closing up after a run that ends in e, with f behind it: e-f goes, b-f comes. A run that would
    contain a sentinel gains ``_NEVER``.
    """
    last = len(path) - 1
    e1 = e2 = a
    close1 = close2 = close3 = _NEVER
    if 1 <= i <= last - 1:
        e1 = path[i - side]
        close1 = d[a, e1] - d[b, e1]
        if 1 <= i - side <= last - 1:
            e2 = path[i - 2 * side]
            close2 = d[e1, e2] - d[b, e2]
            if 1 <= i - 2 * side <= last - 1:
                f = path[i - 3 * side]
                close3 = d[e2, f] - d[b, f]
    return e1, e2, close1, close2, close3


@njit(cache=True, nogil=True)
def runs_of(move, runs):  # type: ignore[no-untyped-def]
    """A move as up to three runs of positions to reverse one after the other; (1, 0) for none.

    Two adjacent runs change places by reversing each and then both together.
    """
    kind, i, j, k, side = move
    runs[:, 0], runs[:, 1] = 1, 0
    if kind == _TWO_OPT:
        low, high = min(i, j), max(i, j)
        runs[0, 0], runs[0, 1] = (low + 1, high) if side == 1 else (low, high - 1)
    elif kind == _OR_3OPT:
        first, middle, final = (i + 1, j, k - 1) if side == 1 else (k + 1, j + 1, i - 1)
        runs[0, 0], runs[0, 1] = first, middle - 1
        runs[1, 0], runs[1, 1] = middle, final
        runs[2, 0], runs[2, 1] = first, final
    else:
        end = i - side + (1 if side > 0 else -1)
        low, high = min(i, end), max(i, end)
        left = min(j, k)  # the run goes between positions left and left + 1
        if left > high:
            runs[0, 0], runs[0, 1] = high + 1, left
            runs[2, 0], runs[2, 1] = low, left
        else:
            runs[0, 0], runs[0, 1] = left + 1, low - 1
            runs[2, 0], runs[2, 1] = left + 1, high
        if (side < 0) != (k < j):  # it keeps its direction: its own reversal undoes the last
            runs[1, 0], runs[1, 1] = low, high
