# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 on the CPU, many counters a call and without Python's lock."""

import numpy as np
from numba import njit

_MASK, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_INCREMENT_0, _INCREMENT_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


@njit(cache=True, nogil=True, error_model="numpy")
def fill_words(ids, step, purpose, key_0, key_1, words):  # type: ignore[no-untyped-def]
    """Fill ``words`` (R, 4 B) int64 with blocks 0 to B - 1 of rows: what
    :func:`gs_train.rows.counter_random.philox` has for counters (row, block, step, purpose).

    Args:
        ids: (R,) int64 in [0, 2^32).
        step, purpose, key_0, key_1: in [0, 2^32).
    """
    for i in range(len(ids)):
        for block in range(words.shape[1] // 4):
            x0, y0 = np.uint64(ids[i]), np.uint64(block)
            x1, y1 = np.uint64(step), np.uint64(purpose)
            k0, k1 = np.uint64(key_0), np.uint64(key_1)
            for _ in range(10):
                product_0, product_1 = x0 * _MULTIPLIER_0, x1 * _MULTIPLIER_1
                x0 = (product_1 >> _HIGH) ^ y0 ^ k0
                x1 = (product_0 >> _HIGH) ^ y1 ^ k1
                y0, y1 = product_1 & _MASK, product_0 & _MASK
                k0, k1 = (k0 + _INCREMENT_0) & _MASK, (k1 + _INCREMENT_1) & _MASK
            words[i, 4 * block], words[i, 4 * block + 1] = np.int64(x0), np.int64(y0)
            words[i, 4 * block + 2], words[i, 4 * block + 3] = np.int64(x1), np.int64(y1)
