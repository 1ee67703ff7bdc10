# SPDX-License-Identifier: Apache-2.0
"""The planes of a store that holds a scene's rows with their moments, and how it begins."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from gs_pinned import BlockStore, Plane
from gs_train.renderers import Rows
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, GEOMETRY_WIDTH

MOMENTS = ("", ".exp_avg", ".exp_avg_sq")
"""Of the planes of an attribute group: its values, and both moments of Adam."""

_PAGE = 4096

AT_ONCE = 32
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


def first_row_bytes(block_rows: int) -> float:
    """Bytes that a row takes in a store before its first step, about.

    Columns that repeat themselves take none: moments, harmonics beside the first, opacities, two of
    three scales. A colour has one of 256 values.
    """
    head, colors = 36 * block_rows + 1024, 3 * min(4 * block_rows, block_rows + 1024)
    n_bytes = sum(-(-part // _PAGE) * _PAGE for part in (head, colors + 64))
    return n_bytes / block_rows


def _begins_as_zero(name: str) -> bool:
    return name.endswith(MOMENTS[1:]) or name == "last_step"


class NewRows:
    """A store of rows that have taken no step, written some blocks at a time.

    Args:
        path: an empty folder, or none yet.
        k: harmonics of a row beside the first.
        block_rows: most rows of a block.

    Raises:
        OSError, ValueError: see :meth:`gs_pinned.BlockStore.create`.
    """

    def __init__(self, path: str | os.PathLike[str], k: int, block_rows: int) -> None:
        self.store = BlockStore.create(path, planes_of(k), block_rows=block_rows)
        n = AT_ONCE * block_rows
        # Moments, and what is known not to have begun: written from here, and never written to.
        self._zeros = {
            p.name: np.zeros((n, p.width), p.dtype)
            for p in self.store.planes
            if _begins_as_zero(p.name)
        }

    def write(self, blocks: np.ndarray, counts: np.ndarray, rows: Rows, keys: Tensor) -> None:
        """Write blocks.

        Args:
            blocks: (n,) at most `AT_ONCE` numbers.
            counts: (n,) rows of each.
            rows: all attributes of these rows, block after block, on the CPU.
            keys: (R,) int32.

        Raises:
            OSError: see :meth:`gs_pinned.BlockStore.write`.

        Threads: several may write blocks at once.
        """
        n = len(keys)
        values: dict[str, np.ndarray] = {name: zeros[:n] for name, zeros in self._zeros.items()}
        values["key"] = keys[:, None].numpy()
        values["geometry"] = _joined(rows, GEOMETRY)
        values["appearance"] = _joined(rows, APPEARANCE)
        self.store.write(blocks, values, counts)


def _joined(rows: Rows, names: tuple[str, ...]) -> np.ndarray:
    """(R, W) attributes side by side."""
    parts = [
        rows[name].flatten(1) if rows[name].ndim > 1 else rows[name][:, None] for name in names
    ]
    joined: np.ndarray = torch.cat(parts, 1).numpy()
    return joined
