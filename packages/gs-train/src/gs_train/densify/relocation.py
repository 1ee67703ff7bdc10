# SPDX-License-Identifier: Apache-2.0
"""The two formulas of 3DGS-MCMC: which Gaussians are copied, and what the copies look like."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from gs_train.rows import counter_random
from gs_train.rows.counter_random import Purpose

_PIECE = 1 << 22
"""Weights that are made whole numbers at once."""

MOST_COPIES = 51
"""Gaussians at one place beyond this number count as this many, as in gsplat."""


def relocated(opacities: Tensor, scales: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Opacity and scales of each of ``ratio`` equal Gaussians that replace one.

    Equation 9 of "3D Gaussian Splatting as Markov Chain Monte Carlo" (Kheradmand et al. 2024):
    the new opacity is ``o' = 1 - (1 - o)^(1/n)`` and the scale shrinks by ``o / D``, where D is
    the sum over i = 1..n and k = 0..i-1 of ``C(i-1, k) (-1)^k o'^(k+1) / sqrt(k+1)``. Summed over
    i first, that is the sum over k = 1..n of ``C(n, k) (-1)^(k-1) o'^k / sqrt(k)``, evaluated
    here in float64 because its terms alternate.

    Args:
        opacities: (R,) float32, above 0 and at most 1; above 1 - 2^-23 they count as that,
            or copies of a Gaussian of full opacity would share nothing.
        scales: (R, 3) float32, world units, not logarithms.
        ratios: (R,) integer, the number n of Gaussians, clamped to 1 to `MOST_COPIES`.

    Returns:
        (R,) and (R, 3) float32.
    """
    n = ratios.clamp(1, MOST_COPIES).long()
    old = opacities.double().clamp(max=1.0 - torch.finfo(torch.float32).eps)
    # expm1 and log1p: 1 - (1 - o)^(1/n) without losing small opacities.
    new = -torch.expm1(torch.log1p(-old) / n)
    weights = _weights().to(opacities.device)
    total = torch.zeros_like(new)
    for k in range(MOST_COPIES, 0, -1):
        total = (total + weights[k, n]) * new
    return new.float(), (scales * (old / total)[:, None]).float()


def draw(weights: Tensor, n: int, *, seed: int, purpose: Purpose, step: int) -> Tensor:
    """Rows drawn with replacement, in proportion to weights, by inversion of their sum.

    Weights are rounded to multiples of 2^-30 and summed as integers, which is exact in any
    order: the same draw on every device, for up to 2^32 rows.

    Args:
        weights: (R,) float32 in [0, 1], R > 0.
        n: how many.
        seed, purpose, step: key of the random numbers; draw i uses row i of them.

    Returns:
        (n,) int64 on the weights' device. A row of weight below 2^-31 is never drawn, unless
        all are.
    """
    sums = torch.empty(len(weights), dtype=torch.int64, device=weights.device)
    for whole, part in zip(sums.split(_PIECE), weights.split(_PIECE), strict=True):
        whole.copy_((part.double() * 2.0**30).round_())
    sums.cumsum_(0)
    fraction = counter_random.uniform(
        seed, purpose, step, n, 1, device=weights.device, dtype=torch.float64
    )[:, 0]
    total = sums[-1]
    target = torch.minimum((fraction * total).long(), total - 1)
    return torch.searchsorted(sums, target, right=True).clamp_(max=len(weights) - 1)


@cache
def _weights() -> Tensor:
    """(MOST_COPIES + 1, MOST_COPIES + 1) float64: C(n, k) (-1)^(k-1) / sqrt(k) at [k, n]."""
    table = torch.zeros(MOST_COPIES + 1, MOST_COPIES + 1, dtype=torch.float64)
    for n in range(1, MOST_COPIES + 1):
        for k in range(1, n + 1):
            table[k, n] = math.comb(n, k) * (-1) ** (k - 1) / math.sqrt(k)
    return table
