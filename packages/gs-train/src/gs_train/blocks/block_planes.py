# SPDX-License-Identifier: Apache-2.0
"""The planes of a store that holds a scene's rows with their moments, and how it begins."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gs_pinned import BlockStore, Plane
from gs_train.blocks.partition import Partition
from gs_train.renderers import Rows
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, GEOMETRY_WIDTH

MOMENTS = ("", ".exp_avg", ".exp_avg_sq")
"""Of the planes of an attribute group: its values, and both moments of Adam."""

_AT_ONCE = 256
"""Blocks that are put together at once."""


def planes_of(k: int) -> list[Plane]:
    """Of rows with K harmonics beside the first: 720 bytes a row for K = 15.

    ``last_step`` is the step that a row was last updated in, ``key`` the number that it was born
    with. Geometry lies in the first part of a record, which can be read alone.
    """
    return [
        *(Plane(f"geometry{moment}", GEOMETRY_WIDTH, is_head=True) for moment in MOMENTS),
        Plane("last_step", 1, "int32", is_head=True),
        Plane("key", 1, "int32", is_head=True),
        *(Plane(f"appearance{moment}", 3 + 3 * k) for moment in MOMENTS),
    ]


def write_rows(
    path: str | os.PathLike[str], rows: Rows, keys: Tensor, partition: Partition, block_rows: int
) -> BlockStore:
    """Make a store of rows that have taken no step; no snapshot is made.

    Args:
        path: an empty folder, or none yet.
        rows: all attributes of N rows, on the CPU.
        keys: (N,) int32.
        partition: of the rows, into blocks of at most ``block_rows``.

    Raises:
        OSError, ValueError: see :meth:`gs_pinned.BlockStore.create`.

    Memory: that of 256 blocks beside the rows.
    """
    store = BlockStore.create(path, planes_of(rows["shN"].shape[1]), block_rows=block_rows)
    try:
        for blocks, places in _pieces(partition):
            chosen = torch.from_numpy(partition.rows[places])
            parts = {
                "geometry": _joined(rows, GEOMETRY, chosen),
                "appearance": _joined(rows, APPEARANCE, chosen),
            }
            values: dict[str, np.ndarray] = {
                "last_step": np.zeros((len(chosen), 1), np.int32),
                "key": keys[chosen, None].numpy(),
            }
            for name, part in parts.items():
                for moment in MOMENTS:
                    values[name + moment] = np.zeros_like(part) if moment else part
            store.write(blocks, values, partition.counts[blocks])
    except BaseException:
        store.close()
        raise
    return store


def _pieces(partition: Partition) -> Iterator[tuple[np.ndarray, slice]]:
    """Some blocks at a time, and the places of their rows."""
    for first in range(0, len(partition), _AT_ONCE):
        last = min(first + _AT_ONCE, len(partition))
        places = slice(int(partition.offsets[first]), int(partition.offsets[last]))
        yield np.arange(first, last), places


def _joined(rows: Rows, names: tuple[str, ...], chosen: Tensor) -> np.ndarray:
    """(R, W) the attributes of some rows side by side."""
    parts = [
        rows[name][chosen].flatten(1) if rows[name].ndim > 1 else rows[name][chosen, None]
        for name in names
    ]
    joined: np.ndarray = torch.cat(parts, 1).numpy()
    return joined
