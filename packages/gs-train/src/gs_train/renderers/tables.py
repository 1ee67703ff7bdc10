# SPDX-License-Identifier: Apache-2.0
"""Drawing rows where they lie, for renderers that need no copies of them and no autograd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from gs_train.renderers.protocol import Rect, Splats, View


class TableRows(NamedTuple):
    """R rows of a batch in the tables that they live in, and where their gradients go.

    A tensor that comes again has the shape that it had, and lies where it lay: what was checked of
    it holds.

    Attributes:
        columns: the six attributes by name: (N, ...) of the geometry, (C, ...) of the harmonics,
            which may be columns of a wider table.
        ids: (R,) int32, where the rows are in the geometry.
        slots: (R,) int32, where the same rows are in the harmonics.
        keys: (N,) int32, by id.
        sums: (U, ...) by name, gradients of the batch's rows.
        place: (R,) where the rows are among the batch's; None: R is U.
    """

    columns: Mapping[str, Tensor]
    ids: Tensor
    slots: Tensor
    keys: Tensor
    sums: Mapping[str, Tensor]
    place: Tensor | None


class Sums(Protocol):
    """What density control reads, of each row of the geometry.

    Attributes:
        grad2d, count: (N,) float32, see `gs_train.densify.statistics.Statistics`.
        radii: (N,) float32, or None.
        absgrad: which gradient is read.
    """

    grad2d: Tensor
    count: Tensor
    radii: Tensor | None

    @property
    def absgrad(self) -> bool: ...


class Direct(NamedTuple):
    """How density control takes views where a renderer adds to its sums by itself.

    Attributes:
        sums: added to, by views that are drawn whole; None: nothing is wanted of views.
        batch_size: views that the loss is the mean of, to undo that division.
    """

    sums: Sums | None
    batch_size: int


def direct_for(direct: Direct | None, *, has_crops: bool) -> Direct | None:
    """What takes the views of a batch; None: they are observed.

    Gradients of crops add up before their norm is taken, and the order in which views count must
    not follow from their room. In a batch with crops ``direct`` therefore takes views only where
    nothing is wanted of them.

    Args:
        has_crops: whether some views of the batch are drawn in crops.
    """
    wants = direct is not None and direct.sums is not None
    return None if has_crops and wants else direct


class Drawn(Protocol):
    """A rectangle that has been drawn.

    Attributes:
        image: (h, w, 3) over black.
        alpha: (h, w), to be asked for before the gradient is sent back.
        depth: (h, w) sum of weight times depth, 0 where nothing is; None if not asked for.
        room: intersections that there was room for.
        for_gradient: (h, w, 3) that the gradient of the image may be written to; None: there is no
            memory for it.
    """

    @property
    def image(self) -> Tensor: ...
    @property
    def alpha(self) -> Tensor: ...
    @property
    def depth(self) -> Tensor | None: ...
    @property
    def room(self) -> int: ...
    @property
    def for_gradient(self) -> Tensor | None: ...


class TableRenderer(Protocol):
    """Draws the views of a batch one after the other, and waits for no count.

    Tile intersections have room that the caller chose. Where a view has more, its image is black,
    and from then on nothing is added to sums until `go_on`.
    """

    def begin(self, n_views: int) -> None:
        """A batch of so many views begins."""
        ...

    def draw(
        self,
        rows: TableRows,
        view: View,
        rect: Rect,
        *,
        sh_degree: int,
        room: int,
        index: int,
        direct: Direct | None = None,
        depth: bool = False,
    ) -> Drawn:
        """Draw a rectangle of the batch's view ``index``. Does not synchronise.

        Args:
            direct: that `send_back` gets as well, before the next view is drawn; None: `send_back`
                may come later, and gives splats.
            depth: also sum depths.

        Raises:
            OutOfMemoryError: nothing has been drawn.
        """
        ...

    def send_back(
        self,
        drawn: Drawn,
        gradient: Tensor,
        direct: Direct | None,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Splats | None:
        """Add the gradients of the rows to their sums. Does not synchronise.

        Args:
            gradient: (h, w, 3) of the loss by the image.
            direct: takes the rectangle, which is a whole view where there are sums.
            of_alpha: (h, w) of the loss by alpha; None for 0.
            of_depth: (h, w) of the loss by the sum of depths; None for 0.

        Returns:
            The splats, with the gradient of ``means2d`` and, where it is asked for, ``absgrad``;
            None where ``direct`` is given.

        Raises:
            OutOfMemoryError: nothing has been added.
        """
        ...

    def n_intersections(self, index: int) -> int:
        """How many view ``index`` has. Waits until the view is drawn, for nothing behind it."""
        ...

    def go_on(self) -> None:
        """What comes next is added again."""
        ...

    def release(self, *, above: int = 0) -> None:
        """Give back memory that was kept for the next view. The batch may go on.

        Args:
            above: so many bytes or fewer are kept.
        """
        ...
