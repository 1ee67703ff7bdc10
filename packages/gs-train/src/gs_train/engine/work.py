# SPDX-License-Identifier: Apache-2.0
"""One batch as the engine gives it to whoever moves its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.engine.columns import columns
from gs_train.engine.preparing import Batch
from gs_train.engine.sums import CompactSum, add_rows
from gs_train.rows import take_rows


@dataclass(frozen=True)
class Work:
    """What is to be done for a batch.

    Attributes:
        batch: that begins.
        step: of the host's optimizer, open.
        geometry: (N, ...) parameters on the device.
        sums: of the gradients of the geometry.
        draw: takes (microbatch, ids, leaves), renders, and fills the leaves' gradients.
        look_ahead: takes (event behind the last change of the geometry, rows that are updated
            last or None) and returns the next batch, which it prepares unless that has been done.
        look_further: takes the same event and prepares the batch after that.
    """

    batch: Batch
    step: int
    geometry: Mapping[str, Tensor]
    sums: CompactSum
    draw: Callable[[int, Tensor, Mapping[str, Tensor]], None]
    look_ahead: Callable[[torch.cuda.Event | None, Tensor | None], Batch | None]
    look_further: Callable[[torch.cuda.Event | None], None]

    def leaves(self, ids: Tensor, values: Tensor, slots: Tensor) -> dict[str, Tensor]:
        """Copies of rows that collect gradients.

        Args:
            ids: (R,) rows of the geometry.
            values: (C, W) rows of appearance.
            slots: (R,) where the same rows lie in it.
        """
        leaves = {
            name: take_rows(param.detach(), ids).requires_grad_()
            for name, param in self.geometry.items()
        }
        appearance = columns(take_rows(values, slots))
        return leaves | {name: part.requires_grad_() for name, part in appearance.items()}


def add_appearance(leaves: Mapping[str, Tensor], sums: Tensor, place: Tensor | None) -> None:
    """Add the gradients of ``sh0`` and ``shN`` to rows ``place``, (R,), of sums (U, W); None: to
    all."""
    for name, part in columns(sums).items():
        add_rows(part, place, leaves[name].grad)
