# SPDX-License-Identifier: Apache-2.0
"""Rows to the ranks that own them, where rows have been given labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from gs_train.rows.strands import dealt
from gs_train.world.protocol import World


class RowMove:
    """Moves tensors that have a row for each Gaussian, one after the other.

    All ranks make it, and move the same tensors in the same order.

    Args:
        labels: (R,) uint8 strands of this rank's rows.
        world: moves rows.
        n_ranks: W.

    Attributes:
        sent: (W,) rows for each rank: all ranks gather them into a table.
    """

    def __init__(self, labels: Tensor, world: World, n_ranks: int) -> None:
        self._order, counts = dealt(labels, n_ranks)
        self._world = world
        self.sent: list[int] = counts.tolist()

    def received(self, table: Sequence[Sequence[int]]) -> list[int]:
        """(W,) rows from each rank.

        Args:
            table: (W, W) what all ranks have as `sent`, by rank.
        """
        return [int(row[self._world.rank]) for row in table]

    def of(self, values: Tensor, received: Sequence[int]) -> Tensor:
        """(R', ...) the rows that are this rank's now, those of rank 0 first.

        Args:
            values: (R, ...), in the order of the labels; both on the world's device.
            received: (W,) rows from each rank, which the method `received` tells.

        Cost: memory for the rows that are sent and those that are received.
        """
        ordered = values.index_select(0, self._order)
        return exchanged(self._world, ordered, received, self.sent)


def exchanged(world: World, rows: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
    """(R', ...) the rows that all ranks send to this one, those of rank 0 first.

    Args:
        rows: (R, ...) those that this rank sends, the ones for rank 0 first.
        received, sent: (W,) rows from and for each rank.
    """
    shape = rows.shape[1:]
    width = math.prod(shape)
    recv = rows.new_empty((sum(received), width))
    if width:  # harmonics of degree 0 have no values
        send = rows.reshape(len(rows), width).contiguous()
        world.all_to_all(recv, send, received, sent).wait()
    return recv.view(len(recv), *shape)
