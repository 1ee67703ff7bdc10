# SPDX-License-Identifier: Apache-2.0
"""Who draws which microbatch of a batch when, and how many splats travel for it.

Microbatches are drawn in rounds of as many as there are ranks, in the canonical order of the batch.
For each round every rank projects its own rows into all views of the round, splats travel to the
rank that draws their view, and gradients of splats travel back.

    round 0   microbatches 0 .. W - 1     one a rank
    round 1   microbatches W .. 2 W - 1   one a rank
    ...       the last round may have fewer: some ranks draw nothing, and send what they own

Each rank computes the turns by itself from a table that all have. A clock may decide who draws, for
no result depends on it, never what is drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

NOTHING = -1
"""In place of a microbatch: the rank draws none."""


class Round(NamedTuple):
    """Microbatches that are drawn at once.

    Attributes:
        microbatches: in canonical order.
        drawn: by rank, the microbatch that it draws, or `NOTHING`.
    """

    microbatches: range
    drawn: tuple[int, ...]

    def drawer(self, microbatch: int) -> int:
        """The rank that draws one of the round's microbatches."""
        return self.drawn.index(microbatch)


class Splits(NamedTuple):
    """Rows of the segments of an exchange, each by rank.

    Attributes:
        sent: that a rank sends to each.
        received: that it gets from each.
    """

    sent: tuple[int, ...]
    received: tuple[int, ...]

    @property
    def back(self) -> Splits:
        """Of the exchange in which gradients travel back."""
        return Splits(self.received, self.sent)


@dataclass(frozen=True, eq=False)
class Turns:
    """The rounds of a batch. See the module's text.

    Attributes:
        counts: (W, M) int64: rows of each rank that travel for each microbatch, in canonical order.
        rounds: all of them.
    """

    counts: np.ndarray
    rounds: tuple[Round, ...]

    @classmethod
    def of(
        cls, counts: ArrayLike, work: ArrayLike | None = None, paces: ArrayLike | None = None
    ) -> Turns:
        """The turns of a batch.

        Args:
            counts: (W, M) whole numbers, at least 0: rows of each rank that travel for each
                microbatch at most, in canonical order.
            work: (M,) at least 0, what it takes to draw each; None: its rows.
            paces: (W,) above 0, time that each rank takes for a unit of work; None: all the same.

        Raises:
            ValueError: shapes or values are others.
        """
        table = np.array(counts, np.int64)
        if table.ndim != 2 or not len(table):
            raise ValueError(f"counts must be (W, M) of one rank or more, got {table.shape}")
        if (table < 0).any():
            raise ValueError(f"counts must be at least 0, got {table.min()}")
        n_ranks, n_microbatches = table.shape
        to_draw = _checked("work", table.sum(0) if work is None else work, n_microbatches)
        pace = _checked("paces", np.ones(n_ranks) if paces is None else paces, n_ranks)
        if (pace == 0).any():
            raise ValueError(f"paces must be above 0, got {pace.tolist()}")
        rounds, spent = [], np.zeros(n_ranks)
        for first in range(0, n_microbatches, n_ranks):
            microbatches = range(first, min(first + n_ranks, n_microbatches))
            drawn = _dealt(microbatches, to_draw, pace, spent)
            rounds.append(Round(microbatches, drawn))
        return cls(table, tuple(rounds))

    @property
    def n_ranks(self) -> int:
        """W."""
        return len(self.counts)

    def splits(self, index: int, rank: int) -> Splits:
        """Segments of the exchange of round ``index``, as ``rank`` sees it."""
        drawn = self.rounds[index].drawn
        sent = (0 if m == NOTHING else int(self.counts[rank, m]) for m in drawn)
        mine = drawn[rank]
        received = [0] * self.n_ranks if mine == NOTHING else self.counts[:, mine].tolist()
        return Splits(tuple(sent), tuple(received))


def _dealt(
    microbatches: Sequence[int], work: np.ndarray, paces: np.ndarray, spent: np.ndarray
) -> tuple[int, ...]:
    """Who draws which of a round: the rank that will be ready last gets the least.

    Args:
        spent: (W,) time that ranks have drawn for in earlier rounds; this one is added.
    """
    by_work = sorted(microbatches, key=lambda m: (-work[m], m))
    typical = sum(work[m] for m in by_work) / len(by_work)
    ready = spent + paces * typical
    by_readiness = sorted(range(len(paces)), key=lambda rank: (ready[rank], rank))
    drawn = [NOTHING] * len(paces)
    for rank, microbatch in zip(by_readiness, by_work):
        drawn[rank] = microbatch
        spent[rank] += paces[rank] * work[microbatch]
    return tuple(drawn)


def _checked(name: str, values: ArrayLike, n: int) -> np.ndarray:
    found = np.array(values, np.float64)
    if found.shape != (n,) or not (np.isfinite(found) & (found >= 0)).all():
        raise ValueError(f"{name} must be ({n},), finite and at least 0, got {found.tolist()}")
    return found
