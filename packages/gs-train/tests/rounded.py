# SPDX-License-Identifier: Apache-2.0
"""Rounding of tensors from float64 to float32 in one direction, by torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def float32_below(values: Tensor) -> Tensor:
    """The largest float32 that is no larger than a float64; NaN stays NaN.

    Below the smallest float32 that is -inf, above the largest one the largest, which is finite.
    """
    rounded = values.float()
    below = torch.nextafter(rounded, rounded.new_full((), -math.inf))
    return torch.where(rounded.double() > values, below, rounded)


def float32_above(values: Tensor) -> Tensor:
    """The smallest float32 that is no smaller than a float64; NaN stays NaN."""
    return -float32_below(-values)
