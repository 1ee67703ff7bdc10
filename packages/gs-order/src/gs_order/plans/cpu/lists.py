# SPDX-License-Identifier: Apache-2.0
"""The lists of a plan, written out from bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gs_order.bits import for_each_range
from gs_order.emit import number_bits, put_positions, put_rest, put_values
from gs_order.plans.cpu.bits import FINAL, LOAD, STORE, VISIBLE, Sets, loaded, stored
from gs_order.plans.lists import KINDS, MOVED, Lists, numbers_of
from gs_order.plans.rules import CHOSEN, LAST_USE
from gs_order.ragged import offsets_of

Bits = np.ndarray[Any, Any]


def extract(sets: Sets, ids: Bits) -> tuple[Lists, Bits, Bits]:
    """All lists of all microbatches, each sorted.

    Returns:
        lists: where rows stay to their last use ``store`` and ``final`` share their arrays.
        ends: (stores,) int32, the number of the load that each store ends, where loads are counted
            in the order of their list; empty for ``PREVIOUS``, where rows have no slots.
        places: (chunks, kinds, 2, B) int64, where each chunk writes in each list, from and to.
    """
    counted = (sets.counts[:, kind] for kind in (VISIBLE, LOAD, STORE, FINAL))
    counts = np.stack(list(numbers_of(*counted).values()), axis=1)
    offsets = {kind: offsets_of(counts[:, k].sum(axis=0)) for k, kind in enumerate(KINDS)}
    # A chunk writes after the microbatches before, and after the chunks before it in its own.
    to = np.array([offsets[kind][:-1] for kind in KINDS]) + np.cumsum(counts, axis=0)
    places = np.stack([to - counts, to], axis=2)
    positions = {kind: np.empty(offsets[kind][-1], np.int32) for kind in KINDS[1:]}
    values = {kind: np.empty(offsets[kind][-1], ids.dtype) for kind in ("visible", *MOVED)}
    if sets.rule == LAST_USE:
        positions["store"], values["store"] = positions["final"], values["final"]
    has_slots = sets.rule in (LAST_USE, CHOSEN)
    ends = np.empty(offsets["store"][-1] if has_slots else 0, np.int32)
    load_of = np.empty(len(ids) if has_slots else 0, np.int32)
    first = offsets["visible"][:-1]

    def run(start: int, stop: int) -> None:
        lists: list[Any] = [*values.values(), *positions.values()]
        arguments = [*sets.words, start, stop, places, first, ids, *lists, load_of, ends]
        _extract(*arguments)

    for_each_range(run, len(sets.visible))
    return Lists(offsets, values, positions), ends, places


@njit(cache=True, nogil=True)
def _extract(  # type: ignore[no-untyped-def]
    visible,
    rule,
    load,
    store,
    final,
    start,
    stop,
    places,
    first,
    ids,
    visible_ids,
    load_ids,
    store_ids,
    returning_ids,
    final_ids,
    load_at,
    retain_at,
    store_at,
    carry_at,
    returning_at,
    final_at,
    load_of,
    ends,
):
    """Forwards through the microbatches for what comes, backwards for what goes."""
    n, n_words = visible.shape[1:]
    around, coming, going, done, rest = np.empty((5, n_words), np.uint64)
    for c in range(start, stop):
        row = 64 * n_words * c
        around[:] = np.uint64(0)
        for i in range(n):
            here = visible[c, i]
            at, to = places[c, 0, 0, i], places[c, 0, 1, i]
            if at == to:
                if rule != CHOSEN:  # the others need to know who was seen just before
                    loaded(visible[c], rule, load[c], i, around, coming)
                continue
            position = at - first[i]
            put_values(here, ids, row, visible_ids, at, to)
            loaded(visible[c], rule, load[c], i, around, coming)
            at, to = places[c, 1, 0, i], places[c, 1, 1, i]
            if at < to:
                put_values(coming, ids, row, load_ids, at, to)
                put_positions(coming, here, position, load_at, at, to)
                if len(load_of):
                    number_bits(coming, row, at, load_of)
            at, to = places[c, 2, 0, i], places[c, 2, 1, i]
            if at < to:
                put_rest(coming, here, position, retain_at, at, to, rest)
            if rule == CHOSEN and len(ends):
                at, to = places[c, 3, 0, i], places[c, 3, 1, i]
                put_values(store[c, i], load_of, row, ends, at, to)
        around[:] = np.uint64(0)
        for i in range(n - 1, -1, -1):
            here = visible[c, i]
            at, to = places[c, 0, 0, i], places[c, 0, 1, i]
            if at == to:
                continue
            position = at - first[i]
            stored(visible[c], rule, store[c], final[c], i, around, going, done)
            at, to = places[c, 3, 0, i], places[c, 3, 1, i]
            if at < to and rule == LAST_USE:
                put_values(going, load_of, row, ends, at, to)
            elif at < to:
                put_values(going, ids, row, store_ids, at, to)
                put_positions(going, here, position, store_at, at, to)
            at, to = places[c, 4, 0, i], places[c, 4, 1, i]
            if at < to:
                put_rest(going, here, position, carry_at, at, to, rest)
            at, to = places[c, 6, 0, i], places[c, 6, 1, i]
            if at < to:
                put_values(done, ids, row, final_ids, at, to)
                put_positions(done, here, position, final_at, at, to)
            at, to = places[c, 5, 0, i], places[c, 5, 1, i]
            if at < to:
                for w in range(n_words):
                    going[w] &= ~done[w]
                put_values(going, ids, row, returning_ids, at, to)
                put_positions(going, here, position, returning_at, at, to)
