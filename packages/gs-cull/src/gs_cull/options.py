# SPDX-License-Identifier: Apache-2.0
"""What a call of :func:`gs_cull.cull` asks for, apart from arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

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


@dataclass(frozen=True)
class Rules:
    """By which rules rows show in :class:`gs_cull.Views`, checked once.

    Attributes:
        near, far, eps2d, radius_clip, camera_model, activated, antialiased: as for
            :func:`gs_cull.cull`.

    Raises:
        TypeError: an attribute is of another kind.
        ValueError: a number is out of range, or the camera model unknown.
    """

    near: float = 0.01
    far: float = 1e10
    eps2d: float = 0.3
    radius_clip: float = 0.0
    camera_model: CameraModelName = "pinhole"
    activated: bool = False
    antialiased: bool = False

    def __post_init__(self) -> None:
        still = native_options(**vars(self), inflate=None)
        for name in ("near", "far", "eps2d", "radius_clip"):
            object.__setattr__(self, name, number(name, getattr(self, name)))
        object.__setattr__(self, "_still", still)

    def __reduce__(self) -> tuple[Any, ...]:
        return Rules, tuple(_values(self).values())


def options_by(rules: Rules, inflate: Inflate | None) -> _core.Options:
    """Rules for the native part.

    Raises:
        TypeError: ``inflate`` is of another kind.
    """
    if inflate is None:
        still: _core.Options = vars(rules)["_still"]
        return still
    return native_options(**_values(rules), inflate=inflate)


def _values(rules: Rules) -> dict[str, Any]:
    return {field.name: getattr(rules, field.name) for field in fields(rules)}


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
