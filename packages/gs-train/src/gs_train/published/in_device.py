# SPDX-License-Identifier: Apache-2.0
"""Batches whose parameters and gradients are all on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gs_train.engine.backend import Observe, StepSettings
from gs_train.engine.drawing import Drawing
from gs_train.engine.lanes import Lanes
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.regularise import add_to, penalties
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.renderers import Renderer, View
from gs_train.renderers.culling import visible_ids
from gs_train.rows.gaussians import Gaussians


class InDevice:
    """A `Backend`: one view at a time, visible rows only, gradients added up for all rows.

    Args:
        model: the rows. Its optimizer decides where moments live.
        renderer: draws them, on the model's device.
    """

    def __init__(self, model: Gaussians, renderer: Renderer) -> None:
        self.model = model
        self._renderer = renderer
        self.trace = Trace(Lanes(model.device))
        self.stats = BatchStats()
        self.costs = ViewCosts()

    def step(
        self,
        batch: Sequence[tuple[View, Tensor]],
        settings: StepSettings,
        observe: Observe,
        *,
        upcoming: Sequence[Sequence[View]] = (),
    ) -> Tensor:
        """See `Backend.step`."""
        model = self.model
        model.zero_gradients()
        keys = model.keys.values
        drawing = Drawing(self._renderer, settings, observe, len(batch), keys, self.costs)
        loss = torch.zeros((), device=model.device)
        seen = []
        for index in self.costs.order([view for view, _ in batch]).tolist():
            view, truth = batch[index]
            with self.trace.host("view"), self.trace.on("compute", "view"):
                ids = visible_ids(model.params, view, self._renderer)
                leaves = model.leaves(ids)
                loss += drawing.draw(Microbatch(index, Crop(view, view.rect)), truth, ids, leaves)
                model.add_gradients(ids, leaves)
            seen.append(ids)
        for group in model.optimizer.param_groups:
            group["lr"] = settings.rates[group["name"]]
            group["betas"] = settings.betas
            group["eps"] = settings.eps
        union = None if settings.regularise_all else torch.cat(seen).unique()
        with self.trace.host("update"), self.trace.on("compute", "update"):
            self._update(settings, union)
        self.costs.end_batch()
        self._count(seen)
        return loss

    @torch.no_grad()
    def _update(self, settings: StepSettings, seen: Tensor | None) -> None:
        """Regularise and step.

        Args:
            seen: (U,) sorted rows that the losses act on; None for all.
        """
        model, of = self.model, penalties(settings, self.model.n_rows)
        gradients = {name: p.grad for name, p in model.params.items() if p.grad is not None}
        if seen is None:
            add_to(gradients, model.params, of)
        else:
            values = {name: model.params[name].index_select(0, seen) for name in of}
            compact = {name: gradients[name].index_select(0, seen) for name in of}
            add_to(compact, values, of)
            for name in of:
                gradients[name].index_copy_(0, seen, compact[name])
        model.optimizer.step()

    def _count(self, seen: Sequence[Tensor]) -> None:
        stats = self.stats
        stats.batches += 1
        stats.microbatches += len(seen)
        stats.visible += sum(map(len, seen))
        stats.seen += sum(map(len, seen))
        stats.updated += self.model.n_rows
        # Gradients out, parameters in.
        moved = sum(param.nbytes for param in self.model.params.values())
        stats.bytes_loaded += moved
        stats.bytes_stored += moved

    def finish(self) -> None:
        """See `Backend.finish`: nothing is in the background."""

    def make_room(self) -> None:
        """See `Backend.make_room`."""
        self.model.drop_gradients()
