# SPDX-License-Identifier: Apache-2.0
"""One layout from the layouts of the ranks that wrote a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from gs_train.checkpoint.layout import Layout, Piece, TensorLayout


def joined(parts: Sequence[Layout]) -> Layout:
    """The layout of a checkpoint whose shards are those of rank 0, then those of rank 1, and so on.

    Args:
        parts: of each rank, counted from its own first row and its own first shard. All have the
            same tensors by row; the rows of a rank follow the rows of the rank before. Step, state
            and the other tensors are rank 0's.
    """
    first = parts[0]
    n_rows = None if first.n_rows is None else sum(part.n_rows or 0 for part in parts)
    return Layout(
        first.step,
        first.state,
        n_rows,
        {
            name: _of_all(name, parts, n_rows or 0) if tensor.by_row else tensor
            for name, tensor in first.tensors.items()
        },
        tuple(shard for part in parts for shard in part.shards),
    )


def _of_all(name: str, parts: Sequence[Layout], n_rows: int) -> TensorLayout:
    tensor = parts[0].tensors[name]
    shape = (n_rows, *tensor.shape[1:])
    return dataclasses.replace(tensor, shape=shape, pieces=tuple(_pieces(name, parts)))


def _pieces(name: str, parts: Sequence[Layout]) -> Iterator[Piece]:
    """The pieces of all ranks, in the order of rows and of shards."""
    n_shards = n_rows = 0
    for part in parts:
        for piece in part.tensors[name].pieces:
            yield dataclasses.replace(
                piece,
                shard=n_shards + piece.shard,
                start=n_rows + piece.start,
                stop=n_rows + piece.stop,
            )
        n_shards += len(part.shards)
        n_rows += part.n_rows or 0
