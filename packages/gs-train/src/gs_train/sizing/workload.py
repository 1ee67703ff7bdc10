# SPDX-License-Identifier: Apache-2.0
"""How much of a scene its views see: what memory and time depend on, beside the number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from gs_train.renderers.footprint import ViewMemory, view_memory
from gs_train.rows.attributes import appearance_width
from gs_train.rows.strands import most_rows_of_rank

_POINT = 0.25
"""Tiles: the width of a row too small to be seen, which is blurred to a radius of two pixels."""


@dataclass(frozen=True)
class BatchRows:
    """Rows of a batch by what happens to them.

    Attributes:
        visible: sum over the views of the rows that each sees.
        union: rows that any view sees.
        two: rows that any view of this batch or the next sees.
        largest: of the view that sees most.
        loaded: what crosses the link when only consecutive views share rows.
        held: most rows on the device at once when rows stay to their last use.
        intersections: pairs of a row and a tile of 16 x 16 pixels that it touches, the most of
            three views: of those that see most rows, fewest (close-ups, of large ones) and between.
    """

    visible: float = 0.0
    union: float = 0.0
    two: float = 0.0
    largest: float = 0.0
    loaded: float = 0.0
    held: float = 0.0
    intersections: float = 0.0

    @classmethod
    def of(
        cls, batches: Sequence[BatchRows], together: Callable[[list[float]], float]
    ) -> BatchRows:
        """Each number from those of several batches, as ``max`` makes one of many."""
        names = [field.name for field in fields(cls)]
        return cls(**{n: together([getattr(batch, n) for batch in batches]) for n in names})

    def scaled(self, factor: float) -> BatchRows:
        """Views of ``factor`` times the rows, which are as large as these."""
        return BatchRows(**{f.name: getattr(self, f.name) * factor for f in fields(self)})

    def refined(self, factor: float) -> BatchRows:
        """Views of ``factor`` times the rows, which cover the same pixels.

        A row that is s tiles wide touches (1 + s)^2 of them, and s^2 shrinks by the factor, but for
        what a point is blurred to. Rows are taken to be of one size: of several sizes, more rows
        touch fewer tiles than that, and fewer rows more.
        """
        more = self.scaled(factor)
        if not self.largest:
            return more
        width = max(0.0, math.sqrt(self.intersections / self.largest) - 1.0)
        point = min(width, _POINT)
        shrunk = math.sqrt((width**2 - point**2) / factor + point**2)
        return replace(more, intersections=more.intersections * ((1 + shrunk) / (1 + width)) ** 2)


_Change = Callable[[BatchRows, float], BatchRows]


@dataclass(frozen=True)
class Workload:
    """A scene, its batches and its images.

    Attributes:
        n_rows: N.
        sh_degree: 0 to 3.
        batch_size: views a step.
        width, height: of the largest image, pixels.
        most: the largest of each number over the batches looked at, ``largest`` over all views;
            memory must hold these.
        mean: their means; time follows from these.
        channels: bytes of a photograph's pixel, the most of any: 4 with a mask, with a depth map
            2 more.
        carves: pixels that masks mark so are trained to be transparent.
        depths: the loss compares with depth maps.
        loss_bytes: a pixel, of what the loss takes for backgrounds and exposures meanwhile.
        tile_rows: rows that the views of a tile see; 0 where views are shuffled.
        tile_batches: batches of a tile.
        epoch_rows: rows that any view sees; 0 where nobody has counted them.
        epoch_batches: batches in which all views come once; 0 where nobody has counted them.
        image_cache: bytes of host memory for decoded photographs.
        statistics_bytes: of densification, a row, on the device.
        renderer: the name of what draws the views.
        absgrad: whether it sums absolute gradients.
        n_ranks: W, of the ranks that share scene and batches. N, ``most`` and ``mean`` are of the
            rows of one of these in all views of a batch.
    """

    n_rows: int
    sh_degree: int
    batch_size: int
    width: int
    height: int
    most: BatchRows
    mean: BatchRows
    channels: int = 3
    carves: bool = False
    depths: bool = False
    loss_bytes: int = 0
    tile_rows: float = 0.0
    tile_batches: int = 0
    epoch_rows: float = 0.0
    epoch_batches: float = 0.0
    image_cache: int = 0
    statistics_bytes: int = 8
    renderer: str = "gsplat"
    absgrad: bool = False
    n_ranks: int = 1

    def __post_init__(self) -> None:
        for name in ("n_rows", "batch_size", "width", "height", "n_ranks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.sh_degree <= 3:
            raise ValueError(f"sh_degree must be 0 to 3, got {self.sh_degree}")

    @property
    def appearance(self) -> int:
        """Floats of a row's appearance: sh0 and shN."""
        return appearance_width(self.sh_degree)

    @property
    def pixels(self) -> int:
        """Of one image."""
        return self.width * self.height

    @property
    def view_memory(self) -> ViewMemory:
        """Of the renderer."""
        return view_memory(self.renderer, absgrad=self.absgrad, depths=self.depths)

    def with_rows(self, n_rows: int) -> Workload:
        """The same with another number of rows; views see the same share. Rows keep their size,
        because training adds rows that are hardly smaller."""
        return self._resized(n_rows, BatchRows.scaled)

    def of_cloud(self, n_rows: int, view_rows: float | None = None) -> Workload:
        """The same scene from a cloud of another number of points, whose rows are as small as that
        makes them.

        Args:
            view_rows: that a mean view sees then, as for `seeing`; None: the same share.
        """
        whole = self._resized(n_rows, BatchRows.refined)
        return whole if view_rows is None else whole._seeing(view_rows, BatchRows.refined)

    def _resized(self, n_rows: int, change: _Change) -> Workload:
        resized, factor = replace(self, n_rows=n_rows), n_rows / self.n_rows
        return replace(
            resized,
            most=change(self.most, factor),
            mean=change(self.mean, factor),
            tile_rows=self.tile_rows * factor,
            epoch_rows=self.epoch_rows * factor,
        )

    def seeing(self, view_rows: float) -> Workload:
        """The same number of rows where a mean view sees so many of these, and as many more views
        as see all that these did."""
        return self._seeing(view_rows, BatchRows.scaled)

    def _seeing(self, view_rows: float, change: _Change) -> Workload:
        factor = view_rows * self.batch_size / self.mean.visible
        return replace(
            self,
            most=change(self.most, factor),
            mean=change(self.mean, factor),
            tile_rows=self.tile_rows * factor,
            epoch_batches=self.epoch_batches / factor,
        )

    def share(self, n_ranks: int) -> Workload:
        """What one of several ranks has of a scene that one rank has now: an even sample of the
        rows of each view, and the most of it that a rank may come to have."""
        n_rows = most_rows_of_rank(self.n_rows, n_ranks)
        return replace(
            self,
            n_rows=n_rows,
            most=self.most.scaled(n_rows / self.n_rows),
            mean=self.mean.scaled(1 / n_ranks),
            tile_rows=self.tile_rows / n_ranks,
            epoch_rows=self.epoch_rows / n_ranks,
            image_cache=self.image_cache // n_ranks,
            n_ranks=n_ranks,
        )
