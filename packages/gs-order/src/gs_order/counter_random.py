# SPDX-License-Identifier: Apache-2.0
"""Random numbers as a function of a seed, a purpose and an index: no generator has a state."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np


class Purpose(IntEnum):
    """What a random number is for; different purposes never share one. The values are part of every
    sequence of views: never change or reuse one."""

    SHUFFLE = 0
    TURN = 1
    OFFSET = 2
    TILES = 3
    LEAVES = 4
    WITHIN = 5
    ORDER = 16


def random_words(n: int, seed: int, purpose: Purpose, index: int) -> np.ndarray[Any, Any]:
    """(n,) uint64 from the counter-based generator Philox, keyed by the other arguments.

    numpy promises the raw stream of a bit generator, though not that of the methods built on it,
    for all versions: https://numpy.org/neps/nep-0019-rng-policy.html
    """
    key, counter = np.array([seed, purpose], np.uint64), np.array([0, 0, index, 0], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(n)


def random_permutation(n: int, seed: int, purpose: Purpose, index: int) -> np.ndarray[Any, Any]:
    """(n,) int64 permutation: the order of n random words, equal ones (2^-64) by number."""
    return np.argsort(random_words(n, seed, purpose, index), kind="stable").astype(np.int64)
