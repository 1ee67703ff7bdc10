# SPDX-License-Identifier: Apache-2.0
"""A renderer for the CPU that draws rows where they lie, as one for a device would.

What a pass leaves where it has too little room, and gradients that are not added, are as wrong as
can be told: whoever keeps them is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gs_train.densify.statistics import Statistics
from gs_train.renderers import Rect, RenderOptions, Splats, View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.tables import Direct, Drawn, TableRows
from gs_train.rows.copies import add_rows, take_rows


@dataclass(eq=False)
class CpuDrawn:
    """A `Drawn` with what its gradient needs."""

    image: Tensor
    alpha: Tensor
    room: int
    leaves: dict[str, Tensor]
    splats: Splats
    rows: TableRows
    depth: Tensor | None = None
    for_gradient: None = None


@dataclass
class Noted:
    """What has been asked for.

    Attributes:
        drawn: (index, room, intersections) of each rectangle in the order in which it was drawn.
        added: indices of the rectangles whose gradients were added.
        n_skipped: rectangles whose gradients were not.
        n_observed: rectangles whose splats were given back.
        copied: rectangles that were drawn from copies.
        kept: bytes that might be kept of the memory of views, whenever the rest was given back.
    """

    drawn: list[tuple[int, int, int]] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    n_skipped: int = 0
    n_observed: int = 0
    copied: list[Rect | None] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)


def _nothing(what: str) -> None:
    """Nothing goes wrong."""


class CpuTables:
    """A `TableRenderer`.

    Args:
        renderer: whose splats and pixels these are.

    Attributes:
        fails: called before each ``draw`` and ``send_back``, with these words; may raise.
        most_room: (index, how many times a view was drawn in this batch before, room) to the room
            that there really is.
        noted: see `Noted`.
    """

    def __init__(self, renderer: TableCpuRenderer) -> None:
        self._renderer = renderer
        self.fails: Callable[[str], None] = _nothing
        self.most_room: Callable[[int, int, int], int] = lambda index, times, room: room
        self.noted = Noted()
        self._counts: list[int] = []
        self._times: list[int] = []
        self._index_of: dict[CpuDrawn, int] = {}
        self._overflowed = False

    def begin(self, n_views: int) -> None:
        """See `TableRenderer`."""
        self._counts, self._times = [-1] * n_views, [0] * n_views
        self._overflowed = False

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
        """See `TableRenderer`."""
        self.fails("draw")
        room = self.most_room(index, self._times[index], room)
        self._times[index] += 1
        taken = take_rows(rows.columns, rows.ids, rows.slots)
        leaves = {name: leaf.requires_grad_() for name, leaf in taken.items()}
        keys = rows.keys.index_select(0, rows.ids)
        renderer = self._renderer
        splats = renderer.project(leaves, view, sh_degree=sh_degree, keys=keys)
        splats.means2d.retain_grad()
        depths = None
        if depth:
            image, alpha, depths = CpuRenderer.rasterize_with_depth(renderer, splats, rect)
            depths = depths[..., 0]
        else:
            image, alpha = CpuRenderer.rasterize(renderer, splats, rect)
        count = self._counts[index] = splats.n_intersections
        if count > room:
            self._overflowed = True
            image = image * 0.0
        self.noted.drawn.append((index, room, count))
        drawn = CpuDrawn(image, alpha[..., 0], room, leaves, splats, rows, depths)
        self._index_of[drawn] = index
        return drawn

    def send_back(
        self,
        drawn: Drawn,
        gradient: Tensor,
        direct: Direct | None,
        of_alpha: Tensor | None = None,
        of_depth: Tensor | None = None,
    ) -> Splats | None:
        """See `TableRenderer`."""
        assert isinstance(drawn, CpuDrawn)
        self.fails("send_back")
        index = self._index_of.pop(drawn)
        of_alpha = torch.zeros_like(drawn.alpha) if of_alpha is None else of_alpha
        outputs, gradients = [drawn.image, drawn.alpha], [gradient, of_alpha]
        if drawn.depth is not None and of_depth is not None:
            outputs.append(drawn.depth)
            gradients.append(of_depth)
        torch.autograd.backward(outputs, gradients)
        if self._overflowed:
            assert drawn.splats.means2d.grad is not None
            drawn.splats.means2d.grad.fill_(float("nan"))
            self.noted.n_skipped += 1
            return None if direct is not None else drawn.splats
        parts = {name: leaf.grad for name, leaf in drawn.leaves.items()}
        add_rows(drawn.rows.sums, parts, drawn.rows.place, drawn.rows.place)
        self.noted.added.append(index)
        if direct is not None and direct.sums is not None:
            assert isinstance(direct.sums, Statistics)
            direct.sums.observe(drawn.rows.ids, drawn.splats, batch_size=direct.batch_size)
        if direct is not None:
            return None
        self.noted.n_observed += 1
        return drawn.splats

    def n_intersections(self, index: int) -> int:
        """See `TableRenderer`."""
        assert self._counts[index] >= 0, "was never drawn"
        return self._counts[index]

    def go_on(self) -> None:
        """See `TableRenderer`."""
        self._overflowed = False

    def release(self, *, above: int = 0) -> None:
        """See `TableRenderer`."""
        self.noted.kept.append(above)


class TableCpuRenderer(CpuRenderer):
    """The CPU renderer with tables.

    Args:
        absgrad: as `CpuRenderer`'s.
    """

    def __init__(self, *, absgrad: bool = False) -> None:
        super().__init__(RenderOptions(), absgrad=absgrad)
        self.tables = CpuTables(self)

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        """From copies, which is noted."""
        self.tables.noted.copied.append(rect)
        return super().rasterize(splats, rect)

    def rasterize_with_depth(
        self, splats: Splats, rect: Rect | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From copies, which is noted."""
        self.tables.noted.copied.append(rect)
        return super().rasterize_with_depth(splats, rect)
