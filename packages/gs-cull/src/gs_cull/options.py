# SPDX-License-Identifier: Apache-2.0
"""What a call of :func:`gs_cull.cull` asks for, apart from arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gs_cull import _core
from gs_cull.checks import distance, flag, number, shown

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
        for name, moved in vars(self).items():
            distance(f"inflate.{name}", moved)


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
        TypeError: an option is of another kind.
        ValueError: a number is out of range, or the camera model unknown.
    """
    if not isinstance(camera_model, str) or camera_model not in _MODELS:
        raise ValueError(
            f"camera_model must be pinhole, ortho or fisheye, got {shown(camera_model)}"
        )
    if not isinstance(inflate, Inflate | None):
        raise TypeError(f"inflate must be an Inflate or None, got {shown(inflate)}")
    near, far = number("near", near), number("far", far)
    if not near < far:
        raise ValueError(f"near must be less than far, got {near} and {far}")
    if camera_model == "pinhole" and not near > 0:
        raise ValueError(f"near must be positive for pinhole cameras, got {near}")
    eps2d, radius_clip = distance("eps2d", eps2d), number("radius_clip", radius_clip)
    if math.isnan(radius_clip):
        raise ValueError(f"radius_clip must be a number, got {radius_clip}")
    moves = inflate or _STILL
    return _core.Options(
        near,
        far,
        eps2d,
        radius_clip,
        _MODELS[camera_model],
        flag("activated", activated),
        flag("antialiased", antialiased),
        moves.means,
        moves.scales,
        moves.quats,
        moves.opacities,
    )


_MODELS = {name: getattr(_core.CameraModel, name) for name in ("pinhole", "ortho", "fisheye")}
_STILL = Inflate()
