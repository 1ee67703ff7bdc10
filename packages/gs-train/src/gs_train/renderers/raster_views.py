# SPDX-License-Identifier: Apache-2.0
"""What gs-raster and density control know of the views that are drawn from tables."""

from __future__ import annotations

from torch import Tensor

import gs_raster
from gs_train.renderers.protocol import Splats, View
from gs_train.renderers.tables import Direct

_MOST_CAMERAS = 1 << 15
"""Of views that were drawn, checked once each."""


class Cameras:
    """Views as gs-raster has them. What was checked of a view holds while the view is the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[View, gs_raster.View]] = {}

    def of(self, view: View) -> gs_raster.View:
        """That of a view."""
        known = self._known.get(view.name)
        if known is not None and known[0] is view:
            return known[1]
        viewmat, K = view.viewmat.contiguous(), view.K.contiguous()
        camera = gs_raster.View(viewmat, K, view.width, view.height)
        if viewmat is view.viewmat and K is view.K:  # a copy would not follow the view
            if len(self._known) >= _MOST_CAMERAS:
                self._known.clear()
            self._known[view.name] = view, camera
        return camera


def statistics_of(direct: Direct | None, view: View) -> gs_raster.Statistics | None:
    """What a view is added to, its gradient in normalised device coordinates."""
    if direct is None or direct.sums is None:
        return None
    sums, half = direct.sums, direct.batch_size / 2.0
    scale = view.width * half, view.height * half
    return gs_raster.Statistics(sums.grad2d, sums.count, sums.radii, scale, sums.absgrad)


def splats_of(
    found: gs_raster.Splats, view: View, gradient: Tensor, absgrad: Tensor | None
) -> Splats:
    """Splats with what density control reads.

    Args:
        found: with radii.
        gradient: (R, 2) of the means.
        absgrad: (R, 2) their absolute gradient, if it is asked for.
    """
    assert found.radii is not None
    splats = Splats(
        means2d=found.means2d,
        conics=found.conics,
        depths=found.depths,
        radii=found.radii,
        opacities=found.opacities,
        colors=found.colors,
        view=view,
    )
    splats.means2d.grad = gradient
    if absgrad is not None:
        splats.shifted.append(splats.means2d)
        splats.means2d.absgrad = absgrad  # type: ignore[attr-defined]
    return splats
