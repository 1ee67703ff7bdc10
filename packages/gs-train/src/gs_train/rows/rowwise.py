# SPDX-License-Identifier: Apache-2.0
"""Arithmetic over rows whose bits do not depend on where a row lies.

Elementwise operations of contiguous tensors, in an order that is written out. A matrix product, a
norm over the last dimension or torch's own sigmoid may group a row with its neighbours, and then
round it otherwise beside others.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + torch.exp(-x.contiguous()))


def sigmoid_slope(x: Tensor) -> Tensor:
    """The derivative of `sigmoid`."""
    y = sigmoid(x)
    return y * (1.0 - y)


def slope_of(kind: str, x: Tensor) -> Tensor:
    """The derivative of ``exp`` or ``sigmoid``, the kinds of `gs_adam.DeviceAdam`'s penalties."""
    return torch.exp(x) if kind == "exp" else sigmoid_slope(x)


def logit(y: Tensor) -> Tensor:
    """log(y / (1 - y)), the inverse of `sigmoid`."""
    y = y.contiguous()
    return torch.log(y / (1.0 - y))


def rotated(quats: Tensor, vectors: Tensor) -> Tensor:
    """Vectors of the Gaussians' own axes in the world.

    Args:
        quats: (..., 4) w x y z of any length; a zero one rotates nothing.
        vectors: (..., 3), broadcast with it.
    """
    return _times(_matrices(quats), vectors, transposed=False)


def rotated_back(quats: Tensor, vectors: Tensor) -> Tensor:
    """Vectors of the world in the Gaussians' own axes: the inverse of `rotated`."""
    return _times(_matrices(quats), vectors, transposed=True)


def _matrices(quats: Tensor) -> list[list[Tensor]]:
    """The nine entries of the rotation matrices, (...) each."""
    w, x, y, z = (part.contiguous() for part in quats.unbind(-1))
    # As torch.nn.functional.normalize, whose smallest length this is.
    length = torch.sqrt(((w * w + x * x) + y * y) + z * z).clamp_min(1e-12)
    w, x, y, z = w / length, x / length, y / length, z / length
    return [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]


def _times(matrices: list[list[Tensor]], vectors: Tensor, *, transposed: bool) -> Tensor:
    parts = [part.contiguous() for part in vectors.unbind(-1)]
    rows = [[matrices[k][j] if transposed else matrices[j][k] for k in range(3)] for j in range(3)]
    return torch.stack([(m[0] * parts[0] + m[1] * parts[1]) + m[2] * parts[2] for m in rows], -1)
