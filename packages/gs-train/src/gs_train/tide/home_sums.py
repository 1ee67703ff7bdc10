# SPDX-License-Identifier: Apache-2.0
"""Gradients of a batch's rows in host memory, where the device has no room for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.partition import Ids
from gs_train.engine.geometry import Penalties, add_to
from gs_train.renderers import Rows

Parts = Mapping[str, Tensor]


class _Pass(NamedTuple):
    """What one microbatch left: on the host, in the order of its rows.

    Attributes:
        rows: (R,) sorted numbers.
        gradients: (R, ...) by attribute; attributes without one are left out.
        values: (R, ...) of attributes with penalties.
    """

    rows: Ids
    gradients: Parts
    values: Parts


class HomeSums:
    """Keeps the gradients of each microbatch, and adds them up for some rows at a time.

    The sums have the bits that they would have on the device: those of a row are added in the order
    of the microbatches, then its penalties.

    Args:
        penalties: of the step, see `gs_train.engine.geometry.penalties`.
        block_rows: rows of a block.
        device: that sums are wanted on.

    Memory: 236 bytes on the host, with 16 harmonics, for each row of each microbatch.
    """

    def __init__(self, penalties: Penalties, block_rows: int, device: torch.device) -> None:
        self._penalties = penalties
        self._block_rows = block_rows
        self._device = device
        self._passes: list[_Pass] = []

    def add(self, rows: Tensor, leaves: Parts) -> None:
        """A microbatch has been drawn. Waits for the device.

        Args:
            rows: (R,) int64 sorted numbers.
            leaves: all attributes of these rows, with their gradients.
        """
        gradients = {
            name: leaf.grad.cpu() for name, leaf in leaves.items() if leaf.grad is not None
        }
        values = {name: leaves[name].detach().cpu() for name in self._penalties}
        self._passes.append(_Pass(rows.cpu().numpy(), gradients, values))

    def parts(
        self, shapes: Rows, *, most_rows: int, most_blocks: int
    ) -> Iterator[tuple[Tensor, Rows]]:
        """All rows in order, and the sums of their gradients by attribute, whole blocks at a time.

        Args:
            shapes: (0, ...) tensors of all attributes.
            most_rows: of a part of several blocks.
            most_blocks: of a part.
        """
        rows = np.unique(np.concatenate([one.rows for one in self._passes]))
        for part in _cut(rows, self._block_rows, most_rows, most_blocks):
            yield torch.from_numpy(part).to(self._device), self._summed(part, shapes)

    def _summed(self, rows: Ids, shapes: Rows) -> Rows:
        sums, values = (
            {
                name: torch.zeros((len(rows), *like.shape[1:]), device=self._device)
                for name, like in shapes.items()
                if name in names
            }
            for names in (shapes, self._penalties)
        )
        for one in self._passes:
            first, last = np.searchsorted(one.rows, [rows[0], rows[-1] + 1])
            own = slice(int(first), int(last))
            at = torch.from_numpy(np.searchsorted(rows, one.rows[own])).to(self._device)
            for name, gradient in one.gradients.items():  # rows are distinct: no additions meet
                sums[name].index_add_(0, at, gradient[own].to(self._device))
            for name, part in one.values.items():
                values[name].index_copy_(0, at, part[own].to(self._device))
        add_to(sums, values, self._penalties)
        return sums


def _cut(rows: Ids, block_rows: int, most_rows: int, most_blocks: int) -> Iterator[Ids]:
    """Whole blocks of sorted rows, as many as are allowed together, and one at least."""
    if not len(rows):
        return
    starts = np.flatnonzero(np.diff(rows // block_rows, prepend=-1))
    ends = np.append(starts[1:], len(rows))
    first = 0
    while first < len(starts):
        fitting = int(np.searchsorted(ends, starts[first] + most_rows, side="right"))
        last = min(max(fitting, first + 1), first + most_blocks)
        yield rows[starts[first] : ends[last - 1]]
        first = last
