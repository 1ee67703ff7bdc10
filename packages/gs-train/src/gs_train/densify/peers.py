# SPDX-License-Identifier: Apache-2.0
"""What density control asks of the ranks among which the rows are shared.

A densifier on each rank looks at the rank's own rows and edits these. Where a rule concerns the
rows of all ranks (a cap, the keys of children, a draw) the densifier asks its peers. The answers
depend on keys and values alone, so that any number of ranks leaves the same rows. A rank that has
all rows asks too: `NO_PEERS` hands back what it is given.

All ranks ask the same questions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.keys import RowKeys


class Roll(Protocol):
    """Rows of all ranks in one list: by kind, and rows of a kind by key.

    ::

        rank 0   clones 4 9   splits 2        keys, as the rank gives them
        rank 1   clones 7     splits 1 8
        roll     4 7 9 1 2 8                  of_all: values of these
        rank 1   7 1 8                        own: those of this rank, in the order of its own list
    """

    def __len__(self) -> int:
        """Rows of all ranks."""
        ...

    def of_all(self, values: Tensor) -> Tensor:
        """(n,) values in the order of the roll, on all ranks. ``values``: (R,) of this rank's own
        list."""
        ...

    def own(self, values: Tensor) -> Tensor:
        """(R,) those of (n,) values in the order of the roll that are of this rank's own list."""
        ...

    def pick(self, places: Tensor) -> Pick:
        """Some rows of the roll. ``places``: (P,) int64, the same on all ranks, repeats allowed."""
        ...


class Pick(Protocol):
    """Rows that were picked from a roll.

    Attributes:
        own: (Q,) int64 of the picks of this rank's rows, in their order: places in its own list.
    """

    @property
    def own(self) -> Tensor: ...

    def of_own(self, values: Tensor) -> Tensor:
        """(Q,) those of (P,) values, one for each pick, that are for picks of this rank's rows."""
        ...

    def bring(
        self, read: Callable[[Tensor], Rows], ids: Tensor, *, targets: Roll, order: Tensor
    ) -> Rows:
        """Values of the picked rows, on the ranks of the rows that they are for.

        Args:
            read: values of some of the rank's rows.
            ids: (Q,) the rows of `own`.
            targets: a roll of P rows: pick i is for its row i.
            order: (T,) places in this rank's own list of targets, each once.

        Returns:
            What is for this rank's targets, in this order.
        """
        ...


class Peers(Protocol):
    """The ranks among which rows are shared."""

    def sums(self, *counts: int) -> tuple[int, ...]:
        """Each count, summed over the ranks."""
        ...

    def roll(self, keys: RowKeys, *kinds: Tensor) -> Roll:
        """The list of rows of all ranks.

        Args:
            keys: of this rank's rows.
            kinds: ids of rows of this rank, of each kind in the order of their keys; together they
                are the rank's own list.
        """
        ...


class _WholeRoll:
    """The list of a rank that has all rows: it is in the order of the roll."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    def of_all(self, values: Tensor) -> Tensor:
        """See `Roll.of_all`."""
        return values

    def own(self, values: Tensor) -> Tensor:
        """See `Roll.own`."""
        return values

    def pick(self, places: Tensor) -> _WholePick:
        """See `Roll.pick`."""
        return _WholePick(places)


class _WholePick:
    """See `Pick`."""

    def __init__(self, own: Tensor) -> None:
        self.own = own

    def of_own(self, values: Tensor) -> Tensor:
        """See `Pick.of_own`."""
        return values

    def bring(
        self, read: Callable[[Tensor], Rows], ids: Tensor, *, targets: Roll, order: Tensor
    ) -> Rows:
        """See `Pick.bring`."""
        return read(ids[order])


class _NoPeers:
    """See `Peers`."""

    def sums(self, *counts: int) -> tuple[int, ...]:
        """See `Peers.sums`."""
        return counts

    def roll(self, keys: RowKeys, *kinds: Tensor) -> Roll:
        """See `Peers.roll`."""
        return _WholeRoll(sum(map(len, kinds)))


NO_PEERS: Peers = _NoPeers()
"""Of a rank that has all rows. Nothing is launched or copied."""
