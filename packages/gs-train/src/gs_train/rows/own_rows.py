# SPDX-License-Identifier: Apache-2.0
"""The rows of a checkpoint that a rank owns, whichever ranks wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gs_train.checkpoint.reader import SavedCheckpoint
from gs_train.checkpoint.row_names import MEANS, STRANDS
from gs_train.files.agreement import by_first
from gs_train.rows.morton import PIECE
from gs_train.rows.strands import Lattice, owners
from gs_train.world import World

LATTICE = "lattice"
"""Name of the lattice in the state of a checkpoint."""


class OwnRows(NamedTuple):
    """Some rows of a checkpoint.

    Attributes:
        ids: (R,) int64, sorted: for `SavedCheckpoint.read` and ``fill``.
        labels: (R,) uint8, the strands of these rows.
    """

    ids: Tensor
    labels: Tensor


def own_rows(saved: SavedCheckpoint, lattice: Lattice, *, rank: int, n_ranks: int) -> OwnRows:
    """The rows whose strands a rank owns.

    Args:
        lattice: of the run; rows that were saved without labels get those of their cells.
        rank, n_ranks: of the world that reads.

    Raises:
        InputError: a file is damaged.

    Cost: reads a byte of every row, or 12 where there are no labels; memory for a byte of every
        row and 16 of every own row, and for 12 of each of a few million.
    """
    n_rows = saved.n_rows or 0
    if STRANDS in saved.shapes:
        labels = saved.read([STRANDS])[STRANDS]
    else:
        labels = torch.empty(n_rows, dtype=torch.uint8)
        for start in range(0, n_rows, PIECE):
            part = slice(start, start + PIECE)
            labels[part] = lattice.labels(saved.read([MEANS], rows=part)[MEANS])
    found = [
        (owners(labels[start : start + PIECE], n_ranks) == rank).nonzero().squeeze(1) + start
        for start in range(0, n_rows, PIECE)
    ]
    ids = torch.cat([torch.empty(0, dtype=torch.int64), *found])
    return OwnRows(ids, labels.index_select(0, ids))


def lattice_of(saved: SavedCheckpoint, world: World) -> Lattice:
    """The lattice of a run: the saved one, or one for the saved rows where one rank wrote them.

    A collective.

    Raises:
        CommonError: the saved lattice is none, or rank 0 found a file with the rows' positions
            damaged; on all ranks. InputError where one rank reads.

    Cost: a broadcast. Where there is no saved one, rank 0 reads the means: memory for 12 bytes a
        row.
    """
    found = by_first(world, lambda: plain_lattice(_lattice_in(saved)))
    return Lattice(**found)


def plain_lattice(lattice: Lattice) -> dict[str, int]:
    """What the state of a checkpoint holds of a lattice under LATTICE."""
    return {"exponent": lattice.exponent, "n_rows": lattice.n_rows}


class OwnSource:
    """A `Source` of some rows of a checkpoint, and of all that has no rows.

    A trainer restored from it has these rows alone; steps, schedules and costs of views are those
    of the run.

    Args:
        saved: the checkpoint.
        ids: (R,) int64, sorted: as :attr:`OwnRows.ids`.
    """

    def __init__(self, saved: SavedCheckpoint, ids: Tensor) -> None:
        self._saved = saved
        self._ids = ids
        self.shapes = {
            name: (len(ids), *shape[1:]) if name in saved.by_row else shape
            for name, shape in saved.shapes.items()
        }
        self.dtypes = saved.dtypes

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See `Source.fill`.

        Cost: reads the pieces of tensors that hold rows of these; the rows that one rank wrote are
            pieces of their own.
        """
        rows = {name: target for name, target in targets.items() if name in self._saved.by_row}
        self._saved.fill(rows, rows=self._ids)
        self._saved.fill({name: target for name, target in targets.items() if name not in rows})


def _lattice_in(saved: SavedCheckpoint) -> Lattice:
    plain = saved.state.get(LATTICE)
    if plain is None:
        return Lattice.of_cloud(saved.read([MEANS])[MEANS])
    try:
        return Lattice(_integer(plain["exponent"]), _integer(plain["n_rows"]))
    except (LookupError, TypeError, ValueError):
        raise saved.damaged() from None


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("a lattice must be whole numbers")
    return value
