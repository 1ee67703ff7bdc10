# SPDX-License-Identifier: Apache-2.0
"""Batches that list all rows: in small scenes, looking for those that a batch may see takes longer
than passing over the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gs_train.engine.microbatches import Microbatch, Seen
from gs_train.engine.settings import StepSettings
from gs_train.losses.loss import Crop
from gs_train.renderers import View
from gs_train.renderers.culling import cameras_of
from gs_train.rows.operations import Model

MOST_ROWS = 1 << 19
"""Rows times views of a batch on CUDA that lists all rows. Passing over as many takes an H100 about
as long as its host takes to look for those that the batch may see."""


_MOST_KEPT = 1 << 16
"""Microbatches that are kept, each view at each place of a batch, and lists for single views."""


class AllRows:
    """Makes lists of all rows.

    Args:
        model: the rows.
        most: rows times views that such a batch has at most.
    """

    def __init__(self, model: Model, most: int) -> None:
        self._model = model
        self._most = most
        self._of = 0, 0  # rows and views of the last list
        self._ids: Tensor
        self._mask: Tensor
        self._microbatches: dict[tuple[int, str], Microbatch] = {}  # by place and view
        self._singles: dict[str, Seen] = {}  # lists of the present rows for one view, by its name

    def suffices(self, n_views: int, settings: StepSettings) -> bool:
        """Whether a batch lists all rows.

        Args:
            settings: of its step. Losses of the rows that a batch sees tell these rows from others.
        """
        n_rows = self._model.n_rows
        return 0 < n_rows * n_views <= self._most and not settings.regularises_seen

    def list(self, views: Sequence[View]) -> Seen:
        """All rows, for each view."""
        self._make(len(views))
        if len(views) > 1:
            return self._seen(views)
        (view,) = views
        known = self._singles.get(view.name)
        if known is None or known.microbatches[0].crop.view is not view:
            if len(self._singles) >= _MOST_KEPT:
                self._singles.clear()
            known = self._singles[view.name] = self._seen(views)
        return known

    def _seen(self, views: Sequence[View]) -> Seen:
        """See `list`, made anew."""
        microbatches = tuple([self._microbatch(k, view) for k, view in enumerate(views)])
        counts = (self._of[0],) * len(views)
        return Seen(microbatches, self._ids, self._mask, counts, cameras_of(views))

    def list_of(self, microbatches: Sequence[Microbatch]) -> Seen:
        """All rows, for each of these views and crops."""
        n = len(microbatches)
        self._make(n)
        cameras = cameras_of([microbatch.crop.view for microbatch in microbatches])
        return Seen(tuple(microbatches), self._ids, self._mask, (self._of[0],) * n, cameras)

    def _make(self, n_views: int) -> None:
        """Ids and masks of the rows that there are."""
        n_rows = self._model.n_rows
        if self._of == (n_rows, n_views):
            return
        self._singles.clear()
        device = self._model.device
        self._ids = torch.arange(n_rows, dtype=torch.int32, device=device)
        self._mask = _bits(n_views).to(device).expand(n_rows, -1).contiguous()
        self._of = n_rows, n_views

    def _microbatch(self, k: int, view: View) -> Microbatch:
        """A whole view, the k-th of its batch."""
        known = self._microbatches.get((k, view.name))
        if known is None or known.crop.view is not view:
            if len(self._microbatches) >= _MOST_KEPT:
                self._microbatches.clear()
            known = self._microbatches[k, view.name] = Microbatch(k, Crop(view, view.rect))
        return known


def _bits(n_views: int) -> Tensor:
    """(1, ceil(n_views / 32)) int32, the bit of each view set."""
    words = np.full(-(-n_views // 32), 0xFFFFFFFF, np.uint32)
    if n_views % 32:
        words[-1] >>= 32 - n_views % 32
    return torch.from_numpy(words.view(np.int32))[None]
