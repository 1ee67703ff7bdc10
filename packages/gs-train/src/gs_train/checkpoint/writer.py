# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written: planned into shards, under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gs_train.checkpoint.dtypes import dtype_name
from gs_train.checkpoint.folder import free_name, remove_older, remove_stale
from gs_train.checkpoint.labels import LABELS, require_label_kind
from gs_train.checkpoint.layout import Layout, Piece, ShardLayout, TensorLayout
from gs_train.checkpoint.manifest import shard_name, write_manifest
from gs_train.checkpoint.row_names import row_names
from gs_train.checkpoint.shards import write_shard
from gs_train.files.atomic import SUFFIX, disk_full_is_input_error, require_free, sync_folder


@dataclass(frozen=True)
class PlannedPiece:
    """Rows ``start:stop`` of a tensor."""

    name: str
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """These rows of their tensor."""
        return tensor if tensor.ndim == 0 else tensor[self.start : self.stop]


def save_checkpoint(
    folder: str | Path,
    *,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    by_row: Collection[str] | None = None,
    keep: int = 2,
    max_shard_bytes: int = 2 << 30,
) -> Path:
    """Write a checkpoint and remove the oldest ones.

    Args:
        folder: holds one run's checkpoints; made when missing.
        step: optimizer steps done, at least 0.
        tensors: any device, strides and shape; larger ones than a shard are split by rows.
            ``model/keys`` must be (N,) int32, not negative and distinct, ``model/strands`` (N,)
            uint8; neither must be there.
        state: what ``json.dumps`` takes; keys must be strings and tuples come back as lists.
        by_row: the tensors whose first dimension counts the Gaussians, of which a reader may take
            some rows; None finds a trainer's by their names.
        keep: how many of the newest checkpoints remain, this one included; at least 1.
        max_shard_bytes: of one file, exceeded only by a single row that is larger.

    Returns:
        The new checkpoint's folder.

    Raises:
        InputError: the disk has not enough space; nothing of it remains.
        TypeError: ``state`` cannot be written as JSON.
        ValueError: an argument is out of range, a tensor's dtype is not known to safetensors, keys
            or strands have another dtype or shape, or tensors by row have different lengths.

    Cost: one sequential write at the speed of the disk, 16 MiB of memory, one sync per shard.
        A crash at any moment leaves the earlier checkpoints and at most one temporary folder, which
        the next save removes.
    """
    require_limits(step, keep, max_shard_bytes)
    unsaved = Unsaved.of(step, tensors, state, by_row=by_row)
    path = new_path(Path(folder), step, unsaved.n_bytes)
    temporary = temporary_of(path)
    try:
        with disk_full_is_input_error(path):
            temporary.mkdir(parents=True)
            complete(path, unsaved.write(temporary, max_shard_bytes))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    settle(path, keep=keep)
    return path


@dataclass(frozen=True)
class Unsaved:
    """What shall be saved, checked.

    Attributes:
        step: optimizer steps done.
        tensors: by name.
        state: as JSON has it.
        by_row: names of the tensors by row.
        n_rows: Gaussians; None where no tensor is by row.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    by_row: frozenset[str]
    n_rows: int | None

    @classmethod
    def of(
        cls,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        by_row: Collection[str] | None,
    ) -> Unsaved:
        """See :func:`save_checkpoint`.

        Raises:
            TypeError, ValueError: as :func:`save_checkpoint`.
        """
        plain_state = json.loads(json.dumps(dict(state)))
        for tensor in tensors.values():
            dtype_name(tensor.dtype)
        rows, n_rows = _rows(tensors, by_row)
        return cls(step, tensors, plain_state, rows, n_rows)

    @property
    def n_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def write(
        self,
        folder: Path,
        max_shard_bytes: int,
        name_of: Callable[[int], str] = shard_name,
    ) -> Layout:
        """Write all shards and sync them.

        Args:
            folder: is there.
            name_of: a shard's file, by its index.

        Raises:
            OSError: a file cannot be written.
        """
        pieces: dict[str, list[Piece]] = {name: [] for name in self.tensors}
        shards = []
        for index, planned in enumerate(plan_shards(self.tensors, max_shard_bytes)):
            file = name_of(index)
            parts = {p.name: p.of(self.tensors[p.name]) for p in planned}
            written = write_shard(folder / file, parts)
            shards.append(
                ShardLayout(
                    file,
                    written.n_bytes,
                    written.crc32,
                    written.header_bytes,
                    written.header_crc32,
                )
            )
            for p in planned:
                offset, crc = written.offsets[p.name], written.crcs[p.name]
                pieces[p.name].append(Piece(index, p.start, p.stop, offset, crc))
        layouts = {
            name: TensorLayout(
                tensor.dtype, tuple(tensor.shape), name in self.by_row, tuple(pieces[name])
            )
            for name, tensor in self.tensors.items()
        }
        return Layout(self.step, self.state, self.n_rows, layouts, tuple(shards))


def require_limits(step: int, keep: int, max_shard_bytes: int) -> None:
    """Raise ValueError where :func:`save_checkpoint` does not allow one of them."""
    if step < 0 or keep < 1 or max_shard_bytes < 1:
        raise ValueError(
            "step must be at least 0, keep and max_shard_bytes at least 1, "
            f"got {step}, {keep}, {max_shard_bytes}"
        )


def new_path(folder: Path, step: int, n_bytes: int) -> Path:
    """Where a checkpoint of so many bytes of tensors will be; what a crash left there is removed.

    Raises:
        InputError: the disk has not enough space.
    """
    remove_stale(folder)
    require_free(folder, n_bytes + (1 << 20), f"the checkpoint of step {step}")
    return free_name(folder, step)


def temporary_of(path: Path) -> Path:
    """Where a checkpoint is while it is written."""
    return path.with_name(path.name + SUFFIX)


def complete(path: Path, layout: Layout) -> None:
    """Give a checkpoint whose shards are written its manifest, then its name."""
    temporary = temporary_of(path)
    write_manifest(temporary, layout.to_plain())
    sync_folder(temporary)
    os.rename(temporary, path)


def settle(path: Path, *, keep: int) -> None:
    """Make the name of a new checkpoint survive a power cut, and remove the oldest ones."""
    sync_folder(path.parent)
    remove_older(path, keep=keep)


def plan_shards(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[list[PlannedPiece]]:
    """Which rows go to which shard: in order, each shard filled up, one piece of a tensor each."""
    shards: list[list[PlannedPiece]] = []
    room = -1
    for name, tensor in tensors.items():
        n = 1 if tensor.ndim == 0 else len(tensor)
        row_bytes = tensor.numel() * tensor.element_size() // n if n else 0
        start = 0
        while True:  # once for a tensor without rows: it has an empty piece
            if room < row_bytes:
                shards.append([])
                room = max_shard_bytes
            stop = min(n, start + max(1, room // row_bytes)) if row_bytes else n
            shards[-1].append(PlannedPiece(name, start, stop))
            room -= (stop - start) * row_bytes
            if (start := stop) == n:
                break
    return shards


def _rows(
    tensors: Mapping[str, Tensor], by_row: Collection[str] | None
) -> tuple[frozenset[str], int | None]:
    """The tensors by row, and the number of rows; None without any."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, shape in shapes.items():
        require_label_kind(name, shape, tensors[name].dtype)
    rows = row_names(shapes) if by_row is None else frozenset(by_row)
    if not rows <= set(shapes):
        raise ValueError(f"by_row must name tensors, got {sorted(rows - set(shapes))}")
    lengths = {name: shapes[name][:1] for name in sorted(rows)}
    if len(set(lengths.values())) > 1 or () in lengths.values():
        raise ValueError(f"tensors by row must have equal lengths, got {lengths}")
    for name in LABELS:
        if name in tensors and name not in rows:
            raise ValueError(f"{name} must be by row, with as many rows as other tensors")
    return rows, next(iter(lengths.values()))[0] if rows else None
