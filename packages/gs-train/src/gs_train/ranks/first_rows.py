# SPDX-License-Identifier: Apache-2.0
"""The first rows of a run, dealt to ranks."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import NAMES
from gs_train.rows.keys import RowKeys
from gs_train.rows.strands import Lattice, owners


class Ownership(NamedTuple):
    """Which rows are a rank's, where it has some.

    Attributes:
        labels: (R,) uint8, the strands of its rows.
        lattice: that the labels of all ranks come from.
    """

    labels: Tensor
    lattice: Lattice


class FirstRows(NamedTuple):
    """Those that a rank owns, in the order of all.

    Attributes:
        rows: the six attributes.
        keys: with labels.
        lattice: that the labels come from.
    """

    rows: dict[str, Tensor]
    keys: RowKeys
    lattice: Lattice


def first_rows(rows: Rows, *, rank: int, n_ranks: int, keys: RowKeys | None = None) -> FirstRows:
    """A rank's share of a cloud. The rank comes to it by itself.

    Args:
        rows: of all ranks, the same on each.
        keys: of these; None: a row's key is its index.
        rank, n_ranks: of the world.
    """
    means = rows["means"]
    lattice = Lattice.of_cloud(means)
    labels = lattice.labels(means)
    own = (owners(labels, n_ranks) == rank).nonzero().squeeze(1)
    taken = {name: rows[name].index_select(0, own) for name in NAMES}
    values, following = (own.int(), len(means))
    if keys is not None:
        values, following = keys.values.index_select(0, own), keys.next
    own_keys = RowKeys(values, following, labels.index_select(0, own))
    return FirstRows(taken, own_keys, lattice)
