# SPDX-License-Identifier: Apache-2.0
"""The microbatches of a batch that several ranks share, as all of them find them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gs_train.engine.microbatches import Microbatch
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.ranks.cuts import cut_left_over
from gs_train.ranks.view_columns import ViewColumns
from gs_train.renderers import View


class SharedViews:
    """Puts views in canonical order, and cuts those that are left over.

    Args:
        costs, columns: of the views.
        n_ranks: W.
        cuts: whether views that are left over are cut into crops; else ranks are idle.
    """

    def __init__(self, costs: ViewCosts, columns: ViewColumns, n_ranks: int, *, cuts: bool) -> None:
        self._costs = costs
        self._columns = columns
        self._n_ranks = n_ranks
        self._cuts = cuts

    def has_left_over(self, n_views: int) -> bool:
        """Whether some views of such a batch are left over and cut."""
        return self._cuts and bool(n_views % self._n_ranks)

    def of(self, views: Sequence[View], *, ahead: int = 0) -> tuple[Microbatch, ...]:
        """In canonical order.

        Args:
            ahead: see `ViewCosts.order`.
        """
        order = self._costs.order(views, ahead=ahead).tolist()
        crops = [Crop(views[i], views[i].rect) for i in order]
        parts = [[crop] for crop in crops]
        if self.has_left_over(len(views)):
            work = [self._costs.work(views[i], ahead=ahead) for i in order]
            columns = [self._columns.known(views[i].name, ahead=ahead) for i in order]
            parts = cut_left_over(crops, work, columns, self._n_ranks)
        return tuple(Microbatch(i, crop, len(cut)) for i, cut in zip(order, parts) for crop in cut)


def digest_of(step: int, microbatches: Sequence[Microbatch]) -> int:
    """A number of 63 bits that differs where ranks draw something else, or in another step."""
    cores = [microbatch.crop.core for microbatch in microbatches]
    parts = [
        f"{m.index} {core.x0} {core.y0} {core.x1} {core.y1} {m.crop.view.name}"
        for m, core in zip(microbatches, cores)
    ]
    text = "\n".join([str(step), *parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
