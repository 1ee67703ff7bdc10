# SPDX-License-Identifier: Apache-2.0
"""One microbatch through the renderer: image, loss, gradients of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gs_raster import MAX_INSTANCES
from gs_train.engine.crop_statistics import CropStatistics
from gs_train.engine.drawn_loss import DrawnLoss, GivenPlanes, drawn_loss, inverse_depth_of
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.parts import drawn_in_parts, planned_parts
from gs_train.engine.settings import Observe, StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.renderers import Renderer, Splats, View, with_depths


class Drawing:
    """Draws the microbatches of one batch, in two halves: `project` and `paint`.

    Args:
        renderer: draws them.
        settings: of the step.
        observe: told about each view.
        batch_size: views that the loss is the mean of.
        keys: (N,) of all rows.
        costs: of the views; told about those that are drawn.

    Attributes:
        statistics: what ``observe`` is told from.
    """

    def __init__(
        self,
        renderer: Renderer,
        settings: StepSettings,
        observe: Observe,
        batch_size: int,
        keys: Tensor,
        costs: ViewCosts,
    ) -> None:
        self._renderer = renderer
        self._keys = keys
        self._costs = costs
        self._settings = settings
        self._weight = 1.0 / batch_size
        self.statistics = CropStatistics(observe)

    def draw(
        self, microbatch: Microbatch, truth: Tensor, ids: Tensor, leaves: Mapping[str, Tensor]
    ) -> Tensor:
        """Its share of the batch's loss; fills the leaves' gradients.

        Args:
            truth: (H, W, 3 to 6) uint8 of the whole view.
            ids: (R,) rows.
            leaves: the six attributes of these rows.
        """
        crop = microbatch.crop
        if not len(ids):  # transparent, and nothing can change that
            black = torch.zeros((crop.rect.height, crop.rect.width, 3), device=truth.device)
            depth = black[..., 0] if self._wants_depth(crop.view, truth) else None
            self.statistics.note(microbatch, ids, None)
            return self._loss(black, GivenPlanes(black[..., 0], depth), truth, crop).share
        loss, splats = self._in_parts(crop, ids, leaves, truth)
        self.statistics.note(microbatch, ids, splats)
        return loss

    def project(self, ids: Tensor, leaves: Mapping[str, Tensor], view: View) -> Splats:
        """Splats of rows, whose centres keep their gradient.

        Args:
            ids: (R,) rows.
            leaves: the six attributes of these rows.
        """
        keys = self._keys.index_select(0, ids) if self._renderer.blends_by_key else None
        degree = self._settings.sh_degree
        splats = self._renderer.project(leaves, view, sh_degree=degree, keys=keys)
        splats.means2d.retain_grad()
        return splats

    def paint(self, splats: Splats, part: Crop, truth: Tensor, *, is_last: bool) -> Tensor:
        """Rasterize a part of the view, and send the gradient of its loss back.

        Args:
            splats: of the view.
            truth: (H, W, 3 to 6) uint8 of the whole view.
            is_last: no other part of these splats follows.

        Returns:
            () the part's share of the batch's loss.
        """
        rect = None if part.rect == part.view.rect else part.rect
        depth = None
        if self._wants_depth(part.view, truth):
            image, alpha, depth = with_depths(self._renderer).rasterize_with_depth(splats, rect)
        else:
            image, alpha = self._renderer.rasterize(splats, rect)
        planes = GivenPlanes(alpha[..., 0], None if depth is None else depth[..., 0])
        loss = self._loss(image, planes, truth, part)
        outputs, gradients = [image], [loss.of_image]
        for plane, of_plane in ((alpha, loss.of_alpha), (depth, loss.of_depth)):
            if plane is not None and of_plane is not None:
                outputs.append(plane)
                gradients.append(of_plane[..., None])
        # On this thread: the one that autograd has for a device is woken for each pass, which
        # takes long where the host's optimizer has the cores.
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.backward(outputs, gradients, retain_graph=not is_last)
        return loss.share

    def _in_parts(
        self, crop: Crop, ids: Tensor, leaves: Mapping[str, Tensor], truth: Tensor
    ) -> tuple[Tensor, Splats]:
        """See `drawn_in_parts`."""
        view = crop.view
        parts = planned_parts(crop, self._costs.known(view), MAX_INSTANCES)

        def forget() -> None:
            for leaf in leaves.values():
                leaf.grad = None

        (loss, splats), is_tight = drawn_in_parts(
            parts, lambda parts: self._pass(ids, leaves, truth, parts), forget, n_rows=len(ids)
        )
        # Of none nothing is noted: a view that sees no row may not have been drawn at all. Nor
        # where memory decided: others may have had more.
        if crop.core == view.rect and splats.n_intersections and not is_tight:
            self._costs.note(view, splats.n_intersections)
        return loss, splats

    def _pass(
        self, ids: Tensor, leaves: Mapping[str, Tensor], truth: Tensor, parts: Sequence[Crop]
    ) -> tuple[Tensor, Splats]:
        """Project once, paint each part, and add up loss and gradients."""
        splats = self.project(ids, leaves, parts[0].view)
        losses = [self.paint(splats, part, truth, is_last=part is parts[-1]) for part in parts]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(0), splats

    def _loss(self, image: Tensor, planes: GivenPlanes, truth: Tensor, crop: Crop) -> DrawnLoss:
        """The crop's share of the batch's loss, and its gradients."""
        rect = crop.rect
        part = truth[rect.y0 : rect.y1, rect.x0 : rect.x1]
        return drawn_loss(image, planes, part, crop, self._settings, weight=self._weight)

    def _wants_depth(self, view: View, truth: Tensor) -> bool:
        return inverse_depth_of(self._settings, view, truth) is not None
