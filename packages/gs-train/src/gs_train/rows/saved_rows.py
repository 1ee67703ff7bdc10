# SPDX-License-Identifier: Apache-2.0
"""Gaussians that were saved by someone, read a chunk of rows at a time with their keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gs_train.checkpoint.reader import SavedCheckpoint
from gs_train.errors import InputError
from gs_train.files.ply import count_ply, read_ply
from gs_train.rows.own_rows import OwnSource
from gs_train.rows.restore import Part, has_sleeping_rows, restored_tiered

_MODEL = "model/"


class KeyedRows(NamedTuple):
    """Some rows.

    Attributes:
        keys: (R,) int32.
        rows: all attributes of these, float32 on the CPU.
    """

    keys: Tensor
    rows: dict[str, Tensor]


class SavedRows(Protocol):
    """Gaussians that are somewhere else, without their moments."""

    @property
    def n_rows(self) -> int:
        """How many."""
        ...

    @property
    def n_bases(self) -> int:
        """K, harmonics of a row beside the first."""
        ...

    def chunks(self, chunk_rows: int) -> Iterator[KeyedRows]:
        """All rows after the last step, in chunks of about so many; each call the same.

        Raises:
            InputError: they are damaged, or gone.
        """
        ...


class PlyRows:
    """`SavedRows` of a PLY file of Gaussians; a key is the row's place in the file.

    Raises:
        InputError: as :func:`gs_train.files.ply.read_ply`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.n_rows, self.n_bases = count_ply(path)

    def chunks(self, chunk_rows: int) -> Iterator[KeyedRows]:
        """See `SavedRows.chunks`. Memory for one chunk."""
        first = 0
        for rows in read_ply(self._path, chunk_rows):
            stop = first + len(rows["means"])
            yield KeyedRows(torch.arange(first, stop, dtype=torch.int32), rows)
            first = stop


class CheckpointRows:
    """`SavedRows` of a checkpoint that holds rows; those that sleep are brought up to date.

    Raises:
        InputError: the checkpoint holds no rows.
    """

    def __init__(self, saved: SavedCheckpoint) -> None:
        model = Part(saved, _MODEL)
        shape = model.shapes.get("shN", ())
        if saved.n_rows is None or len(shape) != 3:
            raise InputError(f"{saved.path} must hold Gaussians, got none")
        self._saved = saved
        self.n_rows, self.n_bases = saved.n_rows, shape[1]

    def chunks(self, chunk_rows: int) -> Iterator[KeyedRows]:
        """See `SavedRows.chunks`. Memory for one chunk with its moments."""
        for first in range(0, self.n_rows, chunk_rows):
            stop = min(first + chunk_rows, self.n_rows)
            try:
                yield self._chunk(torch.arange(first, stop))
            except (LookupError, TypeError, ValueError):
                raise self._saved.damaged() from None

    def _chunk(self, ids: Tensor) -> KeyedRows:
        some = Part(OwnSource(self._saved, ids), _MODEL)
        model = restored_tiered(
            some,
            device=torch.device("cpu"),
            semantics="deferred" if has_sleeping_rows(some) else "dense",
            to_look_at=True,
        )
        try:
            rows = model.snapshot(slice(0, len(ids)), device="cpu")
            return KeyedRows(model.keys.values.clone(), rows)
        finally:
            model.close()
