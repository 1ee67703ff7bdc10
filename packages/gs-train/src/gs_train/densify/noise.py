# SPDX-License-Identifier: Apache-2.0
"""The noise of Markov chain Monte Carlo on the means."""

from __future__ import annotations

import torch
from torch import Tensor

import gs_raster
from gs_train.rows import counter_random, rowwise
from gs_train.rows.counter_random import Purpose
from gs_train.rows.operations import RowOperations

_HAS_KERNEL = gs_raster.build_info()["cuda_toolkit"] is not None
# Rows that noise is made for at a time without the kernel: about 200 bytes of workspace each.
_PIECE = 1 << 20


@torch.no_grad()
def add_noise(rows: RowOperations, *, seed: int, step: int, size: float) -> None:
    """Move each mean by normal noise shaped by its covariance, the more the fainter it is.

    On a CUDA device one kernel of gs-raster, whose numbers may differ from torch's in the last
    bits; where gs-raster has none, and on the CPU, torch's operations.

    Args:
        rows: their means change; see `gs_raster.perturb` for the formula.
        seed: in [0, 2^64).
        step: in [0, 2^32).
        size: of the noise, at least 0.
    """
    means, keys = rows.in_place("means"), rows.keys.values
    shape = {name: rows.read(name) for name in ("scales", "quats", "opacities")}
    if means.is_cuda and _HAS_KERNEL:
        gs_raster.perturb(
            means, **shape, keys=keys, size=size, seed=seed, step=step, purpose=Purpose.NOISE
        )
        return
    for first in range(0, len(means), _PIECE):
        part = slice(first, first + _PIECE)
        noise = counter_random.normal(seed, Purpose.NOISE, step, keys[part], 3)
        means[part] += _offsets(noise, size, **{name: v[part] for name, v in shape.items()})


def _offsets(
    noise: Tensor, size: float, scales: Tensor, quats: Tensor, opacities: Tensor
) -> Tensor:
    """(R, 3) what is added to means; ``noise`` is written to."""
    faintness = rowwise.sigmoid(100.0 * ((1.0 - rowwise.sigmoid(opacities)) - 0.995))
    noise *= (faintness * size)[:, None]
    along_axes = (2.0 * scales).exp() * rowwise.rotated_back(quats, noise)
    return rowwise.rotated(quats, along_axes)
