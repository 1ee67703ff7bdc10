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
from gs_train.engine.naive import HostMirrorAdam
from gs_train.engine.regularise import add_to, penalties
from gs_train.engine.selective import SelectiveAdam
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.engine.view_costs import ViewCosts
from gs_train.gaussians import Gaussians
from gs_train.loss import Crop
from gs_train.renderers import Renderer, View
from gs_train.visible import visible_ids


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
                ids = visible_ids(model, view, self._renderer)
                leaves = model.leaves(ids)
                loss += drawing.draw(Microbatch(index, Crop(view, view.rect)), truth, ids, leaves)
                model.add_gradients(ids, leaves)
            seen.append(ids)
        for group in model.optimizer.param_groups:
            group["lr"] = settings.rates[group["name"]]
            group["betas"] = settings.betas
            group["eps"] = settings.eps
        is_sparse = isinstance(model.optimizer, SelectiveAdam)
        everything = settings.regularise_all and not is_sparse
        union = None if everything else torch.cat(seen).unique()
        with self.trace.host("update"), self.trace.on("compute", "update"):
            self._update(settings, union)
        self.costs.end_batch()
        self._count(seen, len(union) if is_sparse and union is not None else model.n_rows)
        return loss

    @torch.no_grad()
    def _update(self, settings: StepSettings, seen: Tensor | None) -> None:
        """Regularise and step.

        Args:
            seen: (U,) sorted rows that the losses act on and, where the optimizer is selective,
                that are updated; None for all.
        """
        model, of = self.model, penalties(settings, self.model.n_rows)
        gradients = {name: p.grad for name, p in model.params.items() if p.grad is not None}
        if seen is None:
            add_to(gradients, model.params, of)
            model.optimizer.step()
            return
        values = {name: model.params[name].index_select(0, seen) for name in of}
        compact = {name: grad.index_select(0, seen) for name, grad in gradients.items()}
        add_to(compact, values, of)
        if isinstance(model.optimizer, SelectiveAdam):
            groups = model.optimizer.param_groups
            model.optimizer.step(seen, [compact[group["name"]] for group in groups])
            return
        for name in of:
            gradients[name].index_copy_(0, seen, compact[name])
        model.optimizer.step()

    def _count(self, seen: Sequence[Tensor], n_updated: int) -> None:
        stats = self.stats
        stats.batches += 1
        stats.microbatches += len(seen)
        stats.visible += sum(map(len, seen))
        stats.updated += n_updated
        if isinstance(self.model.optimizer, HostMirrorAdam):  # gradients out, parameters in
            moved = sum(param.nbytes for param in self.model.params.values())
            stats.bytes_loaded += moved
            stats.bytes_stored += moved

    def finish(self) -> None:
        """See `Backend.finish`: nothing is in the background."""

    def make_room(self) -> None:
        """See `Backend.make_room`."""
        self.model.drop_gradients()
