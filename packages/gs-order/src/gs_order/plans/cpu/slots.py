# SPDX-License-Identifier: Apache-2.0
"""Which slot of the device buffer each row is in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from gs_order.bits import for_each_range
from gs_order.emit import put_values, spread_values
from gs_order.plans.cpu.bits import Sets, loaded, stored
from gs_order.plans.lists import Lists
from gs_order.plans.rules import CHOSEN, LAST_USE
from gs_order.plans.slots import Slots

Bits = np.ndarray[Any, Any]


def assign_slots(sets: Sets, lists: Lists, ends: Bits, places: Bits, n_slots: int) -> Slots:
    """Slots of all rows: loads take the slot that was free longest, first in, first out.

    The queue of free slots is first all of them, then those that stores give back, in the order of
    the store lists. Load h (in the order of the load lists) takes entry h, so its slot is h itself
    or that of the load which store h - n_slots ends; ``n_slots`` is large enough that this store
    comes in time, however far loads run ahead.
    """
    slot_of = _slots_of_loads(ends, int(lists.offsets["load"][-1]), n_slots)
    of = {
        kind: np.empty(lists.offsets[kind][-1], np.int32)
        for kind in ("visible", "store", "returning", "final")
    }
    if sets.rule == LAST_USE:
        of["store"] = of["final"]
    row_slots = np.empty(64 * sets.visible.shape[2] * len(sets.visible), np.int32)

    def run(start: int, stop: int) -> None:
        _look_up(*sets.words, start, stop, places, slot_of, row_slots, *of.values())

    for_each_range(run, len(sets.visible))
    return Slots(n_slots, {"load": slot_of, **of})


@njit(cache=True, nogil=True)
def _slots_of_loads(ends, n_loads, n_slots):  # type: ignore[no-untyped-def]
    slot_of = np.empty(n_loads, np.int32)
    for h in range(min(n_loads, n_slots)):
        slot_of[h] = h
    for h in range(n_slots, n_loads):
        slot_of[h] = slot_of[ends[h - n_slots]]
    return slot_of


@njit(cache=True, nogil=True)
def _look_up(  # type: ignore[no-untyped-def]
    visible,
    rule,
    load,
    store,
    final,
    start,
    stop,
    places,
    slot_of,
    row_slots,
    visible_slots,
    store_slots,
    returning_slots,
    final_slots,
):
    n, n_words = visible.shape[1:]
    around, coming, going, done = np.empty((4, n_words), np.uint64)
    for c in range(start, stop):
        row = 64 * n_words * c
        around[:] = np.uint64(0)
        for i in range(n):
            at, to = places[c, 0, 0, i], places[c, 0, 1, i]
            if at == to:
                continue
            loaded(visible[c], rule, load[c], i, around, coming)
            spread_values(coming, slot_of, places[c, 1, 0, i], row_slots, row)
            put_values(visible[c, i], row_slots, row, visible_slots, at, to)
            if rule == CHOSEN:
                at, to = places[c, 3, 0, i], places[c, 3, 1, i]
                put_values(store[c, i], row_slots, row, store_slots, at, to)
                at, to = places[c, 6, 0, i], places[c, 6, 1, i]
                put_values(final[c, i], row_slots, row, final_slots, at, to)
                at, to = places[c, 5, 0, i], places[c, 5, 1, i]
                if at < to:
                    for w in range(n_words):
                        going[w] = store[c, i, w] & ~final[c, i, w]
                    put_values(going, row_slots, row, returning_slots, at, to)
        if rule == LAST_USE:
            around[:] = np.uint64(0)
            for i in range(n - 1, -1, -1):
                at, to = places[c, 6, 0, i], places[c, 6, 1, i]
                if places[c, 0, 0, i] == places[c, 0, 1, i]:
                    continue
                stored(visible[c], rule, store[c], final[c], i, around, going, done)
                put_values(done, row_slots, row, final_slots, at, to)
