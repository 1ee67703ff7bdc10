# SPDX-License-Identifier: Apache-2.0
"""The first Gaussians of a scene: one for each point of a reconstruction."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gs_train.errors import InputError
from gs_train.rows import counter_random
from gs_train.rows.counter_random import Purpose
from gs_train.rows.morton import central_bounds
from gs_train.scene.neighbours import neighbour_spacing

SH_C0 = 0.28209479177387814
"""The constant spherical harmonic: colour = 0.5 + SH_C0 * sh0."""

# The least spacing of a point that coincides with others, as a fraction of the cloud's diagonal
# without strays: a logarithm of zero would never train.
_LEAST_SPACING = 1e-6


def rows_from_points(
    points: np.ndarray,
    colors: np.ndarray,
    *,
    sh_degree: int,
    opacity: float = 0.1,
    scale: float = 1.0,
    seed: int,
) -> dict[str, Tensor]:
    """One Gaussian for each point, as gsplat's trainer starts.

    Each is a ball as wide as the root mean square distance to the three nearest other points,
    times ``scale``; points that coincide count as one millionth of the cloud's diagonal apart.
    Rotations are random: four uniform numbers in [0, 1), not normalised.

    Args:
        points: (P, 3) floating point, world units.
        colors: (P, 3) uint8 RGB.
        sh_degree: the highest degree to train, 0 to 3.
        opacity: of every Gaussian, between 0 and 1.
        scale: factor on the spacing, above 0.
        seed: of the random rotations.

    Returns:
        means (P, 3), scales (P, 3) log, quats (P, 4), opacities (P,) logit, sh0 (P, 1, 3) and
        shN (P, K, 3) of zeros with K = (sh_degree + 1)^2 - 1; float32 on the CPU.

    Raises:
        InputError: fewer than four points, points that are not finite or all coincide,
            ``opacity``, ``scale`` or ``sh_degree`` out of range.
        ValueError: the arrays' shapes or the type of ``colors`` are others.
    """
    points = np.array(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points must be (P, 3), got {points.shape}")
    if colors.shape != points.shape or colors.dtype != np.uint8:
        raise ValueError(
            f"colors must be uint8 of shape {points.shape}, got {colors.dtype} of {colors.shape}"
        )
    check_options(sh_degree, opacity, scale)
    if len(points) < 4:
        raise InputError(f"the reconstruction must have at least 4 points, got {len(points)}")
    if not np.isfinite(points).all():
        n_bad = int((~np.isfinite(points).all(axis=1)).sum())
        raise InputError(f"points must be finite, got {n_bad} of {len(points)} with NaN or Inf")
    log_scales = torch.from_numpy(np.log(scale * _spacing(points)).astype(np.float32))
    n = len(points)
    return {
        "means": torch.from_numpy(points.astype(np.float32)),
        "scales": log_scales[:, None].repeat(1, 3),
        "quats": counter_random.uniform(seed, Purpose.INITIAL_QUATS, 0, n, 4),
        "opacities": torch.full((n,), math.log(opacity / (1 - opacity))),
        "sh0": _sh0(colors),
        "shN": torch.zeros(n, (sh_degree + 1) ** 2 - 1, 3),
    }


def rows_from_cloud(
    points: np.ndarray,
    colors: np.ndarray,
    *,
    sh_degree: int,
    opacity: float = 0.1,
    scale: float = 1.0,
    seed: int,
    report: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """One Gaussian for each of very many points: as `rows_from_points`, with less memory.

    Args:
        points: (P, 3) float32, finite, in Morton order.
        colors, sh_degree, opacity, scale, seed: as for `rows_from_points`.
        report: called with (points done, points) while neighbours are searched.

    Returns:
        As `rows_from_points`, in the order of the points. What is the same in many rows or columns
        (scales, opacities, shN) is stored once and expanded, so rows take 44 bytes each, not 236:
        not to be written to.

    Raises:
        InputError: as `rows_from_points`.

    Cost: see `neighbour_spacing`, and 8 bytes a point.
    """
    check_options(sh_degree, opacity, scale)
    if len(points) < 4:
        raise InputError(f"the point cloud must have at least 4 points, got {len(points)}")
    least = _least_spacing(points)
    return rows_with_spacing(
        points,
        colors,
        neighbour_spacing(points, report),
        ids=len(points),
        least=least,
        sh_degree=sh_degree,
        opacity=opacity,
        scale=scale,
        seed=seed,
    )


def rows_with_spacing(
    points: np.ndarray,
    colors: np.ndarray,
    spacing: np.ndarray,
    *,
    ids: int | Tensor,
    least: float,
    sh_degree: int,
    opacity: float,
    scale: float,
    seed: int,
) -> dict[str, Tensor]:
    """`rows_from_cloud` of some points of a cloud whose spacings are known.

    Args:
        points, colors: of P points.
        spacing: (P,) float32, changed.
        ids: (P,) int64 places of the points in the cloud; their number where they are all of it.
        least: see `least_spacing`, of the whole cloud.
        sh_degree, opacity, scale, seed: as for `rows_from_cloud`.
    """
    n = len(points)
    log_scales = torch.from_numpy(spacing).clamp_(min=least).mul_(scale).log_()
    logit = torch.tensor(math.log(opacity / (1 - opacity)))
    return {
        "means": torch.from_numpy(points),
        "scales": log_scales[:, None].expand(n, 3),
        "quats": counter_random.uniform(seed, Purpose.INITIAL_QUATS, 0, ids, 4),
        "opacities": logit.expand(n),
        "sh0": _sh0(colors),
        "shN": torch.zeros(()).expand(n, (sh_degree + 1) ** 2 - 1, 3),
    }


def check_options(sh_degree: int, opacity: float, scale: float) -> None:
    """Check options of `rows_from_cloud`. Raises InputError."""
    if not 0 <= sh_degree <= 3:
        raise InputError(f"sh_degree must be 0, 1, 2 or 3, got {sh_degree}")
    if not 0 < opacity < 1:
        raise InputError(f"opacity must be above 0 and below 1, got {opacity}")
    if not 0 < scale < math.inf:
        raise InputError(f"scale must be above 0 and finite, got {scale}")


def _sh0(colors: np.ndarray) -> Tensor:
    """(P, 1, 3) constant harmonics of (P, 3) uint8 colours."""
    rgb = torch.from_numpy(colors).float().div_(255.0)
    return rgb.sub_(0.5).div_(SH_C0)[:, None, :]


def _spacing(points: np.ndarray) -> np.ndarray:
    """(P,) root mean square distance to the three nearest other points, never zero."""
    from scipy.spatial import cKDTree  # which takes half a second to import

    least = _least_spacing(points)
    # The nearest is the point itself, or one that coincides with it.
    distances = cKDTree(points).query(points, k=4, workers=-1)[0][:, 1:]
    spacing = np.sqrt(np.mean(distances**2, axis=1))
    return np.maximum(spacing, least)


def _least_spacing(points: np.ndarray) -> float:
    least = least_spacing(*central_bounds(torch.from_numpy(points)))
    if least == 0:
        raise InputError(f"points must not all coincide, got {len(points)} times {points[0]}")
    return least


def least_spacing(low: Tensor, high: Tensor) -> float:
    """The least spacing of a point that coincides with others, from `central_bounds`; 0 where all
    points coincide."""
    return _LEAST_SPACING * float((high - low).norm())
