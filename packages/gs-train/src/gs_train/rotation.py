# SPDX-License-Identifier: Apache-2.0
"""Rotations of Gaussians."""

from __future__ import annotations

import torch
from torch import Tensor


def rotation_matrices(quats: Tensor) -> Tensor:
    """Rotation matrices of quaternions w x y z.

    Args:
        quats: (..., 4) floating point; normalised here, a zero one gives the identity.

    Returns:
        (..., 3, 3) of the same type and device.
    """
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    entries = (
        1 - 2 * (y * y + z * z),
        2 * (x * y - w * z),
        2 * (x * z + w * y),
        2 * (x * y + w * z),
        1 - 2 * (x * x + z * z),
        2 * (y * z - w * x),
        2 * (x * z - w * y),
        2 * (y * z + w * x),
        1 - 2 * (x * x + y * y),
    )
    return torch.stack(entries, dim=-1).unflatten(-1, (3, 3))
