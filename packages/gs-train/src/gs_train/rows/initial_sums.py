# SPDX-License-Identifier: Apache-2.0
"""Where the gradient sums of a microbatch's rows begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

NOTHING, FIRST_NOTED = -1, -2
"""Values of `InitialSums.at`."""


@dataclass(frozen=True, eq=False)
class InitialSums:
    """Sums of rows of ``sh0`` and ``shN`` before a microbatch adds its gradients.

    ===================== ==============================================================
    ``at`` of a row       the sum of the row begins with
    ===================== ==============================================================
    0 or more             row ``at`` of ``carried``: the microbatch before has kept it
    `NOTHING`             zero: no microbatch of the batch has drawn the row
    `FIRST_NOTED` or less row ``FIRST_NOTED - at`` of ``noted``: the row left and is back
    ===================== ==============================================================

    Attributes:
        at: (R,) int32.
        carried, noted: both attributes, rows of tables as wide as the sums. ``carried`` may be the
            table of the sums, where each row begins in its place.
    """

    at: Tensor
    carried: Mapping[str, Tensor]
    noted: Mapping[str, Tensor]

    def rows(self, name: str) -> Tensor:
        """(R, ...) of an attribute."""
        carried, noted = self.carried[name], self.noted[name]
        rows = carried.new_zeros((len(self.at), *carried.shape[1:]))
        for source, place in ((carried, self.at), (noted, FIRST_NOTED - self.at)):
            here = (place >= 0).nonzero()[:, 0]
            rows.index_copy_(0, here, source.index_select(0, place.index_select(0, here)))
        return rows
