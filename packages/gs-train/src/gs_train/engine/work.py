# SPDX-License-Identifier: Apache-2.0
"""One batch as the engine gives it to whoever moves its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.engine.lookahead import EarlyList
from gs_train.engine.planner import Batch
from gs_train.engine.sums import CompactSum
from gs_train.rows.attributes import columns
from gs_train.rows.copies import add_rows, take_rows
from gs_train.rows.initial_sums import InitialSums


@dataclass(frozen=True)
class Work:
    """What is to be done for a batch.

    Attributes:
        batch: that begins.
        step: of the host's optimizer, open.
        geometry: (N, ...) parameters on the device.
        sums: of the gradients of the geometry.
        draw: takes (microbatch, ids, leaves), renders, and fills the leaves' gradients.
        look_ahead: takes an event behind the last change of the geometry, and returns the early
            list of the next batch; None where there is none.
        look_further: takes the same event, and finds that of the batch after the next one.
    """

    batch: Batch
    step: int
    geometry: Mapping[str, Tensor]
    sums: CompactSum
    draw: Callable[[int, Tensor, Mapping[str, Tensor]], None]
    look_ahead: Callable[[torch.cuda.Event | None], EarlyList | None]
    look_further: Callable[[torch.cuda.Event | None], None]

    def leaves(self, ids: Tensor, values: Tensor, slots: Tensor) -> dict[str, Tensor]:
        """Copies of rows that collect gradients.

        Args:
            ids: (R,) rows of the geometry.
            values: (C, W) rows of appearance.
            slots: (R,) where the same rows lie in it.
        """
        geometry = {name: param.detach() for name, param in self.geometry.items()}
        taken = take_rows(geometry | columns(values), ids, slots)
        return {name: leaf.requires_grad_() for name, leaf in taken.items()}

    def add(
        self,
        leaves: Mapping[str, Tensor],
        place: Tensor | None,
        appearance: Tensor,
        slots: Tensor | None,
        begun: InitialSums | None = None,
    ) -> None:
        """Add the leaves' gradients to the sums.

        Args:
            place: (R,) places in the batch's rows; None: all of them.
            appearance: (C, W) sums of rows of appearance.
            slots: (R,) where the same rows lie in it; None: R is C.
            begun: see `gs_train.rows.copies.add_rows`.
        """
        parts = {name: leaf.grad for name, leaf in leaves.items()}
        add_rows(self.sums.of | columns(appearance), parts, place, slots, begun)
