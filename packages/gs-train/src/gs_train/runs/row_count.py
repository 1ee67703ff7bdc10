# SPDX-License-Identifier: Apache-2.0
"""The number of rows of all ranks, as densification changes it."""

from __future__ import annotations

from gs_train.densify import Changed
from gs_train.densify.peers import Peers
from gs_train.world.failure import DisagreementError
from gs_train.world.protocol import World


class RowCount:
    """Counts the rows of all ranks.

    What the strategies of this package report is of all ranks, so they decide with it whether to
    ask. A caller's strategy may report of its own rank: ranks ask after each step then, and compare
    the reports.

    Args:
        n_own: rows of this rank.
        peers: of this rank.
        world: of several ranks; None: there is one.
        compares: the strategy is a caller's.

    Attributes:
        n_rows: of all ranks.
    """

    def __init__(self, n_own: int, peers: Peers, *, world: World | None, compares: bool) -> None:
        self._peers = peers
        self._world = world
        self._compares = compares
        (self.n_rows,) = peers.sums(n_own)

    def follow(self, changed: Changed, n_own: int, *, step: int) -> None:
        """Count again. A collective of all ranks or of none.

        Args:
            changed: what densification reports.
            n_own: rows of this rank now.
            step: steps done, for the message.

        Raises:
            DisagreementError: ranks report different changes; on all ranks.
        """
        if self._world is None or not self._compares:
            if changed.n_changes or self._world is None:
                (self.n_rows,) = self._peers.sums(n_own)
            return
        reports = [changed.grown, changed.pruned, changed.relocated]
        table = self._world.gather([n_own, *reports])
        self.n_rows = int(table[:, 0].sum())
        if (table[:, 1:] != table[0, 1:]).any():
            said = ", ".join(f"{sum(row)} on rank {rank}" for rank, row in enumerate(table[:, 1:]))
            raise DisagreementError(
                f"a strategy must report the changes of all ranks, and after step {step} "
                f"it reported {said}: sum them with StrategyStart.peers.sums"
            )
