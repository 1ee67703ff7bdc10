# SPDX-License-Identifier: Apache-2.0
"""Projected splats that several rectangles share, and their rasterization, differentiably."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gs_raster.cuda.columns import SHAPES
from gs_raster.cuda.sorting import TileLists, sort
from gs_raster.cuda.splats import Splats
from gs_raster.cuda.views import View
from gs_raster.torch.functions import AbsgradPlace, Fields, Project, Rasterize, Take, records_of
from gs_raster.types import Options, Rect


@dataclass(eq=False)
class ProjectedSplats:
    """R rows projected into one view; the five float fields are differentiable.

    Attributes:
        means2d: (R, 2) pixels of the whole view.
        conics: (R, 3) upper triangle (xx, xy, yy) of the inverse 2D covariance, 1 / pixel^2.
        opacities: (R,) in [0, 1], compensated when antialiased.
        colors: (R, 3) RGB, at least 0.
        depths: (R,) camera z.
        records: (R, 12) int32, see :class:`gs_raster.Splats`.
        view: the view that the rows were projected into.
        keys: (R,) int32, as for :func:`gs_raster.project`.
        radii: (R, 2) int32 half extents in pixels, 0 where a row does not show; None if not asked
            for.
        absgrad_on: whose ``absgrad`` the backward pass adds to; None: that of ``means2d``.

    A field may be replaced by another tensor of its shape before :func:`rasterize`: the tiles that
    a splat may reach stay those of the projection.
    """

    means2d: Tensor
    conics: Tensor
    opacities: Tensor
    colors: Tensor
    depths: Tensor
    records: Tensor
    view: View
    keys: Tensor | None = None
    radii: Tensor | None = None
    absgrad_on: AbsgradPlace | None = field(default=None, repr=False)
    _sorted: Splats | None = field(default=None, init=False, repr=False)

    @property
    def fields(self) -> Fields:
        """The differentiable fields."""
        return self.means2d, self.conics, self.opacities, self.colors, self.depths

    def splats(self) -> Splats:
        """For the stages: the records with the fields as they are now, and their order."""
        records = records_of(self.fields, self.records)
        if self._sorted is None or self._sorted.records is not records:
            made = Splats(records, self.view, self.keys, self.radii)
            if records is not self.records:
                return made
            self._sorted = made
        return self._sorted

    @property
    def absgrad(self) -> Tensor:
        """(R, 2) sum over pixels of |d loss / d means2d|, over all rectangles so far.

        Raises:
            ValueError: no backward pass with ``absgrad=True`` has been.
        """
        found = getattr(self.means2d, "absgrad", None)
        if found is None:
            raise ValueError("absgrad must be asked of rasterize(), got absgrad=False")
        return found


@dataclass(frozen=True, eq=False)
class Image:
    """What :func:`rasterize` makes of a rectangle of h x w pixels.

    Attributes:
        image: (h, w, 3).
        alpha: (h, w, 1).
        depth: (h, w, 1) sum of weight times depth; None if not asked for.
        lists: which splats touch which tile.
    """

    image: Tensor
    alpha: Tensor
    depth: Tensor | None
    lists: TileLists


def project(
    rows: Mapping[str, Tensor],
    view: View,
    *,
    sh_degree: int,
    options: Options = Options(),  # noqa: B008 (immutable)
    keys: Tensor | None = None,
    radii: bool = False,
) -> ProjectedSplats:
    """:func:`gs_raster.project` as a differentiable function of the rows.

    Args:
        rows: R rows' six attributes by name, float32 on a CUDA device, shapes as in
            :class:`gs_raster.Rows`. Not differentiable twice, nor with respect to the view.
        view, sh_degree, options, keys, radii: as for :func:`gs_raster.project`.

    Raises:
        TypeError, ValueError, CudaError: as :class:`gs_raster.Rows` and :func:`gs_raster.project`.
    """
    missing = [name for name in SHAPES if name not in rows]
    if missing:
        raise ValueError(f"rows must hold {', '.join(SHAPES)}, got none for {missing}")
    means2d, conics, opacities, colors, depths, records, extents = Project.apply(
        *(rows[name] for name in SHAPES), view, sh_degree, options, radii
    )
    splats = ProjectedSplats(
        means2d, conics, opacities, colors, depths, records, view, keys, extents
    )
    splats.splats()  # refuses bad keys
    return splats


def rasterize(
    splats: ProjectedSplats,
    rect: Rect | None = None,
    *,
    background: Tensor | None = None,
    depth: bool = False,
    absgrad: bool = False,
) -> Image:
    """Composite splats over a background, as a differentiable function of their fields.

    Several rectangles share one projection and one order of splats. A rectangle's pixels equal
    those of the whole view bit for bit.

    Args:
        splats: from :func:`project`.
        rect: pixels of the view; all of them when None.
        background: (3,) float32 on the device; None for black.
        depth: also sum depths.
        absgrad: the backward pass adds to ``splats.absgrad``.

    Raises:
        TypeError, ValueError, CudaError, TooManyInstancesError: as :func:`gs_raster.sort` and
            :func:`gs_raster.blend`.

    Asynchrony: waits for torch's current stream once, see :func:`gs_raster.sort`.
    """
    native = splats.splats()
    lists = sort(native, rect)
    absgrad_on = (splats.absgrad_on or AbsgradPlace(splats.means2d)) if absgrad else None
    image, alpha, depths = Rasterize.apply(
        *splats.fields, background, native, lists, depth, absgrad_on
    )
    return Image(
        image, alpha.unsqueeze(-1), None if depths is None else depths.unsqueeze(-1), lists
    )


def taken(splats: ProjectedSplats, ids: Tensor) -> ProjectedSplats:
    """Some of the splats, differentiably.

    Args:
        ids: (S,) int64 rows, distinct.
    """
    means2d, conics, opacities, colors, depths, records = Take.apply(
        *splats.fields, splats.records, ids
    )
    keys, radii = (
        None if values is None else values.index_select(0, ids)
        for values in (splats.keys, splats.radii)
    )
    return ProjectedSplats(
        means2d, conics, opacities, colors, depths, records, splats.view, keys, radii
    )


def make_view(viewmat: Tensor, K: Tensor, width: int, height: int) -> View:
    """A view of matrices of any strides and floating dtype."""
    viewmat, K = (m.detach().to(torch.float32).contiguous() for m in (viewmat, K))
    return View(viewmat, K, width, height)
