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
