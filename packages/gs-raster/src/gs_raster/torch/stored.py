# SPDX-License-Identifier: Apache-2.0
"""Activated values, as gsplat takes them, to the stored values that the stages take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_SCALE = 1e-20
"""Below, a Gaussian is a point; its logarithm stays finite."""

_MOST_OPACITY = 1 - 2**-24
"""The largest float below 1, whose logit is finite."""

_LEAST_OPACITY = 1e-5
"""Below, nothing shows: alpha below 1/255 counts as nothing."""


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Rows of the stages, and each camera's colours.

    Attributes:
        geometry: means, scales, quats and opacities, stored values.
        colors: (N, 3) or (C, N, 3) colours, or harmonics (N, K, 3) or (C, N, K, 3).
        is_harmonic: whether colours are harmonics.
        is_per_camera: whether colours have a dimension of cameras.
        sh_degree: for the projection.
    """

    geometry: dict[str, Tensor]
    colors: Tensor
    is_harmonic: bool
    is_per_camera: bool
    sh_degree: int

    def colors_of(self, camera: int) -> Tensor:
        """(N, 3) or (N, K, 3) colours for a camera."""
        return self.colors[camera] if self.is_per_camera else self.colors

    def of(self, camera: int) -> dict[str, Tensor]:
        """The six attributes as a camera sees them."""
        if self.is_harmonic:
            bases = self.colors_of(camera)
        else:  # no colour comes of these: the colours take their place
            nothing = self.colors.new_zeros((1, 1, 3), dtype=torch.float32)
            bases = nothing.expand(len(self.geometry["means"]), 1, 3)
        return self.geometry | {"sh0": bases[:, :1], "shN": bases[:, 1:]}


def stored_rows(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    sh_degree: int | None,
    n_cameras: int,
) -> StoredRows:
    """Stored values of gsplat's arguments, differentiably.

    Raises:
        NotImplementedError: there are dimensions of a batch, channels other than three, or
            harmonics above degree 3.
        ValueError: a shape is wrong.
    """
    if means.dim() > 2:
        raise NotImplementedError(
            "means must have shape (N, 3): gs-raster draws no batches of scenes, got "
            f"{tuple(means.shape)}"
        )
    n, is_harmonic = len(means), sh_degree is not None
    colors = colors.contiguous()
    if sh_degree is not None and not 0 <= sh_degree <= 3:
        raise NotImplementedError(f"sh_degree must be 0 to 3, got {sh_degree}")
    if colors.shape[-1] != 3:
        raise NotImplementedError(
            f"colors must have 3 channels, got {colors.shape[-1]}: gs-raster draws RGB and depth"
        )
    is_per_camera = colors.dim() == (4 if is_harmonic else 3)
    expected: tuple[int, ...] = (n_cameras, n) if is_per_camera else (n,)
    if sh_degree is not None:
        n_bases = (sh_degree + 1) ** 2
        if colors.dim() > 2 and colors.shape[-2] >= n_bases:
            colors = colors[..., :n_bases, :]
        expected = (*expected, n_bases)
    if tuple(colors.shape) != (*expected, 3):
        raise ValueError(f"colors must have shape {(*expected, 3)}, got {tuple(colors.shape)}")
    # The clamped opacity's gradient goes to the opacity as it is.
    clamped = opacities.detach().clamp(_LEAST_OPACITY, _MOST_OPACITY)
    geometry = {
        "means": means.contiguous(),
        "scales": scales.abs().clamp_min(_LEAST_SCALE).log(),
        "quats": quats.contiguous(),
        "opacities": (opacities + (clamped - opacities.detach())).logit(),
    }
    return StoredRows(geometry, colors, is_harmonic, is_per_camera, sh_degree or 0)
