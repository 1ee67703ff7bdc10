# SPDX-License-Identifier: Apache-2.0
"""Batches whose parameters and gradients are all on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gs_train.engine.backend import Observe, StepSettings
from gs_train.engine.drawing import Drawing
from gs_train.engine.microbatches import Microbatch
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

    def step(
        self,
        batch: Sequence[tuple[View, Tensor]],
        settings: StepSettings,
        observe: Observe,
        *,
        upcoming: Sequence[View] = (),
    ) -> Tensor:
        """See `Backend.step`."""
        model = self.model
        model.zero_gradients()
        drawing = Drawing(self._renderer, settings, observe, len(batch))
        loss = torch.zeros((), device=model.device)
        for index, (view, truth) in enumerate(batch):
            ids = visible_ids(model, view, self._renderer)
            leaves = model.leaves(ids)
            loss += drawing.draw(Microbatch(index, Crop(view, view.rect)), truth, ids, leaves)
            model.add_gradients(ids, leaves)
        self._regularise(settings)
        for group in model.optimizer.param_groups:
            group["lr"] = settings.rates[group["name"]]
            group["betas"] = settings.betas
            group["eps"] = settings.eps
        model.optimizer.step()
        return loss

    def finish(self) -> None:
        """See `Backend.finish`: nothing is in the background."""

    def ahead(self) -> dict[str, Tensor]:
        """See `Backend.ahead`."""
        return {}

    def expect(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Backend.expect`: a run that kept all on the device needs nothing of it."""

    @torch.no_grad()
    def _regularise(self, settings: StepSettings) -> None:
        """Add the gradients of the mean opacity and the mean scale of all rows."""
        n = self.model.n_rows
        if settings.opacity_reg:
            param = self.model.params["opacities"]
            opacity = torch.sigmoid(param)
            assert param.grad is not None
            param.grad.add_(opacity * (1 - opacity), alpha=settings.opacity_reg / n)
        if settings.scale_reg:
            param = self.model.params["scales"]
            assert param.grad is not None
            param.grad.add_(torch.exp(param), alpha=settings.scale_reg / (3 * n))
