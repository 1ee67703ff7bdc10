# SPDX-License-Identifier: Apache-2.0
"""Plans of numpy arrays: set algebra on transposed bits, then compiled extraction on threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from gs_order.arrays import Array, as_words, check_stray_bits
from gs_order.bits import (
    CHUNK_ROWS,
    for_each_chunk,
    lowest_bit,
    popcount,
    transpose,
)
from gs_order.ragged import offsets_of

Bits = np.ndarray[Any, Any]

_CHUNK_WORDS = CHUNK_ROWS // 64


PREVIOUS, LAST_USE, CHOSEN = range(3)
"""How rows stay: to the next microbatch, to their last use, or as `Sets.load` and `.store` say."""


@dataclass(frozen=True)
class Sets:
    """Who is where, as bits: row i of each is microbatch i, a word is 64 rows of U.

    Attributes:
        visible: (B, ceil(U / 64)) uint64.
        rule: ``PREVIOUS``, ``LAST_USE`` or ``CHOSEN``.
        load, store: parts of visible, same shape, for ``CHOSEN``; otherwise (0, 0), as they follow
            from visible chunk by chunk in less time than it takes to write them down.
    """

    visible: Bits
    rule: int
    load: Bits
    store: Bits


_NO_BITS = np.zeros((0, 0), np.uint64)


def visible_sets(mask: Bits, order: Bits) -> Bits:
    """Visible sets in running order; raises ValueError for bits beyond the views of ``order``."""
    columns, seen = transpose(as_words(mask), order)
    check_stray_bits(seen, len(order))
    return columns


def sets_to_previous(visible: Bits) -> Sets:
    """Sets when rows stay just from one microbatch to the next."""
    return Sets(visible, PREVIOUS, _NO_BITS, _NO_BITS)


def sets_to_last_use(visible: Bits) -> Sets:
    """Sets when rows stay from their first to their last use."""
    return Sets(visible, LAST_USE, _NO_BITS, _NO_BITS)


def sets_within(visible: Bits, capacity: int, ahead: int) -> Sets:
    """Sets when at most ``capacity`` rows are on the device; what is used last leaves first."""
    load, store, final = (np.empty_like(visible) for _ in range(3))
    _classify(visible, LAST_USE, _NO_BITS, _NO_BITS, 0, visible.shape[1], load, store, final)
    _within(visible, final, load, store, capacity, ahead)
    return Sets(visible, CHOSEN, load, store)


def needed_together(visible: Bits, ahead: int) -> Bits:
    """(B,) int64 rows that microbatches i .. i + ahead see together."""
    return np.array([_union_size(visible, i, i + ahead + 1) for i in range(len(visible))])


def _on_chunks(visible: Bits, task: Any) -> list[Any]:
    n_words = visible.shape[1]

    def run(chunk: int) -> Any:
        first = chunk * _CHUNK_WORDS
        return task(first, min(first + _CHUNK_WORDS, n_words))

    return for_each_chunk(run, -(-n_words // _CHUNK_WORDS))


@njit(cache=True, nogil=True)
def _classify(visible, rule, chosen_load, chosen_store, first, last, load, store, final):  # type: ignore[no-untyped-def]
    """Loaded, stored and final rows of words first .. last - 1, at words 0 .. of the outputs."""
    n = visible.shape[0]
    seen = np.zeros(last - first, np.uint64)
    for i in range(n):
        for w in range(first, last):
            here = visible[i, w]
            if rule == PREVIOUS:
                before = visible[i - 1, w] if i > 0 else np.uint64(0)
                after = visible[i + 1, w] if i < n - 1 else np.uint64(0)
                load[i, w - first] = here & ~before
                store[i, w - first] = here & ~after
            elif rule == LAST_USE:
                load[i, w - first] = here & ~seen[w - first]
                seen[w - first] |= here
            else:
                load[i, w - first] = chosen_load[i, w]
                store[i, w - first] = chosen_store[i, w]
    seen[:] = np.uint64(0)
    for i in range(n - 1, -1, -1):
        for w in range(first, last):
            done = visible[i, w] & ~seen[w - first]
            final[i, w - first] = done
            if rule == LAST_USE:
                store[i, w - first] = done
            seen[w - first] |= visible[i, w]


@njit(cache=True, nogil=True)
def _union_size(visible, start, stop):  # type: ignore[no-untyped-def]
    size = np.uint64(0)
    for w in range(visible.shape[1]):
        word = np.uint64(0)
        for i in range(start, min(stop, visible.shape[0])):
            word |= visible[i, w]
        size += popcount(word)
    return np.int64(size)


@njit(cache=True, nogil=True)
def _within(visible, final, load, store, capacity, ahead):  # type: ignore[no-untyped-def]
    """Give up waiting rows where they do not fit: those needed last, by highest row among equals.

    A row between two uses either waits on the device or is stored after the first use and loaded
    for the second. Giving up the one needed furthest ahead whenever too many wait keeps the most
    rows waiting in total: Belady's rule, for intervals that are all known.
    """
    n, n_words = visible.shape
    waiting = np.zeros((n, n_words), np.uint64)  # [j]: rows on the device, next used by j
    n_waiting = np.zeros(n, np.int64)
    for t in range(n):
        idle = np.int64(0)
        for j in range(t + ahead + 1, n):
            idle += n_waiting[j]
        excess = _union_size(visible, t, t + ahead + 1) + idle - capacity
        for j in range(n - 1, t + ahead, -1):
            if excess <= 0:
                break
            given_up = min(excess, n_waiting[j])
            _give_up(visible, load, store, waiting[j], j, t, given_up)
            n_waiting[j] -= given_up
            excess -= given_up
        for w in range(n_words):
            left = visible[t, w] & ~final[t, w]
            j = t + 1
            while left != np.uint64(0):
                used = left & visible[j, w]
                waiting[j, w] |= used
                n_waiting[j] += np.int64(popcount(used))
                left ^= used
                j += 1


@njit(cache=True, nogil=True)
def _give_up(visible, load, store, waiting, j, t, n_rows):  # type: ignore[no-untyped-def]
    """Store ``n_rows`` of the rows that wait for j at their last use before t, from the end."""
    for w in range(len(waiting) - 1, -1, -1):
        if n_rows == 0:
            return
        leaving = waiting[w]
        n_here = np.int64(popcount(leaving))
        while n_here > n_rows:
            leaving &= leaving - np.uint64(1)  # the lowest stays
            n_here -= 1
        waiting[w] ^= leaving
        load[j, w] |= leaving
        n_rows -= n_here
        p = t - 1
        while leaving != np.uint64(0):
            used = leaving & visible[p, w]
            store[p, w] |= used
            leaving ^= used
            p -= 1


@dataclass(frozen=True)
class Lists:
    """Sets as lists: ids (visible) and positions within a microbatch's visible list (the rest)."""

    offsets: dict[str, Bits]
    values: dict[str, Array]


KINDS = ("visible", "load", "retain", "store", "carry", "returning", "final")


def extract(sets: Sets, ids: Bits) -> tuple[Lists, Bits]:
    """All lists of all microbatches, each sorted; and where each chunk of words writes.

    Returns:
        the lists; (chunks, kinds, B) int64, the first place of each chunk in each list.
    """
    n_views, n_words = sets.visible.shape
    bits = (sets.visible, sets.rule, sets.load, sets.store)
    sizes = _on_chunks(sets.visible, lambda first, last: _count(*bits, first, last))
    counts = np.array(sizes, np.int64).reshape(-1, len(KINDS), n_views)
    totals = counts.sum(axis=0)
    offsets = {kind: offsets_of(totals[k]) for k, kind in enumerate(KINDS)}
    # A chunk writes after the microbatches before, and after the chunks before it in its own.
    starts = np.array([offsets[kind][:-1] for kind in KINDS]) + np.cumsum(counts, axis=0) - counts
    firsts = np.cumsum(counts[:, 0], axis=0) - counts[:, 0]  # positions before the chunk's
    values = {
        kind: np.empty(offsets[kind][-1], ids.dtype if kind == "visible" else np.int32)
        for kind in KINDS
    }

    def run(chunk: int) -> None:
        first = chunk * _CHUNK_WORDS
        _extract(
            *bits,
            first,
            min(first + _CHUNK_WORDS, n_words),
            ids,
            starts[chunk],
            firsts[chunk],
            *(values[kind] for kind in KINDS),
        )

    for_each_chunk(run, len(counts))
    return Lists(offsets, values), starts


@njit(cache=True, nogil=True)
def _count(visible, rule, chosen_load, chosen_store, first, last):  # type: ignore[no-untyped-def]
    """Sizes of the seven lists in words first .. last - 1."""
    n = visible.shape[0]
    load, store, final = np.empty((3, n, last - first), np.uint64)
    _classify(visible, rule, chosen_load, chosen_store, first, last, load, store, final)
    counts = np.zeros((7, n), np.int64)
    for i in range(n):
        n_visible = n_load = n_store = n_final = np.uint64(0)
        for w in range(last - first):
            n_visible += popcount(visible[i, first + w])
            n_load += popcount(load[i, w])
            n_store += popcount(store[i, w])
            n_final += popcount(final[i, w])
        counts[0, i] = np.int64(n_visible)
        counts[1, i] = np.int64(n_load)
        counts[2, i] = np.int64(n_visible) - np.int64(n_load)
        counts[3, i] = np.int64(n_store)
        counts[4, i] = np.int64(n_visible) - np.int64(n_store)
        counts[5, i] = np.int64(n_store) - np.int64(n_final)
        counts[6, i] = np.int64(n_final)
    return counts


@njit(cache=True, nogil=True)
def _positions(part, whole, position, out, at):  # type: ignore[no-untyped-def]
    """Append the places of ``part``'s bits among ``whole``'s, which start at ``position``."""
    if part == whole:  # common where rows lie along a curve, and many times faster
        n = np.int64(popcount(whole))
        for k in range(n):
            out[at + k] = position + k
        return at + n
    one = np.uint64(1)
    while part != np.uint64(0):
        rest = part & (part - one)
        below = (part ^ rest) - one
        out[at] = position + np.int64(popcount(whole & below))
        at += 1
        part = rest
    return at


@njit(cache=True, nogil=True)
def _extract(  # type: ignore[no-untyped-def]
    visible,
    rule,
    chosen_load,
    chosen_store,
    first,
    last,
    ids,
    starts,
    firsts,
    out_visible,
    out_load,
    out_retain,
    out_store,
    out_carry,
    out_returning,
    out_final,
):
    one = np.uint64(1)
    all_rows = ~np.uint64(0)
    load, store, final = np.empty((3, visible.shape[0], last - first), np.uint64)
    _classify(visible, rule, chosen_load, chosen_store, first, last, load, store, final)
    for i in range(visible.shape[0]):
        at_visible, at_load, at_retain = starts[0, i], starts[1, i], starts[2, i]
        at_store, at_carry = starts[3, i], starts[4, i]
        at_returning, at_final = starts[5, i], starts[6, i]
        position = firsts[i]
        for w in range(first, last):
            here = visible[i, w]
            if here == np.uint64(0):
                continue
            if here == all_rows:
                out_visible[at_visible : at_visible + 64] = ids[64 * w : 64 * w + 64]
                at_visible += 64
            else:
                rest = here
                while rest != np.uint64(0):
                    out_visible[at_visible] = ids[64 * w + np.int64(lowest_bit(rest))]
                    at_visible += 1
                    rest &= rest - one
            k = w - first
            loaded, stored, done = load[i, k], store[i, k], final[i, k]
            at_load = _positions(loaded, here, position, out_load, at_load)
            at_retain = _positions(here & ~loaded, here, position, out_retain, at_retain)
            at_store = _positions(stored, here, position, out_store, at_store)
            at_carry = _positions(here & ~stored, here, position, out_carry, at_carry)
            at_returning = _positions(stored & ~done, here, position, out_returning, at_returning)
            at_final = _positions(done, here, position, out_final, at_final)
            position += np.int64(popcount(here))


def assign_slots(sets: Sets, lists: Lists, starts: Bits, n_slots: int) -> Bits:
    """Slot of each visible row: loads take the slot that was free longest, first in, first out.

    The queue of free slots is first all of them, then those that stores give back, in the order of
    the store lists. Load h (in the order of the load lists) takes entry h, so its slot is h itself
    or that of the load which store h - n_slots ends; ``n_slots`` is large enough that this store
    comes in time, however far loads run ahead.
    """
    slots = np.empty(lists.offsets["visible"][-1], np.int32)
    ends = np.empty(lists.offsets["store"][-1], np.int32)  # the load that each store ends
    load_of = np.empty(64 * sets.visible.shape[1], np.int32)  # the load that each row is there by
    bits = (sets.visible, sets.rule, sets.load, sets.store)

    def find(first: int, last: int) -> None:
        _find_loads(*bits, first, last, starts[first // _CHUNK_WORDS], load_of, slots, ends)

    _on_chunks(sets.visible, find)
    slot_of = _slots_of_loads(ends, int(lists.offsets["load"][-1]), n_slots)
    step = 16 * CHUNK_ROWS

    def look_up(chunk: int) -> None:
        part = slots[chunk * step : (chunk + 1) * step]
        np.take(slot_of, part, out=part)

    for_each_chunk(look_up, -(-len(slots) // step))
    return slots


@njit(cache=True, nogil=True)
def _find_loads(  # type: ignore[no-untyped-def]
    visible, rule, chosen_load, chosen_store, first, last, starts, load_of, loads, ends
):
    """For each visible row the number of the load that brought it; for each store likewise."""
    one = np.uint64(1)
    n = visible.shape[0]
    load, store, final = np.empty((3, n, last - first), np.uint64)
    _classify(visible, rule, chosen_load, chosen_store, first, last, load, store, final)
    for i in range(n):
        at, at_load, at_store = starts[0, i], starts[1, i], starts[3, i]
        for w in range(first, last):
            rest = visible[i, w]
            loaded, stored = load[i, w - first], store[i, w - first]
            while rest != np.uint64(0):
                bit = rest & (~rest + one)
                row = 64 * w + np.int64(lowest_bit(rest))
                if loaded & bit:
                    load_of[row] = at_load
                    at_load += 1
                loads[at] = load_of[row]
                at += 1
                if stored & bit:
                    ends[at_store] = load_of[row]
                    at_store += 1
                rest ^= bit


@njit(cache=True, nogil=True)
def _slots_of_loads(ends, n_loads, n_slots):  # type: ignore[no-untyped-def]
    slot_of = np.empty(n_loads, np.int32)
    for h in range(n_loads):
        slot_of[h] = h if h < n_slots else slot_of[ends[h - n_slots]]
    return slot_of
