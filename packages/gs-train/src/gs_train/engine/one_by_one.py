# SPDX-License-Identifier: Apache-2.0
"""The views of a batch on one rank: one after the other, where their rows are."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gs_train.engine.batch_drawing import Running, pixels_of
from gs_train.engine.drawing import Drawing
from gs_train.engine.drawn_loss import batch_loss
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.room import Densities
from gs_train.engine.table_drawing import TableDrawing
from gs_train.engine.trace import Trace
from gs_train.engine.view_costs import ViewCosts
from gs_train.renderers import Renderer
from gs_train.renderers.tables import TableRenderer, direct_for
from gs_train.rows.operations import Model


class OneByOne:
    """A `BatchDrawing`, from tables where the renderer and the placement have them.

    Args:
        model, renderer: as `Engine`'s.
        trace: of the engine.
        costs: of the views; told about those that are drawn.
    """

    def __init__(self, model: Model, renderer: Renderer, trace: Trace, costs: ViewCosts) -> None:
        self._model = model
        self._renderer = renderer
        self._tables: TableRenderer | None = getattr(renderer, "tables", None)
        if self._tables is not None:
            model.before_replacing = self._tables.release
        self._densities = Densities()
        self._trace = trace
        self._costs = costs

    def draw(self, run: Running, meanwhile: Callable[[], object] | None) -> Tensor:
        """See `BatchDrawing`."""
        placement, microbatches = run.batch.placement, run.batch.seen.microbatches
        n_views, keys = len(run.truths), self._model.keys.values
        drawing = Drawing(self._renderer, run.settings, run.observe, n_views, keys, self._costs)

        def from_copies(k: int, microbatch: Microbatch, truth: Tensor) -> Tensor:
            taken = placement.take(k)
            with self._trace.both(f"draw {k}"):
                share = drawing.draw(microbatch, truth, taken.ids, taken.leaves)
            placement.give(k, taken)
            return share

        from_tables = None
        if self._tables is not None:
            from_tables = TableDrawing(
                self._tables,
                run.settings,
                drawing.statistics,
                direct_for(run.direct, has_crops=len(microbatches) > n_views),
                self._costs,
                self._densities,
                from_copies,
                n_views=n_views,
                n_microbatches=len(run.order),
            )

        def draw(k: int, i: int) -> Tensor:
            microbatch = microbatches[i]
            truth = pixels_of(run.truths[microbatch.index])
            if from_tables is not None and (rows := placement.tables(k)) is not None:
                with self._trace.both(f"draw {k}"):
                    share = from_tables.draw(k, microbatch, truth, rows)
                if share is not None:
                    return share
            return from_copies(k, microbatch, truth)

        shares = [draw(k, i) for k, i in enumerate(run.order)]
        if meanwhile is not None:
            meanwhile()
        if from_tables is not None:
            with self._trace.on("compute", "settle"):
                from_tables.settle()
        views = [microbatches[i].crop.view.name for i in run.order]
        return batch_loss(shares, views, run.settings)

    def finish(self) -> None:
        """See `BatchDrawing`; gives back what the renderer keeps from batch to batch."""
        if self._tables is not None:
            self._tables.release()

    def release(self) -> None:
        """See `BatchDrawing`."""
        self.finish()
