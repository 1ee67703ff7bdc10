# SPDX-License-Identifier: Apache-2.0
"""The views of a batch on several ranks, in rounds: each rank draws a view of all ranks' splats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from gs_train.engine.batch_drawing import Running, pixels_of
from gs_train.engine.drawing import Drawing
from gs_train.engine.drawn_loss import batch_loss, share_shape
from gs_train.engine.own_rows import CopiedRows, Own, OwnRows, TabledRows
from gs_train.engine.pace import DrawingPace
from gs_train.engine.record_drawing import RecordDrawing
from gs_train.engine.room import KEPT_BYTES, Densities
from gs_train.engine.settings import StepSettings
from gs_train.engine.shared_views import SharedViews
from gs_train.engine.trace import Trace
from gs_train.engine.view_costs import ViewCosts
from gs_train.engine.view_news import ViewNews
from gs_train.machine.out_of_memory import memory_for
from gs_train.ranks.exchange import Exchange
from gs_train.ranks.rounds import draw_in_rounds
from gs_train.renderers import Renderer
from gs_train.renderers.records import (
    GRADIENT_WORDS,
    RecordRenderer,
    SplatRecords,
    TableRecordRenderer,
)
from gs_train.renderers.tables import direct_for
from gs_train.rows.operations import Model
from gs_train.world.protocol import World

_LATELY = 32
"""See `Densities`."""


class InRounds:
    """A `BatchDrawing` of several ranks.

    Args:
        model, renderer: as `Engine`'s; the renderer has ``records``.
        trace: of the engine.
        costs: of the views.
        views: cuts those that are left over.
        news: told about the views that this rank draws.
        pace: told how long this rank draws.
        world: all ranks.
    """

    def __init__(
        self,
        model: Model,
        renderer: Renderer,
        trace: Trace,
        costs: ViewCosts,
        views: SharedViews,
        news: ViewNews,
        pace: DrawingPace,
        world: World,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._records: RecordRenderer = renderer.records  # type: ignore[attr-defined]
        model.before_replacing = self._records.release
        self._on_tables: TableRecordRenderer | None = None
        if hasattr(self._records, "project_views"):
            self._on_tables = cast(TableRecordRenderer, self._records)
        self._trace = trace
        self._costs = costs
        self._views = views
        self._news = news
        self._pace = pace
        self._world = world
        self._densities = Densities(_LATELY)
        self._exchange = Exchange(world, GRADIENT_WORDS)
        self._no_share = torch.zeros((), device=model.device)

    def draw(self, run: Running, meanwhile: Callable[[], object] | None) -> Tensor:
        """See `BatchDrawing`."""
        batch, n_views = run.batch, len(run.truths)
        assert batch.turns is not None
        counts_columns = self._views.has_left_over(n_views)
        work = _RankWork(
            run,
            self._own_rows(run),
            RecordDrawing(
                self._records,
                run.settings,
                n_views,
                self._costs,
                self._densities,
                counts_columns=counts_columns,
            ),
            self._news,
            self._pace,
            self._trace,
            self._share_of_others(run.settings),
        )
        with memory_for("the rounds of ranks"):
            draw_in_rounds(batch.turns, self._exchange, work)
        self._records.release(above=KEPT_BYTES)
        if meanwhile is not None:
            meanwhile()
        self._news.end_batch(batch.seen.microbatches, has_columns=counts_columns)
        shares = self._world.sum(work.shares()).unbind()
        views = [microbatch.crop.view.name for microbatch in batch.seen.microbatches]
        return batch_loss(shares, views, run.settings)  # in canonical order

    @property
    def exchange_bytes(self) -> int:
        """Bytes of the buffers of exchanges."""
        return self._exchange.n_bytes

    def finish(self) -> None:
        """See `BatchDrawing`; gives back what the renderer keeps from batch to batch."""
        self._records.release()
        self._news.tell()

    def release(self) -> None:
        """See `BatchDrawing`."""
        self.finish()
        self._exchange.release()

    def _share_of_others(self, settings: StepSettings) -> Tensor:
        """Zeros, which are kept from batch to batch."""
        shape = share_shape(settings)
        if self._no_share.shape != shape:
            self._no_share = self._no_share.new_zeros(shape)
        return self._no_share

    def _own_rows(self, run: Running) -> OwnRows:
        settings, placement = run.settings, run.batch.placement
        drawing = Drawing(
            self._renderer,
            settings,
            run.observe,
            len(run.truths),
            self._model.keys.values,
            self._costs,
        )
        if self._on_tables is not None and placement.is_resident:
            direct = direct_for(run.direct, has_crops=len(run.order) > len(run.truths))
            return TabledRows(
                placement, drawing, self._on_tables, direct, sh_degree=settings.sh_degree
            )
        return CopiedRows(placement, drawing, self._records)


class _RankWork:
    """What this rank does for a batch; a `gs_train.ranks.rounds.Work`.

    Args:
        run: the batch.
        own: this rank's rows.
        drawing: of the batch.
        news, pace: told about each microbatch that is drawn.
        trace: of the engine.
        no_share: the share of the loss of what other ranks draw.
    """

    def __init__(
        self,
        run: Running,
        own: OwnRows,
        drawing: RecordDrawing,
        news: ViewNews,
        pace: DrawingPace,
        trace: Trace,
        no_share: Tensor,
    ) -> None:
        self._microbatches = run.batch.seen.microbatches
        self._truths = run.truths
        self._own = own
        self._drawing = drawing
        self._news = news
        self._pace = pace
        self._trace = trace
        self._shares = [no_share] * len(run.order)

    def shares(self) -> Tensor:
        """(M,) or (M, 13) of the loss, zeros of what other ranks draw."""
        return torch.stack(self._shares)  # one kernel instead of one for each that is drawn

    def project(
        self, microbatches: Sequence[int], out: SplatRecords, segments: Sequence[range]
    ) -> None:
        """See `Work`."""
        with self._trace.both(f"project {_names(microbatches)}"):
            self._own.project(self._own_of(microbatches, segments), out)

    def draw(self, microbatch: int, records: SplatRecords) -> Callable[[], Tensor]:
        """See `Work`."""
        one, name = self._microbatches[microbatch], f"draw {microbatch}"
        truth = pixels_of(self._truths[one.index])
        with self._trace.both(name), self._pace.drawing(records.n):
            end = self._drawing.begin(one.crop, truth, records)

        def gradients() -> Tensor:
            drawn = end()
            self._shares[microbatch] = drawn.share
            self._news.note(microbatch, drawn)
            return drawn.gradients

        return gradients

    def give_back(
        self, microbatches: Sequence[int], gradients: Tensor, segments: Sequence[range]
    ) -> None:
        """See `Work`."""
        with self._trace.both(f"give back {_names(microbatches)}"):
            self._own.give_back(self._own_of(microbatches, segments), gradients)

    def _own_of(self, microbatches: Sequence[int], segments: Sequence[range]) -> list[Own]:
        return [
            Own(k, self._microbatches[k], segment)
            for k, segment in zip(microbatches, segments, strict=True)
        ]


def _names(microbatches: Sequence[int]) -> str:
    """Of microbatches that follow each other, in the trace."""
    first, last = microbatches[0], microbatches[-1]
    return str(first) if first == last else f"{first} to {last}"
