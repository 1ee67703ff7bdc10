# SPDX-License-Identifier: Apache-2.0
"""Splats: rows projected into one view. What the stages hand to each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check, span
from gs_raster.cuda.indices import check_keys
from gs_raster.cuda.place import Place, place_of
from gs_raster.cuda.views import View

WORDS = 12
"""32-bit words of a record, and floats of a splat's gradient."""


@dataclass(eq=False)
class Splats:
    """R rows projected into one view.

    A record is 12 words: mean x, y; opacity; depth; conic xx, xy, yy; columns of tiles; red, green,
    blue; rows of tiles. Tiles are those of the view that the splat's box touches, first and end of
    each axis as ``first | end << 16``; both words are 0 where a row does not show, and the other
    words then have no meaning. The properties below are views of the record.

    Attributes:
        records: (R, 12) int32, contiguous, aligned to 16 bytes.
        view: the view that the rows were projected into.
        keys: (R,) int32, distinct, at least 0: splats of equal depth are blended in the order of
            their keys. Records that show nothing may have the key -1. None: in the order of the
            rows.
        radii: (R, 2) int32 half extents in pixels, 0 where a row does not show; None if not asked
            for.

    Raises:
        TypeError: a dtype differs.
        ValueError: a shape or device differs; with ``GS_CHECK_INDEX=1`` also a key that occurs
            twice.
        IndexError: a key below -1, with ``GS_CHECK_INDEX=1`` alone.
    """

    records: Tensor
    view: View
    keys: Tensor | None = None
    radii: Tensor | None = None
    _order: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        device = self.view.viewmat.device
        check("records", self.records, (-1, WORDS), torch.int32, device, alignment=16)
        n = self.n
        if self.radii is not None:
            check("radii", self.radii, (n, 2), torch.int32, device)
        if self.keys is not None:
            check("keys", self.keys, (n,), torch.int32, device)
            check_keys(self.keys)

    @property
    def n(self) -> int:
        """R."""
        return self.records.shape[0]

    @property
    def floats(self) -> Tensor:
        """(R, 12) float32: the records."""
        return self.records.view(torch.float32)

    @property
    def means2d(self) -> Tensor:
        """(R, 2) pixels of the whole view."""
        return self.floats[:, 0:2]

    @property
    def opacities(self) -> Tensor:
        """(R,) in [0, 1], compensated when antialiased."""
        return self.floats[:, 2]

    @property
    def depths(self) -> Tensor:
        """(R,) camera z."""
        return self.floats[:, 3]

    @property
    def conics(self) -> Tensor:
        """(R, 3) upper triangle (xx, xy, yy) of the inverse 2D covariance, 1 / pixel^2."""
        return self.floats[:, 4:7]

    @property
    def colors(self) -> Tensor:
        """(R, 3) RGB, at least 0."""
        return self.floats[:, 8:11]

    @property
    def shows(self) -> Tensor:
        """(R,) bool: which rows show in the view."""
        return self.records[:, 7] != 0

    @property
    def order(self) -> Tensor:
        """(R,) int32 splats by depth, those of equal depth by key, those that do not show last.

        Computed when first asked for, on torch's stream of that moment, and kept: all rectangles
        share one order.
        """
        if self._order is None:
            self._order = _order(self, place_of("records", self.records))
        return self._order


def _order(splats: Splats, at: Place) -> Tensor:
    n = splats.n
    order = at.empty(n, dtype=torch.int32)
    if n:
        workspace = at.workspace(_core.order_workspace_bytes(n, at.number))
        keys = address("keys", splats.keys, (n,), torch.int32, at.device)
        _core.order_splats_cuda(
            splats.records.data_ptr(),
            keys,
            n,
            order.data_ptr(),
            span(workspace),
            at.number,
            at.stream,
        )
    return order
