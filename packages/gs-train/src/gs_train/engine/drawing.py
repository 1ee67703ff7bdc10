# SPDX-License-Identifier: Apache-2.0
"""One microbatch through the renderer: image, loss, gradients of its rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.engine.backend import Observe, StepSettings
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop, loss_and_gradient
from gs_train.machine.out_of_memory import in_short
from gs_train.renderers import Renderer, Splats, TooManyIntersectionsError

_MOST_PARTS = 16
"""Of a view for which the device's memory does not suffice; its rows are all there in any case."""


@dataclass
class _Half:
    """What densification reads of a view whose crops are still being drawn."""

    left: int
    ids: list[Tensor]
    splats: list[Splats]


class Drawing:
    """Draws the microbatches of one batch and tells densification about whole views.

    Statistics are per view: the crops of one add gradient vectors before the norm is taken.

    Args:
        renderer: draws them.
        settings: of the step.
        observe: told about each view.
        batch_size: views that the loss is the mean of.
        keys: (N,) of all rows.
        costs: told about views that are drawn whole.
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
        self._observe = observe
        self._batch_size = batch_size
        self._halves: dict[int, _Half] = {}

    def draw(
        self, microbatch: Microbatch, truth: Tensor, ids: Tensor, leaves: Mapping[str, Tensor]
    ) -> Tensor:
        """Its share of the batch's loss; fills the leaves' gradients.

        Args:
            truth: (H, W, 3) uint8 of the whole view.
            ids: (R,) rows.
            leaves: the six attributes of these rows.
        """
        crop = microbatch.crop
        if not len(ids):  # black, and nothing can change that
            black = torch.zeros((crop.rect.height, crop.rect.width, 3), device=truth.device)
            self._note(microbatch, ids, None)
            return self._loss(black, truth, crop)[0]
        keys = self._keys.index_select(0, ids) if self._renderer.blends_by_key else None
        loss, splats = self._in_memory(leaves, keys, truth, crop)
        self._note(microbatch, ids, splats)
        return loss

    def _in_memory(
        self, leaves: Mapping[str, Tensor], keys: Tensor | None, truth: Tensor, crop: Crop
    ) -> tuple[Tensor, Splats]:
        """In one part, or in as many as the device's memory suffices for."""
        crops = [crop]
        while isinstance(drawn := self._tried(leaves, keys, truth, crops), str):
            _forget_gradients(leaves)
            if truth.is_cuda:
                torch.cuda.empty_cache()
            crops = _halved(crops)
            if len(crops) > _MOST_PARTS or not _have_pixels(crops):
                raise torch.cuda.OutOfMemoryError(
                    f"view {crop.view.name} needs more device memory than there is, even in "
                    f"{len(crops) // 2} parts: it shows {len(leaves['means']):,} Gaussians; use a "
                    f"smaller --max-side or --cap{drawn}"
                )
        return drawn

    def _tried(
        self,
        leaves: Mapping[str, Tensor],
        keys: Tensor | None,
        truth: Tensor,
        crops: Sequence[Crop],
    ) -> tuple[Tensor, Splats] | str:
        """What was missing, where the device's memory did not suffice. The error is gone when this
        returns: it holds all that the pass had made."""
        try:
            return self._in_parts(leaves, keys, truth, crops)
        except torch.cuda.OutOfMemoryError as error:
            return in_short(error)

    def _in_parts(
        self,
        leaves: Mapping[str, Tensor],
        keys: Tensor | None,
        truth: Tensor,
        crops: Sequence[Crop],
    ) -> tuple[Tensor, Splats]:
        """In as many parts as the renderer's counting of intersections needs."""
        try:
            return self._pass(leaves, keys, truth, crops)
        except TooManyIntersectionsError:
            halves = _halved(crops)
            if not _have_pixels(halves):
                raise
        _forget_gradients(leaves)
        return self._in_parts(leaves, keys, truth, halves)

    def _pass(
        self,
        leaves: Mapping[str, Tensor],
        keys: Tensor | None,
        truth: Tensor,
        crops: Sequence[Crop],
    ) -> tuple[Tensor, Splats]:
        """Project once, draw each crop, and add up loss and gradients."""
        view = crops[0].view
        degree = self._settings.sh_degree
        splats = self._renderer.project(leaves, view, sh_degree=degree, keys=keys)
        splats.means2d.retain_grad()
        parts: list[Tensor] = []
        for k, crop in enumerate(crops):
            rect = None if crop.rect == view.rect else crop.rect
            image, _ = self._renderer.rasterize(splats, rect)
            loss, gradient = self._loss(image, truth, crop)
            # On this thread: the one that autograd has for a device is woken for each pass, which
            # takes long where the host's optimizer has the cores.
            with torch.autograd.set_multithreading_enabled(False):
                image.backward(gradient, retain_graph=k + 1 < len(crops))
            parts.append(loss)
            # Of none nothing is noted: a view that sees no row may not have been drawn at all.
            if len(crops) == 1 and crop.core == view.rect and splats.n_intersections:
                self._costs.note(view, splats.n_intersections)
            del image, gradient  # with all that this part has made, before the next one is drawn
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(), splats

    def _loss(self, image: Tensor, truth: Tensor, crop: Crop) -> tuple[Tensor, Tensor]:
        """The crop's share of the batch's loss, and its gradient by the image."""
        rect = crop.rect
        part = truth[rect.y0 : rect.y1, rect.x0 : rect.x1]
        weight = 1.0 / self._batch_size
        return loss_and_gradient(image, part, crop, self._settings.ssim_lambda, weight=weight)

    def _note(self, microbatch: Microbatch, ids: Tensor, splats: Splats | None) -> None:
        if microbatch.is_whole:
            if splats is not None:
                self._observe(ids, splats)
            return
        half = self._halves.setdefault(microbatch.index, _Half(microbatch.n_crops, [], []))
        half.left -= 1
        if splats is not None:
            half.ids.append(ids)
            half.splats.append(_statistics_of(splats))
        if not half.left:
            del self._halves[microbatch.index]
            if half.ids:
                self._observe(*_joined(half))


def _forget_gradients(leaves: Mapping[str, Tensor]) -> None:
    """Whatever a pass that failed has left there."""
    for leaf in leaves.values():
        leaf.grad = None


def _halved(crops: Sequence[Crop]) -> list[Crop]:
    """Each crop cut across its longer side."""
    return [Crop(crop.view, half) for crop in crops for half in crop.core.halves()]


def _have_pixels(crops: Sequence[Crop]) -> bool:
    return all(crop.core.width and crop.core.height for crop in crops)


def _statistics_of(splats: Splats) -> Splats:
    """Positions with their gradient, extents and absgrad; nothing of the graph, which holds the
    crop's rows."""
    nothing = splats.means2d.new_empty(0)
    kept = Splats(
        means2d=splats.means2d.detach(),
        conics=nothing,
        depths=nothing,
        radii=splats.radii,
        opacities=nothing,
        colors=nothing,
        view=splats.view,
    )
    kept.means2d.grad = splats.means2d.grad
    if splats.shifted:
        kept.shifted = [torch.empty_like(nothing)]
        kept.shifted[0].absgrad = splats.absgrad  # type: ignore[attr-defined]
    return kept


def _joined(half: _Half) -> tuple[Tensor, Splats]:
    """The rows of several crops as one view's: gradients add, extents are the view's anyway."""
    ids, place = torch.cat(half.ids).unique(return_inverse=True)
    splats = copy.copy(half.splats[0])

    def added(parts: list[Tensor | None]) -> Tensor:
        total = torch.zeros((len(ids), 2), device=ids.device)
        start = 0
        for part, of in zip(parts, half.ids):
            if part is not None:
                total.index_add_(0, place[start : start + len(of)], part)
            start += len(of)
        return total

    splats.means2d = torch.zeros((len(ids), 2), device=ids.device)
    splats.means2d.grad = added([part.means2d.grad for part in half.splats])
    splats.radii = torch.zeros((len(ids), 2), dtype=torch.int32, device=ids.device)
    splats.radii[place] = torch.cat([part.radii for part in half.splats])
    if half.splats[0].shifted:
        shifted = torch.zeros((len(ids), 2), device=ids.device)
        shifted.absgrad = added([part.absgrad for part in half.splats])  # type: ignore[attr-defined]
        splats.shifted = [shifted]
    return ids, splats
