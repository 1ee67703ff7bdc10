# SPDX-License-Identifier: Apache-2.0
"""Visible sets as bits in running order, who is loaded and stored when, and how many that makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from gs_order.arrays import as_words, check_stray_bits
from gs_order.bits import for_each_range, places_of, popcount, transpose_chunk
from gs_order.plans.rules import CHOSEN, LAST_USE, PREVIOUS

Bits = np.ndarray[Any, Any]

CHUNK_WORDS = 520
"""Words that are worked on together: 64 views of them are 260 KiB of bits, half of a core's L2.

No power of two: the same word of all views would fall into one set of the cache.
"""

VISIBLE, LOAD, STORE, FINAL = range(4)
"""What is counted; the other lists are what these leave."""


@dataclass(frozen=True)
class Sets:
    """Who is where, as bits: [c, i] is microbatch i in chunk c, a word is 64 rows of U.

    Attributes:
        visible: (chunks, B, 520) uint64.
        rule: ``PREVIOUS``, ``LAST_USE`` or ``CHOSEN``.
        load, store, final: parts of visible, same shape, for ``CHOSEN``; otherwise just visible, as
            they follow from it in less time than it takes to write them down.
        counts: (chunks, 4, B) int64, rows of each chunk: visible, load, store, final.
    """

    visible: Bits
    rule: int
    load: Bits
    store: Bits
    final: Bits
    counts: Bits

    @property
    def n_views(self) -> int:
        """B."""
        return int(self.visible.shape[1])

    @property
    def words(self) -> tuple[Bits, int, Bits, Bits, Bits]:
        """What compiled functions take."""
        return self.visible, self.rule, self.load, self.store, self.final

    def total(self, kind: int) -> Bits:
        """(B,) int64 rows of ``VISIBLE``, ``LOAD``, ``STORE`` or ``FINAL``."""
        return np.asarray(self.counts[:, kind].sum(axis=0))


def sets_of(mask: Bits, order: Bits, rule: int) -> Sets:
    """Visible sets in running order, for a rule that is not ``CHOSEN``.

    Raises:
        ValueError: the mask (U, W) has bits beyond the views of ``order``.
    """
    mask = as_words(mask)
    view_at = places_of(order, mask.shape[1])
    n_chunks = -(-len(mask) // (64 * CHUNK_WORDS))
    visible = np.empty((n_chunks, len(order), CHUNK_WORDS), np.uint64)
    counts = np.empty((n_chunks, 4, len(order)), np.int64)

    def prepare(first: int, last: int) -> Any:
        return _prepare(mask, view_at, visible, rule, first, last, counts)

    seen = for_each_range(prepare, n_chunks)
    together = np.bitwise_or.reduce(np.array(seen, np.uint32).reshape(-1, mask.shape[1]), axis=0)
    check_stray_bits(together, len(order))
    return Sets(visible, rule, visible, visible, visible, counts)


def needed_together(sets: Sets, ahead: int) -> Bits:
    """(B,) int64 rows that microbatches i .. i + ahead see together."""
    if ahead == 0:
        return sets.total(VISIBLE)

    def count(first: int, last: int) -> Any:
        return _unions(sets.visible, ahead, first, last)

    parts = for_each_range(count, len(sets.visible))
    return np.array(parts, np.int64).reshape(-1, sets.n_views).sum(axis=0)


@njit(cache=True, nogil=True)
def _prepare(mask, view_at, visible, rule, first, last, counts):  # type: ignore[no-untyped-def]
    """Transpose chunks and count them while they are in the cache; the OR of their rows."""
    seen = np.zeros(mask.shape[1], np.uint32)
    n_rows = 64 * visible.shape[2]
    for c in range(first, last):
        rows = mask[c * n_rows : (c + 1) * n_rows]
        visible[c, :, (len(rows) + 63) // 64 :] = np.uint64(0)
        seen |= transpose_chunk(rows, view_at, visible[c])
        count_chunk(visible[c], rule, visible[c], visible[c], visible[c], counts[c])
    return seen


@njit(cache=True, nogil=True)
def loaded(visible, rule, load, i, before, out):  # type: ignore[no-untyped-def]
    """Rows that microbatch i of a chunk loads, into ``out``; call for i = 0, 1, ...

    ``before`` (words,) keeps what earlier microbatches saw; zero at first.
    """
    if rule == CHOSEN:
        out[:] = load[i]
        return
    here = visible[i]
    for w in range(len(out)):
        out[w] = here[w] & ~before[w]
        before[w] = here[w] if rule == PREVIOUS else before[w] | here[w]


@njit(cache=True, nogil=True)
def stored(visible, rule, store, final, i, after, out_store, out_final):  # type: ignore[no-untyped-def]
    """Rows that microbatch i stores and finishes, into ``out_*``; call for i = B - 1, B - 2, ...

    ``after`` (words,) keeps what later microbatches see; zero at first.
    """
    if rule == CHOSEN:
        out_store[:] = store[i]
        out_final[:] = final[i]
        return
    here = visible[i]
    for w in range(len(after)):
        out_final[w] = here[w] & ~after[w]
        after[w] |= here[w]
    if rule == LAST_USE or i == len(visible) - 1:
        out_store[:] = out_final
        return
    following = visible[i + 1]
    for w in range(len(after)):
        out_store[w] = here[w] & ~following[w]


@njit(cache=True, nogil=True)
def count_bits(bits):  # type: ignore[no-untyped-def]
    """Set bits of words."""
    n = np.uint64(0)
    for w in range(len(bits)):
        n += popcount(bits[w])
    return np.int64(n)


@njit(cache=True, nogil=True)
def count_chunk(visible, rule, load, store, final, counts):  # type: ignore[no-untyped-def]
    """Rows of one chunk, into ``counts`` (4, B)."""
    n, n_words = visible.shape
    around = np.zeros(n_words, np.uint64)
    one, two = np.empty((2, n_words), np.uint64)
    for i in range(n):
        loaded(visible, rule, load, i, around, one)
        counts[VISIBLE, i] = count_bits(visible[i])
        counts[LOAD, i] = count_bits(one)
    around[:] = np.uint64(0)
    for i in range(n - 1, -1, -1):
        stored(visible, rule, store, final, i, around, one, two)
        counts[FINAL, i] = count_bits(two)
        counts[STORE, i] = counts[FINAL, i] if rule == LAST_USE else count_bits(one)


@njit(cache=True, nogil=True)
def _unions(visible, ahead, first, last):  # type: ignore[no-untyped-def]
    n = visible.shape[1]
    sizes = np.zeros(n, np.int64)
    union = np.empty(visible.shape[2], np.uint64)
    for c in range(first, last):
        for i in range(n):
            union[:] = visible[c, i]
            for j in range(i + 1, min(i + ahead + 1, n)):
                union |= visible[c, j]
            sizes[i] += count_bits(union)
    return sizes
