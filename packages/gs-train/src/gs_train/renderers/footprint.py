# SPDX-License-Identifier: Apache-2.0
"""Device memory that a renderer takes for a view, for forecasts.

The bytes follow from the renderer's tensors and arrays alone, not from a device or a build: a
forecast for another machine has the same numbers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple


class Size(NamedTuple):
    """The size of a view.

    Attributes:
        rows: that the view draws.
        attributes: bytes of a row's attributes.
        intersections: pairs of a row and a tile that the renderer has room for.
        pixels: of the image.
    """

    rows: int
    attributes: int
    intersections: int
    pixels: int


class Moment(NamedTuple):
    """Bytes that live at one moment of a view.

    Attributes:
        copies: of a row's attributes: leaves and their gradients.
        row, intersection, pixel: bytes of each.
    """

    copies: int
    row: int
    intersection: int
    pixel: int

    def bytes(self, size: Size) -> int:
        """Of a view of this size."""
        of_rows = (self.copies * size.attributes + self.row) * size.rows
        return of_rows + self.intersection * size.intersections + self.pixel * size.pixels


_NOTHING = Moment(0, 0, 0, 0)


@dataclass(frozen=True)
class Footprint:
    """Memory of one way to draw a view.

    Attributes:
        image: while the loss looks at the image.
        others: other moments that may be fuller.
        before: of the view before, which lives on until its count has been looked at.
    """

    image: Moment
    others: tuple[Moment, ...]
    before: Moment = _NOTHING

    def bytes(self, size: Size, *, loss: int) -> int:
        """At the fullest moment of a view, without the view before.

        Args:
            loss: bytes of a pixel that the loss takes.
        """
        image = self.image._replace(pixel=self.image.pixel + loss)
        return max(moment.bytes(size) for moment in (image, *self.others))


@dataclass(frozen=True)
class ViewMemory:
    """Memory of a renderer.

    Attributes:
        copies: with copies of the view's rows as leaves of autograd.
        tables: with rows where they lie; None: the renderer has no ``tables``.
    """

    copies: Footprint
    tables: Footprint | None = None


# With Triton, which torch brings for CUDA on Linux; without, harmonics are joined and take more.
# Bytes a row beside its attributes, when it has been projected, 80: extents 12, opacity, colours
# before and after clamping 24, radii 8, centre 8, depth, conic 12, compensation 8. While its tiles
# are counted, 12 more: their number and 64 bits of a running sum. In the backward pass, when the
# attributes have their gradients, 136: the 80, the gradients of position 12, extents 12, opacity
# and colours 12; that of the centre retained 8 and absolute 8.
# Bytes an intersection: key and id, both twice, 24; then the id in its place, 4.
# Bytes a pixel: colours and alpha 16; with the last id 20; with the gradient of the image 28.
def _gsplat(colors: int) -> ViewMemory:
    """The tensors that gsplat's autograd keeps: the image, sorting, the gradients of the rows.

    Args:
        colors: bytes of a row's colours where depth is one of them; their gradient has as many.
    """
    return ViewMemory(
        Footprint(
            Moment(1, 80 + colors, 4, 20),
            (Moment(1, 92 + colors, 24, 0), Moment(2, 136 + 2 * colors, 0, 28)),
        )
    )


GSPLAT = _gsplat(0)
"""Without depths."""


def _raster(slot: int) -> ViewMemory:
    """The arrays of gs-raster, where an intersection has ``slot`` bytes of gradient.

    Bytes a row: record 48, radii 8, first slot and count 8; of splats that share several rectangles
    also order and key, 8. The gradient of a splat is 48; of autograd's also that of the centre
    retained 8 and absolute 8. An intersection: splat and slot, 8. A pixel: image 12, last
    transmittance and last instance 8; of autograd's also alpha 4; the gradient of the image 12.
    Sorting takes at most 33 a row, or 9 a row and 20 an intersection, more: less than the gradient,
    and the gradient comes later. Where density control takes views directly, no splat's gradient
    has bytes of its own.
    Of the view before, splats and gradients live on, with the memory that the splats lie in; its
    image does not.
    """
    return ViewMemory(
        Footprint(Moment(1, 72, 8, 24), (Moment(1, 120, 8 + slot, 36), Moment(2, 136, 8, 36))),
        Footprint(
            Moment(0, 64, 8, 20), (Moment(0, 112, 8 + slot, 32),), before=Moment(0, 112, 8, 8)
        ),
    )


_SLOT, _SLOT_ABSGRAD, _SLOT_DEPTH = 36, 8, 4
"""Floats of a slot, 9; with absgrad, 2 more; with depths, 1 more."""


@functools.cache
def view_memory(name: str, *, absgrad: bool = False, depths: bool = False) -> ViewMemory:
    """The memory of the renderer ``name``: ``auto`` is ``raster``, and a renderer that is not known
    is taken for gsplat. The pixels of depths are not counted."""
    if name in ("auto", "raster"):
        return _raster(_SLOT + _SLOT_ABSGRAD * absgrad + _SLOT_DEPTH * depths)
    return _gsplat(16) if depths else GSPLAT
