# SPDX-License-Identifier: Apache-2.0
"""Random numbers that are a function of (seed, purpose, step, row, column) and of nothing else.

No generator has a state, so nothing has to be saved for a resume, the order of calls does not
matter, and rows keep their numbers wherever they live: on the GPU, in host memory, in parts.

The function is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC 2011). The seed is its key; row, column / 4, step and purpose are its four counter
words, so different arguments never share a block of numbers. On a GPU it is computed with int64
tensors, whose products wrap modulo 2^64 and therefore have the right low 64 bits.

What agrees bit for bit: ``bits``, ``uniform`` and ``permutation`` on every device, for any
subset of rows. ``normal`` computes in float64 and rounds to float32: another device's logarithm
or cosine may differ in the last float64 bit, which survives the rounding about once in 10^8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gs_train.rows.philox_cpu import fill_words


class Purpose(IntEnum):
    """What numbers are for. The values are part of the recipe: never change or reuse one."""

    INITIAL_POINTS = 1
    INITIAL_QUATS = 2
    SPLIT = 3
    RELOCATE = 4
    ADD = 5
    NOISE = 6
    BACKGROUND = 7


_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Word = TypeVar("Word", Tensor, int)

# Rows at a time: on the CPU so that the block's words stay in the cache, on a GPU so that the
# workspace stays small beside the model.
_CHUNK = {"cpu": 1 << 15}
_CHUNK_ELSEWHERE = 1 << 20


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> list[Word]:
    """Philox4x32-10 of many counters under one key.

    Args:
        counter: four words, int64 tensors with values in [0, 2^32), which broadcast together; or
            numbers.
        key: two words in [0, 2^32).

    Returns:
        Four int64 tensors of the broadcast shape, or numbers, with values in [0, 2^32).
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

    Cost: on a GPU about a hundred elementwise kernels for every 2^20 rows and four columns. Does
    not synchronise.
    """
    return _draw(torch.int64, lambda words: words, seed, purpose, step, rows, columns, device)


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
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype}")
    from_words = _from_words if dtype == torch.float32 else _from_pairs
    return _draw(dtype, from_words, seed, purpose, step, rows, columns, device)


def uniform_numbers(
    seed: int, purpose: Purpose, step: int, row: int, columns: int
) -> tuple[float, ...]:
    """The first columns of one row of `uniform`, float32, without a tensor.

    Cost: ten microseconds for every four columns.
    """
    words: list[int] = []
    for block in range(-(-columns // 4)):
        counter = row, block, step, int(purpose)
        words += philox(counter, (seed & _MASK, seed >> 32))
    return tuple((word >> 8) * 2.0**-24 for word in words[:columns])


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
    return _draw(torch.float32, _box_muller, seed, purpose, step, rows, columns, device)


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


def _from_words(words: Tensor) -> Tensor:
    return (words >> 8).float() * 2.0**-24


def _from_pairs(words: Tensor) -> Tensor:
    return ((words[:, 0::2] << 21) ^ (words[:, 1::2] >> 11)).double() * 2.0**-53


def _box_muller(words: Tensor) -> Tensor:
    # 1 - u of a uniform u in [0, 1): never zero, so that the logarithm is finite.
    radius = ((words[:, 0::2] + 1).double() * 2.0**-32).log_().mul_(-2.0).sqrt_()
    angle = words[:, 1::2].double() * (2.0**-31 * math.pi)
    return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1).flatten(1).float()


def _draw(
    dtype: torch.dtype,
    transform: Callable[[Tensor], Tensor],
    seed: int,
    purpose: Purpose,
    step: int,
    rows: int | Tensor,
    columns: int,
    device: torch.device | str | None,
) -> Tensor:
    """(R, C) of ``dtype``: of every chunk of rows, the first C columns that ``transform`` makes of
    the (r, 4 B) words of whole blocks, so that column c depends on c alone."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be at least 0 and below 2**64, got {seed}")
    if not 0 <= step <= _MASK:
        raise ValueError(f"step must be at least 0 and below 2**32, got {step}")
    if columns < 0:
        raise ValueError(f"columns must be at least 0, got {columns}")
    if isinstance(rows, Tensor):
        if rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64):
            kind = f"{rows.ndim}-D {rows.dtype}"
            raise TypeError(f"rows must be a count or a 1-D int32 or int64 tensor, got {kind}")
        n_rows, device = len(rows), torch.device(rows.device if device is None else device)
    else:
        if not 0 <= rows <= 1 << 32:
            raise ValueError(f"rows must be at least 0 and at most 2**32, got {rows}")
        n_rows, device = rows, torch.device("cpu" if device is None else device)
    words_each = 2 if dtype == torch.float64 else 1
    n_blocks = -(-columns * words_each // 4)
    out = torch.empty((n_rows, columns), dtype=dtype, device=device)
    size = _CHUNK.get(device.type, _CHUNK_ELSEWHERE)
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        if isinstance(rows, Tensor):
            ids = rows[start:stop].to(device, torch.int64)
        else:
            ids = torch.arange(start, stop, device=device)
        words = _words(ids, n_blocks, step, int(purpose), (seed & _MASK, seed >> 32))
        out[start:stop] = transform(words)[:, :columns]
    return out


def _words(ids: Tensor, n_blocks: int, step: int, purpose: int, key: tuple[int, int]) -> Tensor:
    """(R, 4 n_blocks) int64 of the first blocks of rows."""
    if ids.device.type == "cpu":
        words = np.empty((len(ids), 4 * n_blocks), np.int64)
        fill_words(ids.contiguous().numpy(), step, purpose, *key, words)
        return torch.from_numpy(words)
    blocks = torch.arange(n_blocks, device=ids.device)
    steps, purposes = (ids.new_full((), number) for number in (step, purpose))
    return torch.stack(philox((ids[:, None], blocks, steps, purposes), key), dim=-1).flatten(1)
