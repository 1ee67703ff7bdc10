# SPDX-License-Identifier: Apache-2.0
"""The rounds of a batch on one rank, two on their way at once.

    project 0, send 0, project 1, send 1
    draw 0, send back 0, project 2, send 2, give back 0
    draw 1, send back 1, project 3, send 3, give back 1
    ...

All ranks make the same exchanges in the same order, whatever their data: a rank that draws nothing,
or owns nothing of a view, takes part with nothing.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gs_train.ranks.exchange import Exchange, RoundExchange
from gs_train.ranks.turns import NOTHING, Turns
from gs_train.renderers.records import SplatRecords

_AHEAD = 2  # rounds that are sent before the first is drawn; see `exchange.N_SETS`


class Work(Protocol):
    """What a rank does for microbatches of a batch."""

    def project(self, microbatch: int, out: SplatRecords) -> None:
        """Write the splats of this rank's rows, and empty records behind them.

        Args:
            out: left alone until `give_back`.
        """
        ...

    def draw(self, microbatch: int, records: SplatRecords) -> Tensor:
        """Draw all ranks' splats, and return the gradients of each, see `RecordRenderer`."""
        ...

    def give_back(self, microbatch: int, gradients: Tensor) -> None:
        """Add the gradients of this rank's rows.

        Args:
            gradients: of the splats that `project` wrote, and of the empty records.
        """
        ...


def draw_in_rounds(turns: Turns, exchange: Exchange, work: Work) -> None:
    """Draw a batch together with all other ranks.

    ``work.project`` and ``work.give_back`` get all microbatches in canonical order, ``work.draw``
    those that this rank draws.
    """
    on_their_way: list[RoundExchange] = []

    def send(index: int) -> None:
        parcels = exchange.round(index, turns)
        for microbatch in parcels.turn.microbatches:
            work.project(microbatch, parcels.segment(microbatch))
        parcels.send()
        on_their_way.append(parcels)

    for index in range(min(_AHEAD, len(turns.rounds))):
        send(index)
    for index in range(len(turns.rounds)):
        parcels = on_their_way.pop(0)
        records = parcels.receive()
        mine = parcels.turn.drawn[exchange.rank]
        parcels.send_back(None if mine == NOTHING else work.draw(mine, records))
        if index + _AHEAD < len(turns.rounds):
            send(index + _AHEAD)
        parcels.receive_back()
        for microbatch in parcels.turn.microbatches:
            work.give_back(microbatch, parcels.gradients_of(microbatch))
