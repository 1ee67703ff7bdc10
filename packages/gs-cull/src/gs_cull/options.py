# SPDX-License-Identifier: Apache-2.0
"""What a call of :func:`gs_cull.cull` asks for, apart from arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gs_cull import _core

CameraModelName = Literal["pinhole", "ortho", "fisheye"]


@dataclass(frozen=True)
class Inflate:
    """How far one component of a row's attribute may move, in the units of the arrays.

    With raw parameters ``scales`` bounds the change of the logarithm and ``opacities`` that of the
    logit; with ``activated=True`` the change of the value itself. ``means`` is in world units and
    ``quats`` in those of the quaternions as given.
    """

    means: float = 0.0
    scales: float = 0.0
    quats: float = 0.0
    opacities: float = 0.0

    def __post_init__(self) -> None:
        for name in ("means", "scales", "quats", "opacities"):
            value = getattr(self, name)
            if not (0 <= value < math.inf):
                raise ValueError(f"inflate.{name} must be finite and at least 0, got {value}")


def native_options(
    *,
    near: float,
    far: float,
    eps2d: float,
    radius_clip: float,
    camera_model: CameraModelName,
    activated: bool,
    antialiased: bool,
    inflate: Inflate | None,
) -> _core.Options:
    """Checked options for the native part.

    Raises:
        ValueError: a number is out of range, or the camera model unknown.
    """
    try:
        model = getattr(_core.CameraModel, camera_model)
    except (AttributeError, TypeError):
        raise ValueError(
            f"camera_model must be pinhole, ortho or fisheye, got {camera_model}"
        ) from None
    if not near < far:
        raise ValueError(f"near must be less than far, got {near} and {far}")
    if camera_model == "pinhole" and not near > 0:
        raise ValueError(f"near must be positive for pinhole cameras, got {near}")
    if not (0 <= eps2d < math.inf):
        raise ValueError(f"eps2d must be finite and at least 0, got {eps2d}")
    if math.isnan(radius_clip):
        raise ValueError(f"radius_clip must be a number, got {radius_clip}")
    moves = inflate or _STILL
    return _core.Options(
        near,
        far,
        eps2d,
        radius_clip,
        model,
        activated,
        antialiased,
        moves.means,
        moves.scales,
        moves.quats,
        moves.opacities,
    )


_STILL = Inflate()
