# SPDX-License-Identifier: Apache-2.0
"""Where a batch's rows are while it is drawn, as the engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gs_train.engine.lookahead import EarlyList
from gs_train.engine.microbatches import Seen
from gs_train.engine.settings import StepSettings
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.ranks.turns import Turns
from gs_train.renderers.tables import TableRows


@dataclass(frozen=True)
class Tools:
    """What an engine and its placements share."""

    lanes: Lanes
    trace: Trace
    stats: BatchStats


class Batch(NamedTuple):
    """A batch that begins.

    Attributes:
        placement: that it runs in.
        seen: its microbatches and their rows; where ``marks`` are given, rows that it may see.
        marks: (U,) bool: which of the rows any view really sees; None: all.
        order: of the microbatches, the canonical one.
        early: the list of rows that was found before; None: there was none, or it does not hold.
        n_rows: rows of the model, of all ranks.
        turns: who draws what; None: there is one rank.
    """

    placement: Placement
    seen: Seen
    marks: Tensor | None
    order: np.ndarray
    early: EarlyList | None
    n_rows: int
    turns: Turns | None = None


class Taken(NamedTuple):
    """The rows of a microbatch.

    Attributes:
        ids: (R,) int32, sorted.
        leaves: copies of the six attributes of these rows, which collect gradients.
        place: (R,) where the rows are among the batch's; None: as the placement knows.
    """

    ids: Tensor
    leaves: dict[str, Tensor]
    place: Tensor | None = None


class Placement(Protocol):
    """Brings the rows of a batch, takes their gradients, and updates the rows.

    The engine calls, for each batch, in this order:

        open, begin, (take, give), or tables, of each microbatch, update, close

    and `expect` on any thread between `begin` and `update`. Between batches, and after `open` where
    the batch does not begin: `finish`, `leave`.

    Attributes:
        is_resident: rows are updated on the device where they lie, those alone that the batch
            marks: a batch may list rows that no view sees.
        lists_ahead: early lists that are of use while a batch runs: 0, 1 of the next batch, or 2.
        expecting_waits: looking ahead waits even where the device has kept up, so a thread does it.
    """

    is_resident: bool
    lists_ahead: int
    expecting_waits: bool

    def fits(self, n_rows: int) -> bool:
        """Whether a batch that sees so many rows can run here."""
        ...

    def open(self, batch: Batch) -> np.ndarray:
        """Make sure that the batch's rows can be had; where this raises, no row has changed.

        Returns:
            (M,) the order in which microbatches are to be taken.
        """
        ...

    def begin(self, settings: StepSettings, edited: torch.cuda.Event | None) -> int:
        """Begin the optimizer's step.

        Args:
            settings: of the step.
            edited: behind the last change of the geometry on ``compute``, and behind `open`; None
                where the placement is resident and nothing is listed ahead.

        Returns:
            The number of the step, from 1.
        """
        ...

    def take(self, k: int) -> Taken:
        """The rows of the k-th microbatch in the order, on ``compute``."""
        ...

    def give(self, k: int, taken: Taken) -> None:
        """Add the gradients that the leaves have."""
        ...

    def tables(self, k: int) -> TableRows | None:
        """The rows of the k-th microbatch where they lie, on ``compute``; None: they lie nowhere
        together. Instead of `take` and `give`, which may still follow at any time before `update`,
        where they cannot be drawn so."""
        ...

    def expect(self, following: EarlyList | None) -> None:
        """Bring what the next batch may see, as far as this one leaves room.

        Args:
            following: the early list of the next batch; None where there is none.
        """
        ...

    def update(self, looked: torch.cuda.Event | None) -> None:
        """Take the optimizer's step on what the batch saw.

        Args:
            looked: behind everything that reads the geometry on other lanes.
        """
        ...

    def close(self) -> None:
        """End the batch."""
        ...

    def finish(self) -> None:
        """Bring the rows home, where they may be read; what is here stays."""
        ...

    def leave(self) -> None:
        """`finish`, and give memory back: others will change rows, or run the next batch."""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes of rows and sums that the device holds from batch to batch."""
        ...


def first_with_room(placements: Sequence[Placement], seen: Seen) -> int:
    """The first of the placements that a batch can run in which lists these rows."""
    # No generator: Python loses a Ctrl-C that comes while one ends that was left halfway.
    n_rows = seen.ids.shape[0]
    able = [k for k, one in enumerate(placements) if one.fits(n_rows)]
    return able[0]
