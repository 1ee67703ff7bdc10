# SPDX-License-Identifier: Apache-2.0
"""The regularisers: losses on the opacity and the size of rows, whether a view sees them or not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gs_train.engine.backend import StepSettings
from gs_train.rows import rowwise

Penalties = dict[str, tuple[str, float]]
"""By attribute: weight times the sum of ``exp`` or ``sigmoid`` of its values; see `DeviceAdam`."""


def penalties(settings: StepSettings, n_rows: int) -> Penalties:
    """The weighted means over all rows, as sums; attributes without one are left out."""
    wanted = {
        "opacities": ("sigmoid", settings.opacity_reg / n_rows),
        "scales": ("exp", settings.scale_reg / (3 * n_rows)),
    }
    return {name: penalty for name, penalty in wanted.items() if penalty[1]}


@torch.no_grad()
def add_to(gradients: Mapping[str, Tensor], values: Mapping[str, Tensor], of: Penalties) -> None:
    """Add the penalties' gradients of some rows.

    Args:
        gradients: (R, ...) by attribute, written to.
        values: (R, ...) the rows' present values.
    """
    for name, (kind, weight) in of.items():
        x = values[name]
        slope = torch.exp(x) if kind == "exp" else rowwise.sigmoid_slope(x)
        gradients[name].add_(slope, alpha=weight)
