# SPDX-License-Identifier: Apache-2.0
"""What a renderer is: two calls, so that crops of a view can share its projected splats."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

import gs_cull
from gs_raster import Options as RenderOptions
from gs_raster import Rect
from gs_raster import TooManyInstancesError as TooManyIntersectionsError

__all__ = [
    "ATTRIBUTES",
    "DepthMeaning",
    "DepthRenderer",
    "InverseDepth",
    "MetricDepth",
    "Rect",
    "RenderOptions",
    "Renderer",
    "Rows",
    "Splats",
    "TooManyIntersectionsError",
    "View",
]

Rows = Mapping[str, Tensor]
"""Some Gaussians' stored attributes, equal first dimension R, on one device:

``means`` (R, 3), ``scales`` (R, 3) log, ``quats`` (R, 4) w x y z of any non-zero length,
``opacities`` (R,) logit, ``sh0`` (R, 1, 3), ``shN`` (R, K, 3) with K = 0, 3, 8 or 15."""

ATTRIBUTES = ("means", "scales", "quats", "opacities", "sh0", "shN")
"""The names of the stored attributes."""


class InverseDepth(NamedTuple):
    """What a value of a depth map stands for: the inverse depth ``value / 65536 * scale + offset``.

    Attributes:
        scale, offset: one over the unit of length.
    """

    scale: float
    offset: float

    def in_frame(self, lengths: float) -> InverseDepth:
        """The same map where lengths are so many times as large."""
        return InverseDepth(self.scale / lengths, self.offset / lengths)


class MetricDepth(NamedTuple):
    """What a value of a depth map stands for: the depth ``value * unit``; 0 is unknown.

    Attributes:
        unit: of length, above 0.
    """

    unit: float

    def in_frame(self, lengths: float) -> MetricDepth:
        """The same map where lengths are so many times as large."""
        return MetricDepth(self.unit * lengths)


DepthMeaning: TypeAlias = InverseDepth | MetricDepth
"""Of a map's values; depths are along the optical axis."""


@dataclass(frozen=True)
class View:
    """One posed pinhole image, without its pixels.

    Attributes:
        name: unique within a capture.
        viewmat: (4, 4) float32, world to camera; x right, y down, z forward.
        K: (3, 3) float32, pixels; the centre of the first pixel is (0.5, 0.5).
        width, height: pixels.
        inverse_depth: what its depth map means, if it has one.
    """

    name: str
    viewmat: Tensor
    K: Tensor
    width: int
    height: int
    inverse_depth: DepthMeaning | None = None

    @functools.cached_property
    def camera(self) -> gs_cull.Views:
        """The view as gs_cull takes it, checked once: it comes in every epoch."""
        return gs_cull.Views(self.viewmat[None], self.K[None], self.width, self.height)

    @functools.cached_property
    def on_host(self) -> tuple[np.ndarray, np.ndarray]:
        """``viewmat`` and ``K`` in host memory, copied once: a copy waits for the device."""
        return self.viewmat.cpu().numpy(), self.K.cpu().numpy()

    def to(self, device: torch.device | str) -> View:
        """The same view with its matrices on ``device``."""
        return replace(self, viewmat=self.viewmat.to(device), K=self.K.to(device))

    @functools.cached_property
    def rect(self) -> Rect:
        """The rectangle that covers the whole image."""
        return Rect(0, 0, self.width, self.height)


@dataclass
class Splats:
    """Rows projected into one view, in the rows' order; differentiable where float.

    Attributes:
        means2d: (R, 2) pixels of the whole view.
        conics: (R, 3) upper triangle (xx, xy, yy) of the inverse 2D covariance, 1 / pixel^2.
        depths: (R,) camera z.
        radii: (R, 2) int32 half extents in pixels; 0 where the row does not show.
        opacities: (R,) in [0, 1], already compensated when antialiased.
        colors: (R, 3) RGB, at least 0.
        view: the view that they were projected into.
        keys: (R,) int32, the order in which splats of equal depth are blended; None: the rows'.
        n_intersections: pairs of a splat and a tile that it touches, in all rectangles rasterized
            so far; 0 from a renderer that does not count them.
        shifted: the per-crop copies of ``means2d`` whose ``absgrad`` the backward pass fills.
    """

    means2d: Tensor
    conics: Tensor
    depths: Tensor
    radii: Tensor
    opacities: Tensor
    colors: Tensor
    view: View
    keys: Tensor | None = None
    n_intersections: int = 0
    shifted: list[Tensor] = field(default_factory=list)

    @property
    def absgrad(self) -> Tensor:
        """(R, 2) sum over pixels of |d loss / d means2d|, over all crops rasterized so far.

        Defined after the backward pass of a renderer built with ``absgrad=True`` (AbsGS, Ye et
        al. 2024). Crops add, as pixels do.

        Raises:
            ValueError: nothing was rasterized with ``absgrad=True``.
        """
        parts = [t.absgrad.reshape(-1, 2) for t in self.shifted if hasattr(t, "absgrad")]
        if not parts:
            raise ValueError("absgrad must be enabled in the renderer, got absgrad=False")
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


class Renderer(Protocol):
    """Projects rows into a view and rasterizes rectangles of it.

    Both calls are differentiable with respect to every row attribute. Semantics are those of
    gsplat 1.5.3's ``rasterization`` with ``rasterize_mode`` classic or antialiased.

    Attributes:
        name: as on the command line.
        device: of rows, views and images.
        options: which rows show, for culling ahead.
        blends_by_key: whether it reads the keys that `project` is given.
    """

    name: str
    device: torch.device
    options: RenderOptions
    blends_by_key: bool

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> Splats:
        """Splats of all rows, evaluated with spherical harmonics up to ``sh_degree``.

        Args:
            keys: (R,) int32, distinct: rows of equal depth are blended in their order, which does
                not depend on where rows lie; None: in the order of the rows.
        """
        ...

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        """Image (h, w, 3) over black and alpha (h, w, 1) of ``rect``, the whole view when None."""
        ...


class DepthRenderer(Renderer, Protocol):
    """A renderer that also sums depths, as training on depth maps needs it."""

    def rasterize_with_depth(
        self, splats: Splats, rect: Rect | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`Renderer.rasterize` gives, and the sum of weight times depth, (h, w, 1): 0
        where nothing is. Differentiable with respect to depths, too."""
        ...
