# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other about the views that each has drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gs_train.engine.microbatches import Microbatch
from gs_train.engine.record_drawing import DrawnSplats
from gs_train.engine.view_costs import ViewCosts
from gs_train.machine.host_copies import HostCopy
from gs_train.ranks.view_columns import ViewColumns
from gs_train.renderers import View
from gs_train.renderers.protocol import Rect
from gs_train.renderers.records import TILE
from gs_train.world.protocol import Ints, World

_UNKNOWN = -1
"""In place of counts of columns."""

_TIGHT = -1
"""In place of a count where memory decided what was drawn at once."""


class _Counts(NamedTuple):
    """Of what this rank has drawn of a microbatch, see `DrawnSplats`."""

    n_intersections: int | None
    columns: HostCopy | None


@dataclass(frozen=True)
class _Untold:
    """Counts of a batch that other ranks do not know.

    Attributes:
        step: of the batch.
        microbatches: of it.
        has_columns: whether counts of columns follow those of microbatches.
        drawn: of the microbatches, by number, those that this rank has drawn.
    """

    step: int
    microbatches: Sequence[Microbatch]
    has_columns: bool
    drawn: Mapping[int, _Counts]

    def words(self) -> Ints:
        """Of this rank, see `ViewNews`. Waits for counts of columns that are not here yet."""
        counts = np.zeros(len(self.microbatches), np.int64)
        parts = [counts]
        for k, microbatch in enumerate(self.microbatches):
            drawn = self.drawn.get(k)
            if drawn is not None:
                count = drawn.n_intersections
                counts[k] = _TIGHT if count is None else count + 1
            if self.has_columns:
                own = np.zeros(len(_columns_of(microbatch.crop.rect)), np.int64)
                if drawn is not None:
                    own[:] = _UNKNOWN if drawn.columns is None else drawn.columns.numpy()
                parts.append(own)
        return np.concatenate(parts)


@dataclass
class ViewNews:
    """Counts of intersections on their way to all ranks, and from them into the views' costs.

    An `Aside`: counts of a batch are told when the next one begins, or when somebody reads the
    costs. A message has a word for each microbatch: 0 where it is another rank's, else as the table
    says. Columns, where they are counted, follow.

    | a microbatch was drawn | word | its columns | noted of a view | and of a crop |
    |---|---|---|---|---|
    | in one piece | count + 1 | their counts | cost and columns | once all crops are there |
    | in parts, as its count says | count + 1 | -1 | cost | nothing |
    | in parts, for want of memory | -1 | -1 | nothing | nothing |

    The order of a batch thereby never depends on the memory of a rank.

    Args:
        world: all ranks.
        costs, columns: of the views; written to.
    """

    world: World
    costs: ViewCosts
    columns: ViewColumns
    _drawn: dict[int, _Counts] = field(default_factory=dict)
    _untold: _Untold | None = None
    _short: set[int] = field(default_factory=set)  # ranks whose memory has not sufficed
    _lines: list[str] = field(default_factory=list)

    def go_on(self) -> None:
        """Go on to the present step."""
        self.columns.step = self.costs.step

    def note(self, k: int, drawn: DrawnSplats) -> None:
        """This rank has drawn the k-th microbatch of the batch."""
        self._drawn[k] = _Counts(drawn.n_intersections, drawn.columns)

    def end_batch(self, microbatches: Sequence[Microbatch], *, has_columns: bool) -> None:
        """The batch has been drawn.

        Args:
            microbatches: in the batch's order, by which `note` numbers them.
            has_columns: columns are counted.
        """
        drawn, self._drawn = self._drawn, {}
        self._untold = _Untold(self.costs.step, microbatches, has_columns, drawn)

    def words(self) -> Ints:
        """See `Aside`: of the last batch, unless they have been told."""
        return np.zeros(0, np.int64) if self._untold is None else self._untold.words()

    def tell(self) -> None:
        """Tell what is untold in a gather of its own. A collective."""
        self.go_on()
        if self._untold is not None:
            self.take(self.world.gather(self.words()))

    def take(self, table: Ints) -> None:
        """See `Aside`: note what all ranks have counted."""
        news, self._untold = self._untold, None
        if news is None:
            return
        n = len(news.microbatches)
        self._note_shortages(table[:, :n], news)
        words = table.sum(0)  # each word is of one rank
        counts, rest = words[:n], words[n:]
        if not news.has_columns:
            for microbatch, count in zip(news.microbatches, counts.tolist()):
                self._note(microbatch.crop.view, count - 1, news.step)
            return
        sizes = [len(_columns_of(microbatch.crop.rect)) for microbatch in news.microbatches]
        whole: dict[int, np.ndarray] = {}
        for microbatch, count, own in zip(
            news.microbatches, counts.tolist(), np.split(rest, np.cumsum(sizes)[:-1])
        ):
            view = microbatch.crop.view
            found = whole.setdefault(microbatch.index, np.full(-(-view.width // TILE), _UNKNOWN))
            columns = _columns_of(microbatch.crop.rect)
            if count > 0 and (own != _UNKNOWN).all():
                found[columns.start : columns.stop] = own
            elif microbatch.is_whole:  # in parts, which have rows of tiles in common
                self._note(view, count - 1, news.step)
        for microbatch in news.microbatches:
            found = whole.pop(microbatch.index, np.full(1, _UNKNOWN))
            if (found != _UNKNOWN).all():
                view = microbatch.crop.view
                self.columns.note(view.name, found, step=news.step)
                self._note(view, int(found.sum()), news.step)

    def lines(self) -> list[str]:
        """About ranks whose memory has not sufficed for a view, since this was asked last; each
        rank once."""
        lines, self._lines = self._lines, []
        return lines

    def _note_shortages(self, counts: Ints, news: _Untold) -> None:
        if counts.min(initial=0) > _TIGHT:
            return
        for rank, k in np.argwhere(counts == _TIGHT).tolist():
            if rank not in self._short:
                self._short.add(rank)
                view = news.microbatches[k].crop.view.name
                self._lines.append(
                    f"rank {rank} has too little device memory for view {view} in step "
                    f"{news.step + 1} and draws it in parts: results differ by rounding"
                )

    def _note(self, view: View, count: int, step: int) -> None:
        """Of none nothing is noted, as on one rank."""
        if count > 0:
            self.costs.note(view, count, step=step)


def _columns_of(rect: Rect) -> range:
    """Columns of tiles that a rectangle touches."""
    return range(rect.x0 // TILE, -(-rect.x1 // TILE))
