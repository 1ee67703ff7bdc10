# SPDX-License-Identifier: Apache-2.0
"""The engine: batches of rows, wherever their appearance lives.

A preset chooses the order, what stays on the device, and who updates which rows when; what is
computed is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

import gs_adam
from gs_train.engine.backend import Observe, StepSettings
from gs_train.engine.beside import Beside
from gs_train.engine.drawing import Drawing
from gs_train.engine.in_place import InPlace
from gs_train.engine.lanes import Lanes
from gs_train.engine.limits import UNLIMITED, Limits
from gs_train.engine.lookahead import EarlyList, Lookahead
from gs_train.engine.planner import Batch, Planner
from gs_train.engine.regularise import add_to, penalties
from gs_train.engine.residents import Residents
from gs_train.engine.residing import Residing
from gs_train.engine.stats import BatchStats
from gs_train.engine.sums import CompactSum
from gs_train.engine.trace import Trace
from gs_train.engine.view_costs import ViewCosts
from gs_train.engine.work import Work
from gs_train.options.presets import Preset
from gs_train.published.streaming import Streaming
from gs_train.renderers import Renderer, View
from gs_train.rows.device_appearance import DeviceAppearance
from gs_train.rows.selective import SelectiveAdam
from gs_train.rows.tiered import TieredGaussians


class Engine:
    """A `Backend` for models whose appearance is on the device or in host memory.

    Args:
        model: the rows; made with ``travels`` where the preset has residents.
        renderer: draws them, on the model's device.
        preset: how.
        limits: of rows, where memory sets them.
        most_share: views that see a larger share of all rows are cut into crops.
        seed: of the search for an order.

    Attributes:
        stats: what has moved so far.
        trace: see `Trace`.
        costs: of the views.
    """

    def __init__(
        self,
        model: TieredGaussians,
        renderer: Renderer,
        preset: Preset,
        *,
        limits: Limits = UNLIMITED,
        most_share: float | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self._renderer = renderer
        self._lanes = Lanes(model.device)
        self.stats = BatchStats()
        self.trace = Trace(self._lanes, model.appearance.worker)
        self.costs = ViewCosts()
        self._lookahead = Lookahead(model, renderer, preset, self._lanes)
        self._planner = Planner(
            *(model, renderer, preset, limits, self._lookahead, self.costs),
            most_share=most_share,
            seed=seed,
        )
        beside = Beside(model.device)
        common = self._lanes, self.stats, self.trace, beside
        self._path: Streaming | Residing
        if preset.placement == "device":
            slots = InPlace(cast(DeviceAppearance, model.appearance))
            self._path = self._residing = Residing(model, slots, *common)
        else:
            self._path = self._streaming = Streaming(model, preset, *common)
            if preset.residents and limits.residents != 0:
                residents = Residents(model.host, self._lanes, self.trace, limits.residents)
                self._path = self._residing = Residing(model, residents, *common)
        self._is_whole = True

    @property
    def is_resident(self) -> bool:
        """Whether the last batch's rows were updated on the device."""
        return isinstance(self._path, Residing)

    def step(
        self,
        batch: Sequence[tuple[View, Tensor]],
        settings: StepSettings,
        observe: Observe,
        *,
        upcoming: Sequence[Sequence[View]] = (),
    ) -> Tensor:
        """See `Backend.step`."""
        self._check_whole()
        self._set_options(settings)
        with self.trace.host("prepare"):
            ready = self._planner.batch([view for view, _ in batch], settings)
            path = self._path_of(ready)
            path.open(ready)
        self._is_whole = False
        with self.trace.host("begin step"):
            step = self.model.appearance.begin()
            keys = self.model.keys.values
            drawing = Drawing(self._renderer, settings, observe, len(batch), keys, self.costs)
            loss = torch.zeros((), device=self.model.device)
            sums = CompactSum(ready.seen.ids, self.model.params)

        def draw(i: int, ids: Tensor, leaves: Mapping[str, Tensor]) -> None:
            microbatch = ready.seen.microbatches[i]
            loss.add_(drawing.draw(microbatch, batch[microbatch.index][1], ids, leaves))

        def look_ahead(edited: torch.cuda.Event | None) -> EarlyList | None:
            with self.trace.host("list the next", track="ahead"):
                return self._lookahead.next(upcoming, settings, edited)

        def look_further(edited: torch.cuda.Event | None) -> None:
            with self.trace.host("list the one after", track="ahead"):
                self._lookahead.further(upcoming, settings, edited)

        path.run(Work(ready, step, self.model.params, sums, draw, look_ahead, look_further))
        with self.trace.host("update geometry"), self.trace.on("compute", "update geometry"):
            self._lookahead.wait_to_edit()
            self._update_geometry(sums, settings)
        with self.trace.host("end step"):
            path.close(step)
        self.costs.end_batch()
        self._is_whole = True
        return loss

    def finish(self) -> None:
        """See `Backend.finish`. Early lists stay."""
        self._check_whole()
        self._path.finish()
        self.model.appearance.rest()

    def make_room(self) -> None:
        """See `Backend.make_room`."""
        self._check_whole()
        self._path.leave()
        self.model.appearance.rest()

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise RuntimeError(
                "an earlier batch ended in the middle, some of its rows updated and others not: "
                "go on from the last checkpoint"
            )

    def _path_of(self, batch: Batch) -> Streaming | Residing:
        """Who runs the batch; the other one lets go of the rows."""
        path = self._streaming if batch.plan is not None else self._residing
        if path is not self._path:
            self._path.leave()
            self._path = path
        return path

    def _set_options(self, settings: StepSettings) -> None:
        for group in self.model.geometry.optimizer.param_groups:
            group["lr"] = settings.rates[group["name"]]
            group["betas"] = settings.betas
            group["eps"] = settings.eps
        self.model.appearance.set_rates(settings.rates, betas=settings.betas, eps=settings.eps)

    def _update_geometry(self, sums: CompactSum, settings: StepSettings) -> None:
        adam = self.model.geometry.optimizer
        names = [group["name"] for group in adam.param_groups]
        of = penalties(settings, self.model.n_rows)
        if isinstance(adam, gs_adam.DeviceAdam) and settings.regularise_all:
            gradients = [sums.of[name] for name in names]
            adam.step(sums.ids, gradients, penalties=[of.get(name) for name in names])
            return
        rows = sums.ids.long()
        add_to(sums.of, {name: self.model.params[name].index_select(0, rows) for name in of}, of)
        assert isinstance(adam, gs_adam.DeviceAdam | SelectiveAdam)
        adam.step(sums.ids, [sums.of[name] for name in names])
