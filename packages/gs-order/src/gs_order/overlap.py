# SPDX-License-Identifier: Apache-2.0
"""How much the visible sets of a batch share: pairwise counts, exact or from a hashed sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from gs_order.arrays import (
    Array,
    as_words,
    check_ids,
    check_mask,
    check_n_views,
    check_stray_bits,
    highest_bit,
    is_torch,
)
from gs_order.bits import CHUNK_ROWS, for_each_chunk, n_chunks_of, popcount, transpose
from gs_order.checks import real

_WORDS_AT_ONCE = 64  # of each view: 64 views are 32 KiB, one core's L1
_TORCH_ROWS = 1 << 18  # sums of so many ones are exact in float32, and 64 views are 64 MiB


def and_counts(mask: Array, *, n_views: int | None = None) -> np.ndarray[Any, Any]:
    """Rows that each pair of views shares.

    Args:
        mask: (U, W) uint32 numpy or int32 torch, on any device; view b is bit b % 32 of word
            b // 32, least significant first.
        n_views: B; the highest set bit + 1 when None.

    Returns:
        (B, B) int64 numpy: ``[a, b]`` is the size of the intersection, ``[b, b]`` of view b's set.

    Raises:
        TypeError: a mask of another type.
        ValueError: a mask of another width than B needs, or with bits beyond B; no view at all.

    Asynchrony: a CUDA mask is counted on its device; the result arrives by the only
        synchronisation.
    Cost: U * B^2 / 128 popcounts, threads over rows, or one matrix product on a device.
    """
    return shared_and_sample(mask, n_views, 0)[0]


def xor_counts(mask: Array, *, n_views: int | None = None) -> np.ndarray[Any, Any]:
    """Count the rows that exactly one of two views sees: the rows that move between the views.

    Arguments, errors and cost as `and_counts`.

    Returns:
        (B, B) int64 numpy, symmetric, zero on the diagonal: a metric.

    >>> mask = np.array([[0b01], [0b11], [0b11], [0b10], [0b10]], np.uint32)
    >>> xor_counts(mask)
    array([[0, 3],
           [3, 0]])
    """
    return xor_from_and(and_counts(mask, n_views=n_views))


def xor_from_and(shared: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sizes of symmetric differences from sizes of intersections, both (B, B)."""
    sizes = np.diagonal(shared)
    return sizes[:, None] + sizes[None, :] - 2 * shared


def shared_and_sample(
    mask: Array, n_views: int | None, n_sample: int, *, pairs: bool = True
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """`and_counts`, and about ``n_sample`` evenly spaced rows of the mask, (M, W) uint32.

    Both leave a device in one transfer. Without ``pairs`` only the diagonal is filled in.
    """
    n_words = check_mask(mask)
    if n_views is not None:
        n_views = check_n_views(n_views, n_words)
    rows = mask[:: max(1, -(-mask.shape[0] // n_sample))] if n_sample else mask[:0]
    if is_torch(mask):
        counts, sample = _count_torch(mask, rows)
    else:
        counts, sample = _count_numpy(mask, pairs), as_words(rows)
    seen = np.packbits(np.diagonal(counts) > 0, bitorder="little").view("<u4")
    if n_views is None:
        n_views = highest_bit(seen) + 1
        if n_views == 0:
            raise ValueError("mask must have a set bit when n_views is None, got none")
    check_stray_bits(seen, n_views)
    return counts[:n_views, :n_views], sample


def _count_numpy(mask: np.ndarray[Any, Any], pairs: bool) -> np.ndarray[Any, Any]:
    n_bits = 32 * mask.shape[1]
    columns, seen = transpose(as_words(mask), np.arange(n_bits))
    columns = columns[: highest_bit(seen) + 1]
    step = CHUNK_ROWS // 64

    def run(chunk: int) -> Any:
        return _pair_counts(columns[:, chunk * step : (chunk + 1) * step], pairs)

    counts = np.zeros((n_bits, n_bits), np.int64)
    for part in for_each_chunk(run, n_chunks_of(mask.shape[0])):
        counts[: len(part), : len(part)] += part
    return counts


@njit(cache=True, nogil=True)
def _pair_counts(columns, pairs):  # type: ignore[no-untyped-def]
    """Intersection sizes of all pairs of bit rows (B, w) uint64."""
    n_views, n_words = columns.shape
    counts = np.zeros((n_views, n_views), np.int64)
    for start in range(0, n_words, _WORDS_AT_ONCE):
        stop = min(start + _WORDS_AT_ONCE, n_words)
        for a in range(n_views):
            for b in range(0 if pairs else a, a + 1):
                total = np.uint64(0)
                for w in range(start, stop):
                    total += popcount(columns[a, w] & columns[b, w])
                counts[a, b] += np.int64(total)
    for a in range(n_views):
        for b in range(a):
            counts[b, a] = counts[a, b]
    return counts


def _count_torch(mask: Any, rows: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import torch

    words = mask.detach().view(torch.int32)
    n_bits = 32 * words.shape[1]
    bit = torch.arange(32, dtype=torch.int32, device=mask.device)
    counts = torch.zeros((n_bits, n_bits), dtype=torch.int64, device=mask.device)
    for start in range(0, words.shape[0], _TORCH_ROWS):
        part = words[start : start + _TORCH_ROWS]
        ones = ((part[:, :, None] >> bit) & 1).to(torch.float32).reshape(len(part), n_bits)
        counts += (ones.T @ ones).to(torch.int64)
    sample = rows.detach().view(torch.int32).to(torch.int64)
    both = torch.cat([counts.flatten(), sample.flatten()]).cpu().numpy()
    return (
        both[: n_bits * n_bits].reshape(n_bits, n_bits),
        both[n_bits * n_bits :].astype(np.uint32).reshape(-1, words.shape[1]),
    )


@dataclass(frozen=True)
class Estimate:
    """Counts estimated from a sample.

    Attributes:
        counts: (B, B) float64, unbiased.
        standard_error: (B, B) float64, of each count.
        n_sampled: rows that were looked at.
    """

    counts: np.ndarray[Any, Any]
    standard_error: np.ndarray[Any, Any]
    n_sampled: int


def estimate_xor_counts(
    ids: Array, mask: Array, *, n_views: int | None = None, rate: float = 1 / 64
) -> Estimate:
    """Estimate `xor_counts` from the rows with a hashed id below ``rate``.

    The hash decides by id alone, so every view and batch samples the same Gaussians. Each
    row of a difference of d rows is sampled with probability p = ``rate``; the estimate
    (sampled / p) has the standard error sqrt(d (1 - p) / p), reported with d estimated. At
    d = 100,000 and p = 1/64 that is 2.5 %.

    Args:
        ids: (U,) int32 or int64, the Gaussians' ids.
        mask: (U, W) as for `and_counts`; numpy or torch as ``ids``.
        n_views: B; the highest set bit among the sampled rows + 1 when None.
        rate: share of the rows looked at, in (0, 1].

    Returns:
        the estimated (B, B) counts and their errors.

    Raises:
        TypeError, ValueError: as `and_counts`; ids of another length or type; rate out of range.

    Asynchrony: on a device, waits twice, for the size of the sample and for the counts.
    """
    check_mask(mask)
    check_ids(ids, mask)
    rate = real("rate", rate)
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be in (0, 1], got {rate}")
    sampled = mask[hash_ids(ids) < round(rate * 2**31)]
    d = xor_counts(sampled, n_views=n_views) / rate
    return Estimate(d, np.sqrt(d * (1 - rate) / rate), int(sampled.shape[0]))


def hash_ids(ids: Array) -> Array:
    """A fixed pseudo-random number in [0, 2^31) for each id: the same in numpy and in torch.

    The finaliser of a multiplicative hash (xor-shift, odd multiplier, twice), kept to 31 bits so
    that int64 products never overflow in either library.
    """
    x = ids.long() if is_torch(ids) else np.asarray(ids).astype(np.int64)
    x = x & 0x7FFFFFFF
    for multiplier in (0x45D9F3B, 0x119DE1F3):
        x = ((x ^ (x >> 16)) * multiplier) & 0x7FFFFFFF
    return x ^ (x >> 16)
