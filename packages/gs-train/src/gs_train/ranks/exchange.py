# SPDX-License-Identifier: Apache-2.0
"""Splats of a round to the ranks that draw them, and their gradients back.

Both ways are all-to-alls whose sizes the turns tell: no rank waits for a number. Buffers are taken
once and take turns, so that two rounds can be on their way while a third is given back.

    sent      written by `project`, read by the exchange and, for gradients of rows, at the end
    arrived   written by the exchange, read while the view is drawn and its gradient computed
    back      written by the exchange back, read where rows get their gradients
"""

from __future__ import annotations

import itertools

from torch import Tensor

from gs_train.machine.out_of_memory import memory_for
from gs_train.ranks.buffers import RoundBuffers
from gs_train.ranks.turns import Round, Turns
from gs_train.renderers.records import SplatRecords
from gs_train.world.protocol import Pending, World

N_SETS = 3
"""Sets of buffers: a round's are free again when the third round after it begins."""


class RoundExchange:
    """The exchanges of one round, in the order of its methods.

    Args:
        index: of the round.
        turns: of the batch.
        world: moves splats.
        buffers: for this round alone until it has ended.

    Attributes:
        turn: the round.
        sent: records of this rank's rows, written before `send`.
        segments: where the splats of each of the round's microbatches belong in ``sent``.
    """

    def __init__(self, index: int, turns: Turns, world: World, buffers: RoundBuffers) -> None:
        self.turn: Round = turns.rounds[index]
        self._splits = turns.splits(index, world.rank)
        self._world = world
        sent, received = self._splits
        ends = list(itertools.accumulate(sent))
        drawers = [self.turn.drawer(microbatch) for microbatch in self.turn.microbatches]
        self.segments = [range(ends[rank] - sent[rank], ends[rank]) for rank in drawers]
        self.sent = buffers.sent(ends[-1])
        self._arrived = buffers.arrived(sum(received))
        self._back = buffers.back(ends[-1])
        self._pending: list[Pending[Tensor]] = []
        self._gradients: Tensor | None = None

    def send(self) -> None:
        """Send all segments, which have been written."""
        recv_rows, send_rows = self._splits.received, self._splits.sent
        for recv, send in (
            (self._arrived.words, self.sent.words),
            (self._arrived.keys, self.sent.keys),
        ):
            self._pending.append(self._world.all_to_all(recv, send, recv_rows, send_rows))

    def receive(self) -> SplatRecords:
        """The splats of the microbatch that this rank draws; none where it draws nothing."""
        self._wait()
        return self._arrived

    def send_back(self, gradients: Tensor | None) -> None:
        """Send gradients back.

        Args:
            gradients: (S, words) float32 of the splats that were received; None where this rank
                draws nothing.
        """
        if gradients is None:
            gradients = self._back.new_empty(0, self._back.shape[1])
        expected = self._arrived.n, self._back.shape[1]
        if gradients.shape != expected:
            raise ValueError(f"gradients must be {expected}, got {tuple(gradients.shape)}")
        self._gradients = gradients.contiguous()  # kept until it has been waited for
        splits = self._splits.back
        self._pending.append(
            self._world.all_to_all(self._back, self._gradients, splits.received, splits.sent)
        )

    def receive_back(self) -> Tensor:
        """(S, words) float32: gradients of the records that were sent."""
        self._wait()
        self._gradients = None
        return self._back

    def _wait(self) -> None:
        for pending in self._pending:
            pending.wait()
        self._pending.clear()


class Exchange:
    """Exchanges of one batch after the other.

    Args:
        world: moves splats.
        gradient_words: of a splat's gradient.
    """

    def __init__(self, world: World, gradient_words: int) -> None:
        self._world = world
        self._sets = [RoundBuffers(world.device, gradient_words) for _ in range(N_SETS)]

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._world.rank

    @property
    def n_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffers.n_bytes for buffers in self._sets)

    def round(self, index: int, turns: Turns) -> RoundExchange:
        """The exchanges of a round. The third round before it has ended."""
        with memory_for("an exchange between ranks"):
            return RoundExchange(index, turns, self._world, self._sets[index % N_SETS])

    def release(self) -> None:
        """Give the memory of buffers back, between two batches."""
        for buffers in self._sets:
            buffers.release()
