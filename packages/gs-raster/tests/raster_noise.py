# SPDX-License-Identifier: Apache-2.0
"""The noise of Markov chain Monte Carlo as it is defined, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 (Salmon et al. 2011) of (R, 4) counters: (R, 4) uint64 below 2^32."""
    w0, w1, w2, w3 = (column.astype(np.uint64) for column in counter.T)
    k0, k1 = key
    for _ in range(10):
        product0, product1 = w0 * np.uint64(0xD2511F53), w2 * np.uint64(0xCD9E8D57)
        w0, w1 = (product1 >> _SHIFT) ^ w1 ^ np.uint64(k0), product1 & _LOW
        w2, w3 = (product0 >> _SHIFT) ^ w3 ^ np.uint64(k1), product0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.stack([w0, w1, w2, w3], axis=1)


def normals(keys: np.ndarray, *, seed: int, purpose: int, step: int) -> np.ndarray:
    """(R, 3) float64 by the transform of Box and Muller."""
    counter = np.zeros((len(keys), 4), np.uint64)
    counter[:, 0], counter[:, 2], counter[:, 3] = keys, step, purpose
    words = philox(counter, (seed % 2**32, seed >> 32)).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((words[:, 0::2] + 1.0) * 2.0**-32))
    angle = words[:, 1::2] * (2.0**-31 * np.pi)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2)
    return pairs.reshape(-1, 4)[:, :3]


def rotations(quats: np.ndarray) -> np.ndarray:
    """(R, 3, 3) matrices whose columns are the axes of rows; of a quaternion of length 0, of 1."""
    length = np.linalg.norm(quats, axis=1, keepdims=True)
    w, x, y, z = (quats / np.where(length > 0, length, 1.0)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def exponents(logits: np.ndarray) -> np.ndarray:
    """(R,) what the share of the noise that a row takes is the sigmoid of."""
    return 100.0 * (0.005 - 1.0 / (1.0 + np.exp(-logits)))


def offsets(
    rows: Mapping[str, np.ndarray],
    keys: np.ndarray,
    *,
    size: float,
    seed: int,
    purpose: int,
    step: int,
) -> np.ndarray:
    """(R, 3) what is added to the means of float64 rows."""
    amount = size / (1.0 + np.exp(-exponents(rows["opacities"])))
    z = amount[:, None] * normals(keys, seed=seed, purpose=purpose, step=step)
    Q = rotations(rows["quats"])
    along = np.einsum("nji,nj->ni", Q, z) * np.exp(2.0 * rows["scales"])
    return np.einsum("nij,nj->ni", Q, along)
