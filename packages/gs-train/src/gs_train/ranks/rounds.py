# SPDX-License-Identifier: Apache-2.0
"""The rounds of a batch on one rank, two on their way at once.

    project 0, send 0, project 1, send 1
    draw 0,              project 2, send back 0, send 2
    draw 1, give back 0, project 3, send back 1, send 3
    draw 2, give back 1, project 4, send back 2, send 4
    ...

A drawing is enqueued first. What the device does next is enqueued before gradients are asked for,
which may wait for the drawing; and gradients of a round travel while the next one is drawn.

All ranks make the same exchanges in the same order, whatever their data: a rank that draws nothing,
or owns nothing of a view, takes part with nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from gs_train.ranks.exchange import Exchange, RoundExchange
from gs_train.ranks.turns import NOTHING, Turns
from gs_train.renderers.records import SplatRecords

_AHEAD = 2  # rounds that are sent before the first is drawn; see `exchange.N_SETS`


class Work(Protocol):
    """What a rank does for microbatches of a batch."""

    def project(
        self, microbatches: Sequence[int], out: SplatRecords, segments: Sequence[range]
    ) -> None:
        """Write the splats of this rank's rows, and empty records behind those of each microbatch.

        Args:
            microbatches: of a round, at least one.
            out: of all of them, left alone until `give_back`.
            segments: where in ``out`` those of each microbatch belong.
        """
        ...

    def draw(self, microbatch: int, records: SplatRecords) -> Callable[[], Tensor]:
        """Begin to draw all ranks' splats.

        Returns:
            A function that ends the drawing, and gives the gradients of each splat, see
            `RecordRenderer`. It is called once.
        """
        ...

    def give_back(
        self, microbatches: Sequence[int], gradients: Tensor, segments: Sequence[range]
    ) -> None:
        """Add the gradients of this rank's rows, one microbatch after the other.

        Args:
            microbatches, segments: as for `project`.
            gradients: of the records that `project` wrote, a row for each, of empty ones too.
        """
        ...


def draw_in_rounds(turns: Turns, exchange: Exchange, work: Work) -> None:
    """Draw a batch together with all other ranks.

    ``work.project`` and ``work.give_back`` get all microbatches in canonical order, a round at a
    time; ``work.draw`` gets those that this rank draws.
    """
    n = len(turns.rounds)
    on_their_way: deque[RoundExchange] = deque()
    drawn: RoundExchange | None = None

    def projected(index: int) -> RoundExchange:
        parcels = exchange.round(index, turns)
        work.project(parcels.turn.microbatches, parcels.sent, parcels.segments)
        on_their_way.append(parcels)
        return parcels

    def give_back(parcels: RoundExchange) -> None:
        work.give_back(parcels.turn.microbatches, parcels.receive_back(), parcels.segments)

    for index in range(min(_AHEAD, n)):
        projected(index).send()
    for index in range(n):
        parcels = on_their_way.popleft()
        records = parcels.receive()
        mine = parcels.turn.drawn[exchange.rank]
        gradients = None if mine == NOTHING else work.draw(mine, records)
        if drawn is not None:
            give_back(drawn)
        following = projected(index + _AHEAD) if index + _AHEAD < n else None
        parcels.send_back(None if gradients is None else gradients())
        if following is not None:
            following.send()
        drawn = parcels
    if drawn is not None:
        give_back(drawn)
