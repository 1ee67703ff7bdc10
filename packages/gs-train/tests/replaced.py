# SPDX-License-Identifier: Apache-2.0
"""Where rows are after some were replaced by others: the rule in plain lists."""

from __future__ import annotations

from collections.abc import Sequence


def sources(n: int, removed: Sequence[int], n_new: int) -> list[int]:
    """What is in each place afterwards: below n the row that was there, n + k for new row k."""
    n_after = n - len(removed) + n_new
    places: list[int | None] = [None if i in set(removed) else i for i in range(n)]
    places += [None] * (n_after - n)
    free = [i for i in range(n_after) if places[i] is None]
    new = [n + k for k in range(n_new)]
    last = [row for row in places[n_after:] if row is not None]
    if n_new >= len(removed):  # those new rows that find no place of a removed one come last
        holes = len(removed)
        filling = [k * n_new // holes for k in range(holes)]
        comers = [new[k] for k in filling] + [new[k] for k in range(n_new) if k not in filling]
    else:
        comers = [-1] * len(free)
        for k in range(n_new):
            comers[k * len(free) // n_new] = new[k]
        rest = iter(last)
        comers = [next(rest) if row < 0 else row for row in comers]
    for place, row in zip(free, comers, strict=True):
        places[place] = row
    return [row for row in places[:n_after] if row is not None]
