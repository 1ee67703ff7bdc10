# SPDX-License-Identifier: Apache-2.0
"""Splats as they travel: the rank that owns rows projects them, another rank draws the view.

    owner of rows                               rank that draws the view
    rows -> splats -> write   == records ==>    draw -> image -> loss
    rows <- backward          <= gradients ==   send_back <- gradient of the image

No rank waits for a number of splats. Ranks tell a batch early how many rows of theirs a view may
show at most; a segment of records has room for so many, and records that no row needs are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rect, Splats, View
from gs_train.renderers.tables import Direct, TableRows

TILE = 16
"""Pixels of a side of the tiles that intersections are counted of."""

RECORD_WORDS = 12
"""Words of a record: mean x, y; opacity; depth; conic xx, xy, yy; reach; red, green, blue; reach.

The two words of reach are the renderer's own. Both are 0 where a row does not show."""

REACH = (7, 11)

FIELDS: dict[str, int | slice] = {
    "means2d": slice(0, 2),
    "opacities": 2,
    "depths": 3,
    "conics": slice(4, 7),
    "colors": slice(8, 11),
}
"""Where the floats of splats are in a record."""

GRADIENTS: dict[str, int | slice] = {
    "means2d": slice(0, 2),
    "conics": slice(2, 5),
    "opacities": 5,
    "colors": slice(6, 9),
    "depths": 9,
}
"""Where the gradients of splats are, in rows of `GRADIENT_WORDS`. That of the depth is 0 unless the
loss looks at depths."""

ABSGRAD = slice(10, 12)
"""Where the absolute gradients of the centres are, if density control reads them; else zeros."""

GRADIENT_WORDS = 12
"""Words of the gradient of a splat on its way back: gs-raster's own, so that nothing is copied."""

NO_KEY = -1
"""The key of an empty record."""


def keys_of(splats: Splats) -> Tensor:
    """(R,) int32 keys of splats that shall travel.

    Raises:
        ValueError: the splats have none.
    """
    if splats.keys is None:
        raise ValueError("splats must have keys to travel, got keys=None")
    return splats.keys


@dataclass(frozen=True, eq=False)
class SplatRecords:
    """S splats of one view, 52 bytes each.

    Attributes:
        words: (S, 12) int32, contiguous, aligned to 16 bytes.
        keys: (S, 1) int32, contiguous: splats of equal depth are blended in their order.
    """

    words: Tensor
    keys: Tensor

    @classmethod
    def room_for(cls, n: int, device: torch.device | str) -> SplatRecords:
        """Memory for n of them, of any values."""
        words = torch.empty((n, RECORD_WORDS), dtype=torch.int32, device=device)
        return cls(words, torch.empty((n, 1), dtype=torch.int32, device=device))

    @property
    def n(self) -> int:
        """S."""
        return self.words.shape[0]  # which is sooner told than len()

    @property
    def floats(self) -> Tensor:
        """(S, 12) float32: the words."""
        return self.words.view(torch.float32)

    def part(self, segment: range) -> SplatRecords:
        """Some of the records, in the same memory."""
        own = slice(segment.start, segment.stop)
        return SplatRecords(self.words[own], self.keys[own])

    def make_empty(self, first: int) -> None:
        """Make the records from ``first`` on empty."""
        if first < self.n:
            self.words[first:].zero_()
            self.keys[first:].fill_(NO_KEY)

    def check_room(self, n: int) -> None:
        """Raise ValueError unless there is room for n rows."""
        if n > self.n:
            raise ValueError(f"out must have room for {n} splats, got {self.n}")


class DrawnRecords(Protocol):
    """A rectangle that has been drawn from records. It lasts until the next one is drawn.

    Attributes:
        image: (h, w, 3) over black; until its gradient is sent back.
        alpha: (h, w).
        depth: (h, w) sum of weight times depth, 0 where nothing is; None if not asked for.
        for_gradient: (h, w, 3) memory for the gradient of the image; None: take some.
        n_intersections: pairs of a splat and a tile that it touches; asking waits until they are
            counted.
    """

    @property
    def image(self) -> Tensor: ...
    @property
    def alpha(self) -> Tensor: ...
    @property
    def depth(self) -> Tensor | None: ...
    @property
    def for_gradient(self) -> Tensor | None: ...
    @property
    def n_intersections(self) -> int: ...

    def column_counts(self) -> Tensor:
        """(C,) int64 intersections of each column of tiles, on the device and in memory of its own.
        Does not synchronise."""
        ...


class RecordRenderer(Protocol):
    """What a renderer does where its rows and its pixels are on different ranks."""

    def write(self, splats: Splats, out: SplatRecords) -> None:
        """Write splats, and empty records behind them. Does not synchronise.

        Args:
            splats: R of them, from the renderer's ``project``, with keys.
            out: room for R or more.

        Raises:
            ValueError: there is not enough room, or splats have no keys.
        """
        ...

    def draw(
        self,
        records: SplatRecords,
        view: View,
        rect: Rect,
        *,
        room: int | None = None,
        depth: bool = False,
    ) -> DrawnRecords:
        """Draw a rectangle of a view: the image that ``rasterize`` makes of the same splats.

        Args:
            records: of all ranks, in any order; left alone until the gradient is sent back.
            room: intersections that are expected at most, so that nothing need be waited for. Where
                there are more, image and gradients may be of nothing: draw again. None: count them.
            depth: also sum depths.

        Raises:
            TooManyIntersectionsError: the splats touch 2^31 tiles or more. With a room, from
                ``n_intersections``.
        """
        ...

    def send_back(
        self,
        drawn: DrawnRecords,
        gradient: Tensor,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Tensor:
        """(S, 12) float32: gradients of the records' splats, see `GRADIENTS`.

        Args:
            gradient: (h, w, 3) of the loss by the image.
            of_alpha: (h, w) of the loss by alpha; None for 0.
            of_depth: (h, w) of the loss by the sum of depths; None for 0.
        """
        ...

    def release(self, *, above: int = 0) -> None:
        """Give back what is kept from drawing to drawing, if it is more than ``above`` bytes."""
        ...

    def backward(self, splats: Splats, gradients: Tensor) -> None:
        """Go on where the gradients of splats have come back, as the backward pass of
        ``rasterize`` does: leaves of the rows get their gradients, and splats those that density
        control reads.

        Args:
            splats: that were written.
            gradients: (S, 12), a row for each record, of empty ones too.
        """
        ...


class Outgoing(NamedTuple):
    """Rows that one view sees, and where their splats go.

    Attributes:
        rows: R of them; R may be 0.
        segment: of the records, R or more.
    """

    rows: TableRows
    view: View
    segment: range


class TableRecordRenderer(RecordRenderer, Protocol):
    """A `RecordRenderer` that projects rows where they lie, without autograd: those of several
    views, which are in the same tables, in one call."""

    def project_views(
        self, outgoing: Sequence[Outgoing], out: SplatRecords, *, sh_degree: int
    ) -> Any:
        """Project rows, and write their splats, with empty records behind those of each view. Does
        not synchronise.

        Args:
            outgoing: of at least one view.
            out: of all views, left alone until the gradients have come back.

        Returns:
            What `project_views_backward` takes.
        """
        ...

    def project_views_backward(
        self, projected: Any, gradients: Tensor, *, direct: Direct | None = None
    ) -> list[Splats] | None:
        """Add the gradients of rows to their sums, view after view. Does not synchronise.

        Args:
            gradients: (S, 12) of all views, a row for each record, of empty ones too.
            direct: takes the views, if given.

        Returns:
            Unless ``direct`` takes them: the splats of each view, with the gradients that density
            control reads.
        """
        ...
