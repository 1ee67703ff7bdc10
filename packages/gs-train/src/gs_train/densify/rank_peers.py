# SPDX-License-Identifier: Apache-2.0
"""Density control of rows that are shared among ranks: the peers of each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gs_train.densify.peers import Roll
from gs_train.ranks.row_move import exchanged
from gs_train.renderers.protocol import Rows
from gs_train.rows.keys import END_OF_KEYS, RowKeys
from gs_train.world.protocol import World


class RankPeers:
    """`Peers` of a rank of several.

    Args:
        world: the ranks.

    Cost: a roll keeps 8 bytes for each row that it lists, of all ranks; while it is made, the keys
        are there twice and are sorted. A roll and each ``of_all`` are one exchange.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def sums(self, *counts: int) -> tuple[int, ...]:
        """See `Peers.sums`."""
        return tuple(int(total) for total in self._world.gather(counts).sum(axis=0))

    def roll(self, keys: RowKeys, *kinds: Tensor) -> RankRoll:
        """See `Peers.roll`."""
        return RankRoll(self._world, [keys.values.index_select(0, ids) for ids in kinds])


class RankRoll:
    """`Roll` of rows of several ranks.

    Args:
        world: the ranks.
        kinds: keys of this rank's rows, of each kind ascending.
    """

    def __init__(self, world: World, kinds: Sequence[Tensor]) -> None:
        self._world = world
        lengths = world.gather([len(keys) for keys in kinds])  # (W, kinds)
        self._counts: list[int] = lengths.sum(axis=1).tolist()
        self._first = sum(self._counts[: world.rank])
        self._end = self._first + self._counts[world.rank]
        codes = _from_all(world, torch.cat(list(kinds)), self._counts)
        if len(kinds) > 1:
            kind = torch.arange(len(kinds), device=codes.device).repeat(world.size)
            runs = torch.tensor(lengths.ravel().tolist(), device=codes.device)
            kind = kind.repeat_interleave(runs, output_size=len(codes))
            codes = codes + END_OF_KEYS * kind
        # Entry e is row e of the lists of all ranks, one behind the other.
        self._entries = torch.argsort(codes)

    def __len__(self) -> int:
        return len(self._entries)

    def of_all(self, values: Tensor) -> Tensor:
        """See `Roll.of_all`."""
        gathered = _from_all(self._world, values, self._counts)
        return gathered.index_select(0, self._entries)

    def own(self, values: Tensor) -> Tensor:
        """See `Roll.own`."""
        return values[self._is_own(self._entries)]  # a rank's own list is in the same order

    def pick(self, places: Tensor) -> RankPick:
        """See `Roll.pick`."""
        entries = self._entries.index_select(0, places)
        is_own = self._is_own(entries)
        return RankPick(
            self._world,
            own=entries[is_own] - self._first,
            numbers=is_own.nonzero().squeeze(1),
            owners=self.owners(entries),
        )

    def owners(self, entries: Tensor | None = None) -> Tensor:
        """(P,) int64 ranks of entries; of all rows of the roll in their order where None."""
        ends = torch.tensor(self._counts, device=self._entries.device).cumsum(0)
        return torch.searchsorted(ends, self._entries if entries is None else entries, right=True)

    def _is_own(self, entries: Tensor) -> Tensor:
        return (entries >= self._first) & (entries < self._end)


class RankPick:
    """`Pick` of rows of several ranks.

    Args:
        world: the ranks.
        own: see `Pick`.
        numbers: (Q,) int64: which picks these are.
        owners: (P,) int64: the rank of each of the picked rows.
    """

    def __init__(self, world: World, *, own: Tensor, numbers: Tensor, owners: Tensor) -> None:
        self._world = world
        self.own = own
        self._numbers = numbers
        self._owners = owners

    def of_own(self, values: Tensor) -> Tensor:
        """See `Pick.of_own`."""
        return values.index_select(0, self._numbers)

    def bring(
        self, read: Callable[[Tensor], Rows], ids: Tensor, *, targets: Roll, order: Tensor
    ) -> Rows:
        """See `Pick.bring`. Cost: the rows that are copied, both ways, one attribute at a time."""
        assert isinstance(targets, RankRoll)
        size, goes_to = self._world.size, targets.owners()
        there = self.of_own(goes_to)
        here = self._owners[goes_to == self._world.rank]
        sent, received = (torch.bincount(ranks, minlength=size).tolist() for ranks in (there, here))
        # Rows for one rank, and rows from one rank, are in the order of the picks.
        arrivals = torch.sort(here, stable=True).indices.argsort().index_select(0, order)
        values = read(ids.index_select(0, torch.sort(there, stable=True).indices))
        return {
            name: exchanged(self._world, rows, received, sent).index_select(0, arrivals)
            for name, rows in values.items()
        }


def _from_all(world: World, values: Tensor, counts: Sequence[int]) -> Tensor:
    """(sum of ``counts``,) the values of all ranks, those of rank 0 first."""
    return exchanged(world, values.repeat(world.size), counts, [len(values)] * world.size)
