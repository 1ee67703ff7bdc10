# SPDX-License-Identifier: Apache-2.0
"""Rows dealt to ranks again, where one of these has come to own more than its share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gs_train.ranks.row_move import RowMove
from gs_train.rows.attributes import NAMES
from gs_train.rows.operations import Model
from gs_train.rows.replacement import Replacement
from gs_train.rows.strands import Lattice, must_deal_again, owners, rows_of_strands
from gs_train.world.protocol import World

PIECE_BYTES = 64_000_000
"""Of rows that a rank sends at once, and of those that it gets at once from all others together."""


class Dealing:
    """Which rows are whose, from one re-sort to the next. Each rank has one, and calls its methods
    when the others do.

    Args:
        world: the ranks.
        lattice: that the rows have their labels from.

    Attributes:
        lattice: the same; a finer one once the scene has grown and rows were dealt again.
    """

    def __init__(self, world: World, lattice: Lattice) -> None:
        self._world = world
        self.lattice = lattice

    @torch.no_grad()
    def again(self, model: Model, statistics: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Give all rows new labels, and move rows to their owners, where that evens ranks out.

        Args:
            model: this rank's rows, which have labels.
            statistics: (N, ...) more that belongs to the rows, on the model's device; left alone.

        Returns:
            The statistics of this rank's rows; None where rows stay.

        Cost: labels of all rows, and two gathers, of 1 and of 512 numbers; for rows that move,
        `move_home`.
        """
        assert model.keys.labels is not None
        n_own, means = model.n_rows, model.read("means")
        present = rows_of_strands(model.keys.labels).tolist()
        n_rows = int(self._world.gather([n_own]).sum())
        lattice = self.lattice.for_rows(n_rows)
        labels = lattice.labels(means)
        fresh = rows_of_strands(labels).tolist()
        before, after = torch.from_numpy(self._world.gather([present, fresh]).sum(axis=0))
        if not must_deal_again(before, after, self._world.size):
            return None
        model.keys.labels, self.lattice = labels, lattice
        return move_home(model, statistics, self._world)


@torch.no_grad()
def move_home(model: Model, statistics: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Move rows to the ranks that own their strands, with all that belongs to them: values,
    moments, last steps, keys, labels and statistics. Rows that sleep go on sleeping.

    Args:
        model: this rank's rows, with the labels that decide.
        statistics: see `Dealing.again`.
        world: the ranks.

    Returns:
        The statistics of the rows that this rank has now.

    Cost: the rows that move, both ways, `PIECE_BYTES` at a time, through the device's memory.
    """
    moved, keys = {name: values.clone() for name, values in statistics.items()}, model.keys
    assert keys.labels is not None
    states = model.states(torch.empty(0, dtype=torch.int64, device=model.device)).values()
    row_bytes = _row_bytes([*states, keys.values, keys.labels, *moved.values()])
    # Each of the others may send as much, and all may send it to one rank.
    most_rows = max(1, PIECE_BYTES // row_bytes // (world.size - 1))
    while True:
        leaving = _leaving(owners(keys.labels, world.size), world, most_rows)
        move = RowMove(keys.labels.index_select(0, leaving), world, world.size)
        table = world.gather(move.sent)
        if not table.any():
            return moved
        received = move.received(table.tolist())
        # Every rank names the same tensors in the same order.
        arrived = {name: move.of(v, received) for name, v in model.states(leaving).items()}
        new_keys, labels = (
            move.of(values.index_select(0, leaving), received)
            for values in (keys.values, keys.labels)
        )
        change = Replacement.of(model.n_rows, leaving, len(new_keys))
        for name, values in moved.items():
            new = move.of(values.index_select(0, leaving), received)
            moved[name] = change.edited(values, new)
        model.replace(leaving, {name: arrived[name] for name in NAMES}, new_keys, labels)
        model.write_states(change.placed, arrived)


def _leaving(owner: Tensor, world: World, most_rows: int) -> Tensor:
    """(R,) int64, rising: rows of other ranks, at most so many of each.

    Args:
        owner: (N,) the rank of each row.
    """
    others = [rank for rank in range(world.size) if rank != world.rank]
    of_each = [(owner == rank).nonzero().squeeze(1)[:most_rows] for rank in others]
    return torch.cat(of_each).sort().values


def _row_bytes(tensors: Iterable[Tensor]) -> int:
    """Of one row of all of these, which have a row for each Gaussian."""
    return sum(math.prod(values.shape[1:]) * values.element_size() for values in tensors)
