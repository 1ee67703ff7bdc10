# SPDX-License-Identifier: Apache-2.0
"""gsplat's CUDA kernels behind the renderer protocol."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_raster.types import check_instances
from gs_train.renderers.activation import activate
from gs_train.renderers.protocol import (
    Rect,
    RenderOptions,
    Rows,
    Splats,
    View,
)

_TILE = 16


class GsplatRenderer:
    """Renders with gsplat >= 1.5.3 on a CUDA device.

    Args:
        options: how rows are projected.
        device: the CUDA device of rows and views.
        absgrad: fill ``Splats.absgrad`` in the backward pass.

    Cost: one synchronisation per :meth:`project`, with the work enqueued before it, and one per
        :meth:`rasterize`, to size the list of tile intersections.
    """

    name = "gsplat"
    blends_by_key = False  # splats of equal depth come in the order of the rows

    def __init__(
        self,
        options: RenderOptions = RenderOptions(),  # noqa: B008 (immutable)
        *,
        device: torch.device | str = "cuda",
        absgrad: bool = False,
    ) -> None:
        self.options = options
        self.device = torch.device(device)
        self.absgrad = absgrad

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> Splats:
        """See :class:`gs_train.renderers.protocol.Renderer`."""
        from gsplat import fully_fused_projection

        before = torch.cuda.current_stream(self.device.index).record_event()
        means, scales, opacities, colors = activate(rows, view, sh_degree=sh_degree)
        radii, means2d, depths, conics, compensations = fully_fused_projection(
            means,
            None,
            rows["quats"],
            scales,
            view.viewmat[None],
            view.K[None],
            view.width,
            view.height,
            eps2d=self.options.eps2d,
            near_plane=self.options.near,
            far_plane=self.options.far,
            radius_clip=self.options.radius_clip,
            calc_compensations=self.options.antialiased,
            opacities=opacities,
        )
        if self.options.antialiased:
            opacities = opacities * compensations.squeeze(0)
        # gsplat waits for its count of intersections with Python's lock held. Other threads, which
        # prepare the next batch, shall have it while the device does what came before this view.
        before.synchronize()
        # squeeze rather than [0]: the gradient of an index is a copy into zeros.
        return Splats(
            means2d=means2d.squeeze(0),
            conics=conics.squeeze(0),
            depths=depths.squeeze(0),
            radii=radii.squeeze(0),
            opacities=opacities,
            colors=colors,
            view=view,
        )

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        """See :class:`gs_train.renderers.protocol.Renderer`."""
        return self._drawn(splats, rect, splats.colors)

    def rasterize_with_depth(
        self, splats: Splats, rect: Rect | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`gs_train.renderers.protocol.DepthRenderer`: depth is a fourth colour."""
        colors = torch.cat([splats.colors, splats.depths[:, None]], 1)
        image, alpha = self._drawn(splats, rect, colors)
        return image[..., :3], alpha, image[..., 3:]

    def _drawn(self, splats: Splats, rect: Rect | None, colors: Tensor) -> tuple[Tensor, Tensor]:
        """Image (h, w, channels) and alpha (h, w, 1) of splats with these colours."""
        from gsplat import isect_offset_encode, isect_tiles, rasterize_to_pixels

        rect = rect or splats.view.rect
        # The rectangle becomes an image of its own. Each call has its own tensor here, on which the
        # backward pass leaves that call's absgrad.
        means2d = splats.means2d[None]
        if rect.x0 or rect.y0:
            means2d = means2d - means2d.new_tensor((rect.x0, rect.y0))
        tiles = -(-rect.width // _TILE), -(-rect.height // _TILE)
        _, isect_ids, flatten_ids = isect_tiles(
            means2d, splats.radii[None], splats.depths[None], _TILE, *tiles
        )
        check_instances(len(flatten_ids))  # what follows counts in 32 bits
        splats.n_intersections += len(flatten_ids)
        image, alpha = rasterize_to_pixels(
            means2d,
            splats.conics[None],
            colors[None],
            splats.opacities[None],
            rect.width,
            rect.height,
            _TILE,
            isect_offset_encode(isect_ids, 1, *tiles),
            flatten_ids,
            absgrad=self.absgrad,
        )
        if self.absgrad:
            splats.shifted.append(means2d)
        return image.squeeze(0), alpha.squeeze(0)
