# SPDX-License-Identifier: Apache-2.0
"""What densification is told about a view whose crops are drawn one by one."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.engine.microbatches import Microbatch
from gs_train.engine.settings import Observe
from gs_train.renderers import Splats


class CropStatistics:
    """Statistics are per view: the crops of one add gradient vectors before the norm is taken.

    Args:
        observe: told about each view.
    """

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._begun: dict[int, _Crops] = {}

    def note(self, microbatch: Microbatch, ids: Tensor, splats: Splats | None) -> None:
        """A microbatch has been drawn; None where it has no rows."""
        if microbatch.is_whole:
            if splats is not None:
                self._observe(ids, splats)
            return
        crops = self._begun.setdefault(microbatch.index, _Crops(microbatch.n_crops, [], []))
        crops.left -= 1
        if splats is not None:
            crops.ids.append(ids)
            crops.splats.append(_statistics_of(splats))
        if not crops.left:
            del self._begun[microbatch.index]
            if crops.ids:
                self._observe(*_joined(crops))


@dataclass
class _Crops:
    """Crops of a view that have been drawn, and how many are left."""

    left: int
    ids: list[Tensor]
    splats: list[Splats]


def _statistics_of(splats: Splats) -> Splats:
    """Positions with their gradient, extents and absgrad, copied: a graph holds the crop's rows,
    and views of a renderer's memory hold all of that."""
    nothing = splats.means2d.new_empty(0)
    kept = Splats(
        means2d=splats.means2d.detach().clone(),
        conics=nothing,
        depths=nothing,
        radii=splats.radii.clone(),
        opacities=nothing,
        colors=nothing,
        view=splats.view,
    )
    if splats.means2d.grad is not None:
        kept.means2d.grad = splats.means2d.grad.clone()
    if splats.shifted:
        kept.shifted = [torch.empty_like(nothing)]
        kept.shifted[0].absgrad = splats.absgrad.clone()  # type: ignore[attr-defined]
    return kept


def _joined(crops: _Crops) -> tuple[Tensor, Splats]:
    """The rows of several crops as one view's: gradients add, extents are the view's anyway."""
    ids, place = torch.cat(crops.ids).unique(return_inverse=True)
    splats = copy.copy(crops.splats[0])

    def added(parts: list[Tensor | None]) -> Tensor:
        total = torch.zeros((len(ids), 2), device=ids.device)
        start = 0
        for part, own in zip(parts, crops.ids):
            if part is not None:  # a crop's rows are distinct: no two additions meet
                total.index_add_(0, place[start : start + len(own)], part)
            start += len(own)
        return total

    splats.means2d = torch.zeros((len(ids), 2), device=ids.device)
    splats.means2d.grad = added([part.means2d.grad for part in crops.splats])
    splats.radii = torch.zeros((len(ids), 2), dtype=torch.int32, device=ids.device)
    # A row of several crops has one extent: whichever is written last, it is the same.
    splats.radii[place] = torch.cat([part.radii for part in crops.splats])
    if crops.splats[0].shifted:
        shifted = torch.zeros((len(ids), 2), device=ids.device)
        shifted.absgrad = added([part.absgrad for part in crops.splats])  # type: ignore[attr-defined]
        splats.shifted = [shifted]
    return ids, splats
