# SPDX-License-Identifier: Apache-2.0
"""The step: the views of a batch are drawn one by one, wherever its rows are, and rows updated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from gs_train.engine.all_rows import AllRows
from gs_train.engine.batch_drawing import BatchDrawing, Running, Truth, trouble_of
from gs_train.engine.lookahead import Lookahead
from gs_train.engine.one_by_one import OneByOne
from gs_train.engine.placement import Placement, Tools
from gs_train.engine.planner import Planner
from gs_train.engine.planning import LooksAhead, Planning, PlansBatches
from gs_train.engine.settings import Observe, StepSettings
from gs_train.engine.together import Sharing, Together
from gs_train.engine.view_costs import ViewCosts
from gs_train.machine.out_of_memory import memory_for
from gs_train.machine.side_thread import SideThread
from gs_train.renderers import Renderer, View
from gs_train.renderers.tables import Direct
from gs_train.rows.operations import Model


class Engine:
    """One loop over the microbatches of a batch, whose rows a `Placement` brings.

    Args:
        model: the rows.
        renderer: draws them, on the model's device; from their tables where it has ``tables``.
        placements: of the model. A batch runs in the first that it fits into.
        tools: that the placements share with it.
        lists_all: rows times views that a batch has at most which lists all rows, instead of those
            that its views see: 0 where rows must be brought. Of renderers that draw from tables.
        most_rows: views that see more rows are cut into crops; None: no view is.
        most_share: the same, as a share of all rows.
        sharing: with other ranks, whose engines make the same calls; None: there are none. Views
            are then cut for other reasons than their rows.
        planning: how batches are found, where not all rows are at hand; None: among all rows.

    Attributes:
        stats: what has moved so far.
        trace: see `Trace`.
        costs: of the views: a checkpoint needs them beside the model to go on with the same bits.
        together: what several ranks have besides; None: there is one.
        placement: of the last batch.
        side: the thread that looks ahead.
    """

    def __init__(
        self,
        model: Model,
        renderer: Renderer,
        placements: Sequence[Placement],
        tools: Tools,
        *,
        lists_all: int = 0,
        most_rows: int | None = None,
        most_share: float | None = None,
        sharing: Sharing | None = None,
        planning: Planning | None = None,
    ) -> None:
        self.model = model
        self.stats = tools.stats
        self.trace = tools.trace
        self.costs = ViewCosts()
        self.placement = placements[0]
        self.side = SideThread(model.device)
        self._lanes = tools.lanes
        all_rows = AllRows(model, lists_all if getattr(renderer, "tables", None) else 0)
        self._lookahead: LooksAhead
        self._planner: PlansBatches
        self._drawing: BatchDrawing
        self.together: Together | None = None
        if sharing is not None and sharing.world.size > 1:
            shared = self.together = Together.of(
                *(model, renderer, placements, tools, all_rows, self.costs, sharing)
            )
            self._lookahead, self._planner = shared.lookahead, shared.planner
            self._drawing = shared.drawing
        elif planning is not None:
            self._lookahead, self._planner = planning.lookahead, planning.of(self.costs)
            self._drawing = OneByOne(model, renderer, tools.trace, self.costs)
        else:
            lookahead = self._lookahead = Lookahead(model, renderer, tools.lanes)
            self._planner = Planner(
                model,
                renderer,
                placements,
                lookahead=lookahead,
                all_rows=all_rows,
                costs=self.costs,
                most_rows=most_rows,
                most_share=most_share,
            )
            self._drawing = OneByOne(model, renderer, tools.trace, self.costs)
        self._is_whole = True

    @property
    def is_resident(self) -> bool:
        """Whether the last batch's rows were updated on the device, where they lie."""
        return self.placement.is_resident

    @property
    def is_whole(self) -> bool:
        """Whether each batch that has begun has ended."""
        return self._is_whole

    def step(
        self,
        batch: Sequence[tuple[View, Truth]],
        settings: StepSettings,
        observe: Observe,
        *,
        direct: Direct | None = None,
        upcoming: Sequence[Sequence[View]] = (),
        meanwhile: Callable[[], object] | None = None,
    ) -> Tensor:
        """One optimizer update from the mean loss of a batch.

        Args:
            batch: views on the model's device with their photographs there.
            settings: rates and weights of this step.
            observe: told about each view.
            direct: if given, takes views that are drawn from tables instead, see
                `gs_train.renderers.tables.direct_for`.
            upcoming: views of the batches that follow, as far as known; two of them are enough. A
                hint that changes no result.
            meanwhile: called once the views are enqueued, before the host waits for the device.

        Returns:
            () the loss, on the device: reading it synchronises.

        Raises:
            RuntimeError: an earlier batch ended in the middle.
            InputError, OSError: a photograph is `Unreadable`, and no row has changed. Where ranks
                are several, a CommonError on all of them.
        """
        self._check_whole()
        with self.trace.host("prepare"):
            truths = [truth for _, truth in batch]
            views = [view for view, _ in batch]
            planned = self._planner.batch(views, settings, trouble_of(truths))
            placement = self._changed_to(planned.placement)
            order = placement.open(planned)
        self._is_whole = False
        n_following = len(upcoming[0]) if upcoming else 0
        looks = placement.lists_ahead and not self._planner.lists_all(n_following, settings)
        with self.trace.host("begin step"):
            edited = None
            if looks or not placement.is_resident:  # else no other lane reads what was edited
                edited = self._lanes.mark("compute")
            step = placement.begin(settings, edited)
        run = Running(planned, order.tolist(), truths, settings, observe, direct)

        def look_ahead() -> None:
            with self.trace.host("list the next", track="ahead"):
                early = self._lookahead.find(0, upcoming, settings, step, edited)
            placement.expect(early)
            if placement.lists_ahead > 1:
                with self.trace.host("list the one after", track="ahead"):
                    self._lookahead.find(1, upcoming, settings, step, edited)

        beside: AbstractContextManager[object] = nullcontext()
        if looks:
            # It waits for the geometry, which is ready unless the device is behind.
            waits = placement.expecting_waits or not self._lanes.has_passed(edited)
            beside = self.side.running(look_ahead, waits=waits)
        else:
            placement.expect(None)
        with beside:
            loss = self._drawing.draw(run, meanwhile)
        with memory_for("the optimizer's update"):
            placement.update(self._lookahead.looked())
        with self.trace.host("end step"):
            placement.close()
        self.costs.end_batch()
        self._is_whole = True
        return loss

    def finish(self) -> None:
        """Wait for work in the background, so that the rows may be read, edited or saved. Early
        lists stay."""
        self._check_whole()
        self.placement.finish()
        self._drawing.finish()

    def make_room(self) -> None:
        """Finish, and give back device memory that can be taken again: all rows are about to be
        re-ordered, which needs much."""
        self._check_whole()
        self.placement.leave()
        self._drawing.release()

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise RuntimeError(
                "an earlier batch ended in the middle, some of its rows updated and others not: "
                "go on from the last checkpoint"
            )

    def _changed_to(self, placement: Placement) -> Placement:
        """The placement that runs the batch; the one before lets go of the rows."""
        if placement is not self.placement:
            self.placement.leave()
            self.placement = placement
        return placement
