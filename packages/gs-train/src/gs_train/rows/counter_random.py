# SPDX-License-Identifier: Apache-2.0
"""Random numbers that are a function of (seed, purpose, step, row, column) and of nothing else.

No generator has a state, so nothing has to be saved for a resume, the order of calls does not
matter, and rows keep their numbers wherever they live: on the GPU, in host memory, in parts.

The function is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC 2011). The seed is its key; row, column / 4, step and purpose are its four counter
words, so different arguments never share a block of numbers. It is computed with int64 tensors,
whose products wrap modulo 2^64 and therefore have the right low 64 bits.

What agrees bit for bit: ``bits``, ``uniform`` and ``permutation`` on every device, for any
subset of rows. ``normal`` computes in float64 and rounds to float32: another device's logarithm
or cosine may differ in the last float64 bit, which survives the rounding about once in 10^8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import IntEnum

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What numbers are for. The values are part of the recipe: never change or reuse one."""

    INITIAL_POINTS = 1
    INITIAL_QUATS = 2
    SPLIT = 3
    RELOCATE = 4
    ADD = 5
    NOISE = 6


_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

# Rows at a time: on the CPU so that the block's words stay in the cache, on a GPU so that the
# workspace stays small beside the model.
_CHUNK = {"cpu": 1 << 15}
_CHUNK_ELSEWHERE = 1 << 20


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> list[Tensor]:
    """Philox4x32-10 of many counters under one key.

    Args:
        counter: four words, int64 tensors with values in [0, 2^32), which broadcast together.
        key: two words in [0, 2^32).

    Returns:
        Four int64 tensors of the broadcast shape with values in [0, 2^32).
    """
    # Products' high halves are needed masked, their low halves are masked by the next round.
    x0, y0, x1, y1 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = x0 * _MULTIPLIERS[0]
        product1 = x1 * _MULTIPLIERS[1]
        x0 = ((product1 >> 32) ^ y0 ^ k0) & _MASK
        x1 = ((product0 >> 32) ^ y1 ^ k1) & _MASK
        y0, y1 = product1, product0
        k0 = (k0 + _KEY_INCREMENTS[0]) & _MASK
        k1 = (k1 + _KEY_INCREMENTS[1]) & _MASK
    return [x0, y0 & _MASK, x1, y1 & _MASK]


def bits(
    seed: int,
    purpose: Purpose,
    step: int,
    rows: int | Tensor,
    columns: int,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Independent 32-bit words, one for each row and column.

    Args:
        seed: in [0, 2^64).
        purpose: what the numbers are for.
        step: in [0, 2^32).
        rows: a count R, meaning rows 0 to R - 1, or (R,) int32 or int64 row ids in [0, 2^32),
            in any order, repeats allowed; their values are trusted.
        columns: C. Word c of a row does not depend on how many columns are asked for.
        device: where to compute; the CPU, or that of ``rows``, when None.

    Returns:
        (R, C) int64 on ``device``, values in [0, 2^32).

    Raises:
        TypeError: ``rows`` is a tensor that is not one-dimensional int32 or int64.
        ValueError: ``seed``, ``step``, ``columns`` or the count of rows is out of range.

    Cost: about a hundred elementwise kernels for every 2^20 rows (2^15 on the CPU) and four
    columns. Does not synchronise.
    """
    return _fill(torch.int64, lambda words, _: words, seed, purpose, step, rows, columns, device)


def uniform(
    seed: int,
    purpose: Purpose,
    step: int,
    rows: int | Tensor,
    columns: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform numbers in [0, 1).

    Args:
        seed, purpose, step, rows, columns, device: as in `bits`.
        dtype: float32 (multiples of 2^-24, one word each) or float64 (multiples of 2^-53, two
            words each).

    Returns:
        (R, C) of ``dtype`` on ``device``; the same bits on every device.

    Raises:
        TypeError, ValueError: as `bits`; ``dtype`` is another one.
    """
    if dtype == torch.float32:

        def from_words(words: Tensor, columns: int) -> Tensor:
            return (words >> 8).float() * 2.0**-24

        return _fill(dtype, from_words, seed, purpose, step, rows, columns, device)
    if dtype == torch.float64:

        def from_pairs(words: Tensor, columns: int) -> Tensor:
            return ((words[:, 0::2] << 21) ^ (words[:, 1::2] >> 11)).double() * 2.0**-53

        return _fill(
            dtype, from_pairs, seed, purpose, step, rows, columns, device, words_per_column=2
        )
    raise TypeError(f"dtype must be float32 or float64, got {dtype}")


def normal(
    seed: int,
    purpose: Purpose,
    step: int,
    rows: int | Tensor,
    columns: int,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard normal numbers, by the transform of Box and Muller in float64.

    Args:
        seed, purpose, step, rows, columns, device: as in `bits`.

    Returns:
        (R, C) float32 on ``device``, of magnitude at most 6.7. See the module's text for what
        agrees between devices.

    Raises:
        TypeError, ValueError: as `bits`.
    """
    # Words in fours, whatever the number of columns, so that column c depends on c alone.
    return _fill(
        torch.float32, _box_muller, seed, purpose, step, rows, columns, device, whole_blocks=True
    )


def permutation(
    seed: int,
    purpose: Purpose,
    step: int,
    n: int,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """A random order of ``0 .. n - 1``, all orders equally likely.

    Sorts 64-bit keys; equal ones (for a million, once in 10^7 calls) keep their order.

    Args:
        seed, purpose, step, device: as in `bits`.
        n: how many.

    Returns:
        (n,) int64 on ``device``; the same on every device.

    Raises:
        ValueError: an argument is out of range.
    """
    words = bits(seed, purpose, step, n, 2, device=device)
    return torch.sort((words[:, 0] << 32) | words[:, 1], stable=True).indices


def _box_muller(words: Tensor, columns: int) -> Tensor:
    # 1 - u of a uniform u in [0, 1): never zero, so that the logarithm is finite.
    radius = ((words[:, 0::2] + 1).double() * 2.0**-32).log_().mul_(-2.0).sqrt_()
    angle = words[:, 1::2].double() * (2.0**-31 * math.pi)
    pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1)
    return pairs.flatten(1)[:, :columns].float()


def _fill(
    dtype: torch.dtype,
    transform: Callable[[Tensor, int], Tensor],
    seed: int,
    purpose: Purpose,
    step: int,
    rows: int | Tensor,
    columns: int,
    device: torch.device | str | None,
    *,
    words_per_column: int = 1,
    whole_blocks: bool = False,
) -> Tensor:
    """(R, C) of ``dtype``: ``transform`` of the (r, words) of every chunk of rows."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be at least 0 and below 2**64, got {seed}")
    if not 0 <= step <= _MASK:
        raise ValueError(f"step must be at least 0 and below 2**32, got {step}")
    if columns < 0:
        raise ValueError(f"columns must be at least 0, got {columns}")
    n_rows, ids_of = _rows(rows)
    if device is None:
        device = rows.device if isinstance(rows, Tensor) else "cpu"
    device = torch.device(device)
    key = (seed & _MASK, seed >> 32)
    n_words = columns * words_per_column
    n_blocks = -(-n_words // 4)
    blocks = torch.arange(n_blocks, device=device)
    steps = torch.full((), step, dtype=torch.int64, device=device)
    purposes = torch.full((), int(purpose), dtype=torch.int64, device=device)
    out = torch.empty((n_rows, columns), dtype=dtype, device=device)
    for start, stop in _chunks(n_rows, _CHUNK.get(device.type, _CHUNK_ELSEWHERE)):
        ids = ids_of(start, stop, device)
        words = torch.stack(philox((ids[:, None], blocks, steps, purposes), key), dim=-1)
        words = words.view(stop - start, 4 * n_blocks)
        out[start:stop] = transform(words if whole_blocks else words[:, :n_words], columns)
    return out


def _rows(rows: int | Tensor) -> tuple[int, Callable[[int, int, torch.device], Tensor]]:
    """The number of rows, and a function that gives the ids of rows start to stop as int64."""
    if isinstance(rows, Tensor):
        if rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"rows must be a count or a 1-D int32 or int64 tensor, "
                f"got {rows.ndim}-D {rows.dtype}"
            )
        ids = rows
        return len(ids), lambda start, stop, device: ids[start:stop].to(device, torch.int64)
    if not 0 <= rows <= 1 << 32:
        raise ValueError(f"rows must be at least 0 and at most 2**32, got {rows}")
    return rows, lambda start, stop, device: torch.arange(start, stop, device=device)


def _chunks(n: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, size):
        yield start, min(start + size, n)
