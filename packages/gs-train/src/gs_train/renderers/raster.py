# SPDX-License-Identifier: Apache-2.0
"""gs-raster's CUDA kernels behind the renderer protocol."""

from __future__ import annotations

import torch
from torch import Tensor

import gs_raster
from gs_raster.torch import Image, project, rasterize
from gs_train.renderers.protocol import Rect, RenderOptions, Rows, Splats, View
from gs_train.renderers.raster_records import RasterRecords, RasterSplats
from gs_train.renderers.raster_tables import RasterTables


class RasterRenderer:
    """Renders with gs-raster on a CUDA device.

    Splats of equal depth are drawn in the order of their keys, else of the rows. The same inputs
    give the same bits, in images and gradients, and a rectangle's pixels equal those of the whole
    image bit for bit. Not differentiable twice, nor with respect to the camera.

    Args:
        options: how rows are projected.
        device: the CUDA device of rows and views.
        absgrad: fill ``Splats.absgrad`` in the backward pass.

    Attributes:
        tables: draws rows where they lie, with the same bits.
        records: draws splats that other ranks projected, with the same bits.

    Raises:
        ValueError: ``eps2d`` is not above 0, or ``near`` is not between 0 and ``far``.

    Cost: one synchronisation per :meth:`rasterize`, without Python's lock, to size the lists of
        tiles.
    """

    name = "raster"
    blends_by_key = True

    def __init__(
        self,
        options: RenderOptions = RenderOptions(),  # noqa: B008 (immutable)
        *,
        device: torch.device | str = "cuda",
        absgrad: bool = False,
    ) -> None:
        self.options = options.checked()
        self.device = torch.device(device)
        self.absgrad = absgrad
        self.tables = RasterTables(self.options, self.device, absgrad=absgrad)
        self.records = RasterRecords(self.options, absgrad=absgrad)

    def __repr__(self) -> str:
        return f"RasterRenderer({self.options}, device={self.device}, absgrad={self.absgrad})"

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> Splats:
        """See :class:`gs_train.renderers.protocol.Renderer`."""
        camera = gs_raster.View(
            view.viewmat.contiguous(), view.K.contiguous(), view.width, view.height
        )
        projected = project(
            rows, camera, sh_degree=sh_degree, options=self.options, keys=keys, radii=True
        )
        assert projected.radii is not None  # they were asked for
        return RasterSplats(
            means2d=projected.means2d,
            conics=projected.conics,
            depths=projected.depths,
            radii=projected.radii,
            opacities=projected.opacities,
            colors=projected.colors,
            view=view,
            keys=keys,
            projected=projected,
        )

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        """See :class:`gs_train.renderers.protocol.Renderer`.

        Raises:
            TypeError: the splats are not this renderer's.
            ValueError: the rectangle is not inside the view.
            TooManyIntersectionsError: the splats touch 2^31 tiles or more.
        """
        drawn = self._drawn(splats, rect, depth=False)
        return drawn.image, drawn.alpha

    def rasterize_with_depth(
        self, splats: Splats, rect: Rect | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`gs_train.renderers.protocol.DepthRenderer`. Raises as :meth:`rasterize`."""
        drawn = self._drawn(splats, rect, depth=True)
        assert drawn.depth is not None
        return drawn.image, drawn.alpha, drawn.depth

    def _drawn(self, splats: Splats, rect: Rect | None, *, depth: bool) -> Image:
        if not isinstance(splats, RasterSplats) or splats.projected is None:
            raise TypeError(
                f"splats must come from RasterRenderer.project, got {type(splats).__name__}"
            )
        drawn = rasterize(splats.projected, rect, depth=depth, absgrad=self.absgrad)
        splats.n_intersections += drawn.lists.n_instances
        if self.absgrad and not splats.shifted:
            splats.shifted.append(splats.means2d)  # on which all rectangles add
        return drawn
