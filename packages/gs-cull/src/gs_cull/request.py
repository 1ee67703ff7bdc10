# SPDX-License-Identifier: Apache-2.0
"""What :func:`gs_cull.cull` and :func:`gs_cull.mark` ask: whether these views see these rows."""

from __future__ import annotations

from typing import Any

from gs_cull import _core
from gs_cull.arrays import Array, Geometry, check_kind
from gs_cull.cameras import Cameras, check_cameras
from gs_cull.options import CameraModelName, Inflate, native_options


def check_request(
    geometry: Geometry,
    viewmats: Array,
    Ks: Array,
    width: Any,
    height: Any,
    rects: Any,
    *,
    near: float,
    far: float,
    eps2d: float,
    radius_clip: float,
    camera_model: CameraModelName,
    activated: bool,
    antialiased: bool,
    inflate: Inflate | None = None,
    **others: Any,
) -> tuple[Cameras, _core.Options]:
    """Check what the native functions take as it is: kinds, views, options.

    Args:
        others: arrays that must be of the same kind.

    Raises:
        TypeError, ValueError: as :func:`gs_cull.cull`.
    """
    means, scales, quats, opacities = geometry
    optional = {} if opacities is None else {"opacities": opacities}
    check_kind(
        means=means, scales=scales, quats=quats, viewmats=viewmats, Ks=Ks, **optional, **others
    )
    cameras = check_cameras(viewmats, Ks, width, height, rects)
    options = native_options(
        near=near,
        far=far,
        eps2d=eps2d,
        radius_clip=radius_clip,
        camera_model=camera_model,
        activated=activated,
        antialiased=antialiased,
        inflate=inflate,
    )
    return cameras, options
