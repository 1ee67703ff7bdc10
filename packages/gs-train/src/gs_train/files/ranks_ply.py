# SPDX-License-Identifier: Apache-2.0
"""The Gaussians of all ranks as one PLY file, which rank 0 writes a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gs_train.files.ply import Layout, PlyFormat
from gs_train.files.ranks_rows import write_rows_of_ranks
from gs_train.files.row_chunks import Chunk
from gs_train.world import World


def write_ply_of_ranks(
    path: str | Path,
    chunks: Iterable[Chunk],
    *,
    world: World,
    n_rows: int,
    layout: Layout = "inria",
    transform: Callable[[Chunk], Chunk] | None = None,
) -> int:
    """Write the Gaussians of all ranks to a PLY file: those of rank 0 first. A collective.

    A world of one writes what :func:`~gs_train.files.ply.write_ply` does.

    Args:
        path: the file, which rank 0 writes.
        chunks: of this rank's rows, at least one, which may be empty; K of ``shN`` is the same on
            all ranks.
        world: of the ranks.
        n_rows: of this rank.
        layout, transform: as for :func:`~gs_train.files.ply.write_ply`.

    Returns:
        How many rows of all ranks were left out because a value of theirs was NaN or infinite; the
        same on all ranks.

    Raises:
        CommonError: rank 0 cannot write the file, or every row would be left out; on all ranks.
        ValueError: an argument is wrong, as for :func:`~gs_train.files.ply.write_ply`; on one rank.

    Cost: memory for three chunks on rank 0, two elsewhere, one of these on the device; one pass
        over the rows. A rank makes its next chunk ready while rank 0 writes the one before.
    """
    return write_rows_of_ranks(
        Path(path),
        chunks,
        world=world,
        form=PlyFormat(layout),
        n_rows=n_rows,
        transform=transform,
    ).n_lost
