# SPDX-License-Identifier: Apache-2.0
"""The Gaussians of all ranks as one file, which rank 0 writes a chunk at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gs_train.files.chunks_of_ranks import by_first_with_chunks
from gs_train.files.crop import Crop
from gs_train.files.row_chunks import Chunk
from gs_train.files.row_file import RowFormat, Written, write_rows
from gs_train.files.survey import Survey
from gs_train.world import World


def write_rows_of_ranks(
    path: Path,
    chunks: Iterable[Chunk],
    *,
    world: World,
    form: RowFormat,
    n_rows: int,
    transform: Callable[[Chunk], Chunk] | None = None,
    crop: Crop | None = None,
    survey: Survey | None = None,
    on_rows: Callable[[int], object] | None = None,
) -> Written:
    """Write the Gaussians of all ranks to a file: those of rank 0 first. A collective.

    A world of one writes what :func:`~gs_train.files.row_file.write_rows` does.

    Args:
        path: the file, which rank 0 writes.
        chunks: of this rank's rows, at least one, which may be empty; K of ``shN`` is the same on
            all ranks.
        world: of the ranks.
        n_rows: of this rank.
        survey: of the rows of all ranks.
        form, transform, crop, on_rows: as for :func:`~gs_train.files.row_file.write_rows`; rank 0
            applies and calls them.

    Returns:
        What became of the rows of all ranks; the same on all ranks.

    Raises:
        CommonError: rank 0 cannot write the file, or every row would be left out; on all ranks.
        ValueError: an argument is wrong, as for :func:`~gs_train.files.row_file.write_rows`; on one
            rank.

    Cost: memory for three chunks on rank 0, two elsewhere, one of these on the device; one pass
        over the rows. A rank makes its next chunk ready while rank 0 writes the one before.
    """
    write = functools.partial(
        write_rows,
        path,
        form=form,
        transform=transform,
        crop=crop,
        survey=survey,
        on_rows=on_rows,
    )
    if world.size == 1:
        return write(chunks, n_rows=n_rows)

    def write_all(all_chunks: Iterator[Chunk], n_all: int) -> list[int]:
        return list(write(all_chunks, n_rows=n_all))

    return Written(*by_first_with_chunks(world, chunks, write_all, n_rows=n_rows))
