# SPDX-License-Identifier: Apache-2.0
"""Bit masks, one bit a view: compiled words, transposition, and threads over chunks of rows.

A mask (U, W) has a row per id and a bit per view. Nearly everything here is asked per view, so the
bits are transposed first: ``columns[b, w]`` holds view b of rows 64 w .. 64 w + 63, lowest bit
first. Set algebra on visible sets is then one machine operation for 64 rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

CHUNK_ROWS = 1 << 16
"""Rows that one task handles: 64 views of them are 512 KiB of bits, which a core's L2 holds."""


def _popcount(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


def _lowest_bit(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero_is_undefined = ir.Constant(ir.IntType(1), 1)
        return builder.cttz(args[0], zero_is_undefined)

    return types.uint64(types.uint64), generate


popcount: Any = intrinsic(_popcount)
"""Number of set bits of a uint64, in compiled code."""

lowest_bit: Any = intrinsic(_lowest_bit)
"""Index of the lowest set bit of a uint64 that is not zero, in compiled code."""


def n_threads() -> int:
    """Threads that work on one call: the cores this process may use, or ``GS_NUM_THREADS``.

    Raises:
        ValueError: ``GS_NUM_THREADS`` is no whole number.
    """
    asked = os.environ.get("GS_NUM_THREADS")
    if asked:
        try:
            return max(1, int(asked))
        except ValueError:
            raise ValueError(f"GS_NUM_THREADS must be a whole number, got {asked!r}") from None
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_each_chunk(task: Callable[[int], Any], n_chunks: int) -> list[Any]:
    """``[task(0), task(1), ...]``, on threads when there is more than one chunk.

    The tasks are compiled functions that release the GIL, so plain threads run them side by side.
    Unlike a process-wide pool these may be used from several threads at once and after a fork, and
    none outlives the call.
    """
    workers = min(n_threads(), n_chunks)
    if workers <= 1:
        return [task(chunk) for chunk in range(n_chunks)]
    with ThreadPoolExecutor(workers, thread_name_prefix="gs-order") as pool:
        return list(pool.map(task, range(n_chunks)))


def for_each_range(task: Callable[[int, int], Any], n: int) -> list[Any]:
    """``task(first, last)`` over parts of 0 .. n, a few for each thread; their results in order."""
    n_parts = min(n, 4 * n_threads())
    borders = [n * k // n_parts for k in range(n_parts + 1)] if n_parts else [0]
    return for_each_chunk(lambda k: task(borders[k], borders[k + 1]), n_parts)


def n_chunks_of(n_rows: int) -> int:
    """Chunks of ``CHUNK_ROWS`` that hold ``n_rows`` rows."""
    return -(-n_rows // CHUNK_ROWS)


@njit(cache=True, nogil=True)
def _transpose_64(block):  # type: ignore[no-untyped-def]
    """Transpose 64 words of 64 bits in place: swap halves, quarters, ... down to single bits."""
    width = np.uint64(32)
    keep = np.uint64(0x00000000FFFFFFFF)
    while width > np.uint64(0):
        step = np.int64(width)
        for start in range(0, 64, 2 * step):
            for k in range(start, start + step):
                swap = ((block[k] >> width) ^ block[k + step]) & keep
                block[k] ^= swap << width
                block[k + step] ^= swap
        width >>= np.uint64(1)
        keep ^= keep << width


@njit(cache=True, nogil=True)
def transpose_chunk(mask, view_at, columns):  # type: ignore[no-untyped-def]
    """Columns of some rows, from their first on; returns the OR of the rows, (W,) uint32.

    Args:
        mask: (n, W) uint32.
        view_at: (32 * W,) int64, the row of ``columns`` of each view, or -1 for a bit that no view
            owns.
        columns: (B, at least ceil(n / 64)) uint64; words beyond the rows are left alone.
    """
    n, n_words = mask.shape
    block = np.empty(64, np.uint64)
    seen = np.zeros(n_words, np.uint32)
    for start in range(0, n, 64):
        n_rows = min(64, n - start)
        at = start // 64
        for word in range(0, n_words, 2):
            two = word + 1 < n_words
            either, both = np.uint64(0), ~np.uint64(0)
            for r in range(n_rows):
                row = np.uint64(mask[start + r, word])
                if two:
                    row |= np.uint64(mask[start + r, word + 1]) << np.uint64(32)
                block[r] = row
                either |= row
                both &= row
            for r in range(n_rows, 64):
                block[r] = np.uint64(0)
                both = np.uint64(0)
            seen[word] |= np.uint32(either & np.uint64(0xFFFFFFFF))
            if two:
                seen[word + 1] |= np.uint32(either >> np.uint64(32))
            n_bits = 64 if two else 32
            if either == both:  # 64 rows alike: common where rows lie along a curve
                for b in range(n_bits):
                    if view_at[word * 32 + b] >= 0:
                        bit = (either >> np.uint64(b)) & np.uint64(1)
                        columns[view_at[word * 32 + b], at] = np.uint64(0) - bit
                continue
            _transpose_64(block)
            for b in range(n_bits):
                if view_at[word * 32 + b] >= 0:
                    columns[view_at[word * 32 + b], at] = block[b]
    return seen


def places_of(order: np.ndarray[Any, Any], n_words: int) -> np.ndarray[Any, Any]:
    """(32 * n_words,) int64: where in ``order`` each view is, -1 for those it lacks."""
    view_at = np.full(32 * n_words, -1, np.int64)
    view_at[order] = np.arange(len(order))
    return view_at


def transpose(
    mask: np.ndarray[Any, Any], order: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bits of each view as a row of words.

    Args:
        mask: (U, W) uint32.
        order: (B,) int64 of distinct views; row i of the result is view ``order[i]``.

    Returns:
        columns: (B, ceil(U / 64)) uint64.
        seen: (W,) uint32, the OR of all rows: which bits occur at all.
    """
    n_rows, n_words = mask.shape
    view_at = places_of(order, n_words)
    columns = np.zeros((len(order), -(-n_rows // 64)), np.uint64)

    def run(chunk: int) -> Any:
        first = chunk * CHUNK_ROWS
        words = columns[:, first // 64 : (first + CHUNK_ROWS) // 64]
        return transpose_chunk(mask[first : first + CHUNK_ROWS], view_at, words)

    seen = for_each_chunk(run, n_chunks_of(n_rows))
    return columns, np.bitwise_or.reduce(np.array(seen, np.uint32).reshape(-1, n_words), axis=0)
