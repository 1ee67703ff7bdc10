# SPDX-License-Identifier: Apache-2.0
"""Rows in the order of the Morton curve, each on the rank that owns it."""

from __future__ import annotations

from gs_train.densify import Densifier
from gs_train.ranks.dealing import Dealing
from gs_train.rows.morton import morton_order
from gs_train.rows.operations import Model


def sort_rows(model: Model, densifier: Densifier, dealing: Dealing | None = None) -> None:
    """Put the rows in the order of the Morton curve: a view then sees runs of rows.

    Args:
        model: the rows of this rank.
        densifier: whose statistics follow the rows. Where ranks share these, each of its tensors
            that has dimensions has a row for each Gaussian.
        dealing: of the ranks among which rows are shared: first rows may change ranks. None where
            one rank has all rows.

    Synchronises.
    """
    if dealing is not None:
        kept = densifier.tensors()
        moved = dealing.again(model, {name: value for name, value in kept.items() if value.ndim})
        if moved is not None:
            densifier.load({**kept, **moved})
    order = morton_order(model.read("means"))
    model.permute(order)
    densifier.permute(order)


class RowOrder:
    """When the rows are put in order again: once many came, went or moved.

    Args:
        most: changes, in multiples of the number of rows; 0: never.

    Attributes:
        changes: of rows, since they were in order.
        sorted_at: steps that were done when the rows were last sorted; 0 if never.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self.changes = self.sorted_at = 0

    def is_due(self, n_rows: int) -> bool:
        """Whether ``n_rows`` rows of all ranks are to be sorted now."""
        return bool(self._most) and self.changes >= max(1, self._most * n_rows)

    def begin_again(self, step: int) -> None:
        """The rows are in order after ``step`` steps."""
        self.changes, self.sorted_at = 0, step
