# SPDX-License-Identifier: Apache-2.0
"""What gsplat's kernels take of rows: extents, opacities and colours rather than what is stored."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gs_train.machine.has_triton import has_triton
from gs_train.renderers.protocol import Rows, View


class Activated(NamedTuple):
    """Rows as they are projected and drawn; differentiable.

    Attributes:
        means: (R, 3).
        scales: (R, 3) standard deviations.
        opacities: (R,) in [0, 1].
        colors: (R, 3) RGB towards the camera, at least 0.
    """

    means: Tensor
    scales: Tensor
    opacities: Tensor
    colors: Tensor


def activate(rows: Rows, view: View, *, sh_degree: int) -> Activated:
    """exp of the scales, sigmoid of the opacities, and spherical harmonics up to ``sh_degree`` plus
    0.5, clamped at 0 from below (Kerbl et al. 2023).

    On CUDA, where Triton is installed, one kernel each way: two dozen small ones wait for each
    other's launch longer than they run. Extents and opacities are the same to the bit.

    Args:
        rows: float32 on a CUDA device.
        view: seen from there.

    Raises:
        ValueError: the degree is more than ``shN`` has room for.
    """
    n_bases = rows["shN"].shape[1]
    if not 0 <= sh_degree <= 3 or (sh_degree + 1) ** 2 - 1 > n_bases:
        raise ValueError(
            f"sh_degree must be 0 to 3 and need at most the {n_bases} bases of shN, got {sh_degree}"
        )
    if has_triton():
        from gs_train.renderers.activation_triton import activate as activate_fused

        return Activated(*activate_fused(rows, view.viewmat, sh_degree))
    return activate_apart(rows, view, sh_degree=sh_degree)


def activate_apart(rows: Rows, view: View, *, sh_degree: int) -> Activated:
    """The same by torch's and gsplat's operations."""
    from gsplat import spherical_harmonics

    centre = -view.viewmat[:3, :3].T @ view.viewmat[:3, 3]
    harmonics = torch.cat([rows["sh0"], rows["shN"]], 1)
    colors = spherical_harmonics(sh_degree, rows["means"] - centre, harmonics)
    return Activated(
        rows["means"],
        torch.exp(rows["scales"]),
        torch.sigmoid(rows["opacities"]),
        (colors + 0.5).clamp_min(0.0),
    )
