# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are read: which one, and all or some rows of its tensors."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gs_train.checkpoint.blocks import Report
from gs_train.checkpoint.content import Content, SavedFile, Wanted
from gs_train.checkpoint.folder import is_complete, is_newer, named_checkpoints
from gs_train.checkpoint.format_one import FormatOne
from gs_train.checkpoint.format_two import FormatTwo
from gs_train.checkpoint.labels import are_keys
from gs_train.checkpoint.manifest import MANIFEST, OLD_VERSION, damaged_checkpoint, read_manifest
from gs_train.checkpoint.row_names import KEYS
from gs_train.checkpoint.selection import RowSelection
from gs_train.errors import InputError


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        step: optimizer steps done.
        tensors: by name, as saved.
        state: the JSON-able rest.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class SavedCheckpoint:
    """A checkpoint on disk, whose tensors are read when they are asked for.

    Attributes:
        path: its folder.
        version: of the format that it was written in.
        step: optimizer steps done.
        state: the JSON-able rest.
        shapes, dtypes: of the tensors, by name.
        n_rows: Gaussians; None where no tensor has a row for each.
        by_row: tensors whose first dimension counts the Gaussians; of these, some rows can be read.
        files: the shards.
        dropped: tensors that an earlier format has and that are not read.
    """

    def __init__(self, path: Path, content: Content) -> None:
        self._content = content
        self.path = path
        self.version = content.version
        self.step = content.step
        self.state = content.state
        self.shapes = content.shapes
        self.dtypes = content.dtypes
        self.n_rows = content.n_rows
        self.by_row = content.by_row
        self.files: tuple[SavedFile, ...] = content.files
        self.dropped = content.dropped

    @property
    def is_of_old_format(self) -> bool:
        """Whether an earlier version of gs-train wrote it: it has no keys of its own."""
        return self.version == OLD_VERSION

    def read(
        self,
        names: Iterable[str] | None = None,
        *,
        rows: slice | Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> dict[str, Tensor]:
        """Some tensors, or all, or some of their rows, bit for bit as they were saved.

        Args:
            names: of the tensors; all when None, all that are by row where rows are given.
            rows: as for :meth:`fill`.
            device: where the tensors shall be.

        Raises:
            InputError, ValueError, TypeError, IndexError: as :meth:`fill`.

        Cost: as :meth:`fill`.
        """
        if names is None:
            names = [name for name in self.shapes if rows is None or name in self.by_row]
        selection = self._selection(rows)
        tensors = {
            name: torch.empty(self._shape(name, selection), dtype=self.dtypes[name], device=device)
            for name in names
        }
        self._fill(tensors, selection, lambda n_bytes: None)
        return tensors

    def fill(
        self,
        targets: Mapping[str, Tensor],
        *,
        rows: slice | Tensor | None = None,
        report: Report = lambda n_bytes: None,
    ) -> None:
        """Read some tensors into ones that are there, of any device and strides.

        Args:
            targets: by name. Where ``rows`` are given, each for these rows of a tensor by row.
            rows: a slice without a step, or (R,) int64, sorted and unique; all when None.
            report: called after each block of a file with the number of bytes read since; what it
                raises ends the reading, with targets partly filled.

        Raises:
            InputError: a file that holds some of them is damaged, or keys are not distinct or
                negative; targets may be partly filled.
            IndexError: a row is negative or too large.
            TypeError: rows of another type.
            ValueError: a target's shape or dtype is another, rows are not sorted and unique, or
                rows are asked of a tensor that has none.

        Cost: reads and verifies the pieces of tensors that hold wanted rows, each once (format 1:
            the files); memory for 16 MiB where a target is not contiguous on the CPU or wants only
            some rows of a piece. Reading keys sorts a copy of them.
        """
        self._fill(targets, self._selection(rows), report)

    def verify(self, report: Report = lambda n_bytes: None) -> None:
        """Read everything and check it.

        Args:
            report: called now and then with the number of bytes read since; what it raises ends
                the reading.

        Raises:
            InputError: a file is damaged or cannot be read; it is named.

        Cost: one sequential read of all files, one more of the keys.
        """
        self._content.verify(report)
        if KEYS in self.shapes:
            self.read([KEYS])

    def damaged(self) -> InputError:
        """The error for a state or tensors that are not what the trainer saves."""
        return damaged_checkpoint(self.path / MANIFEST)

    def _selection(self, rows: slice | Tensor | None) -> RowSelection | None:
        if rows is None:
            return None
        if self.n_rows is None:
            raise ValueError(f"rows must not be given, {self.path} holds no tensor by row")
        return RowSelection.of(rows, self.n_rows)

    def _shape(self, name: str, selection: RowSelection | None) -> tuple[int, ...]:
        shape = self.shapes[name]
        if selection is None:
            return shape
        if name not in self.by_row:
            raise ValueError(f"rows must be of tensors by row, {name} has none")
        return (len(selection), *shape[1:])

    def _fill(
        self, targets: Mapping[str, Tensor], selection: RowSelection | None, report: Report
    ) -> None:
        wanted: dict[str, Wanted] = {}
        for name, target in targets.items():
            expected = self._shape(name, selection), self.dtypes[name]
            if (tuple(target.shape), target.dtype) != expected:
                raise ValueError(
                    f"{name} must be {expected[0]} {expected[1]}, got {tuple(target.shape)} "
                    f"{target.dtype}"
                )
            by_rows = target if target.ndim else target.reshape(1)
            wanted[name] = Wanted(by_rows, selection or RowSelection(0, len(by_rows)))
        self._content.fill(wanted, report)
        if KEYS in targets and not are_keys(targets[KEYS]):
            raise damaged_checkpoint(
                self.path / MANIFEST, why=f"{KEYS} must be distinct and not negative"
            )


def open_checkpoint(path: str | Path) -> SavedCheckpoint:
    """Look at a checkpoint without reading its tensors.

    Args:
        path: a folder that ``save_checkpoint`` returned, of this version or an earlier one.

    Raises:
        InputError: it is no checkpoint, another format version, or incomplete; the file is named.
    """
    path = Path(path)
    manifest = read_manifest(path)
    is_old = manifest["version"] == OLD_VERSION
    content: Content = (FormatOne if is_old else FormatTwo).open(path, manifest)
    for shard in content.files:
        file = path / shard.name
        size = None
        with contextlib.suppress(OSError):
            found = os.lstat(file)  # a link would lead out of the checkpoint
            size = found.st_size if stat.S_ISREG(found.st_mode) else None
        if size != shard.n_bytes:
            raise InputError(
                f"{file} must have {shard.n_bytes:,} bytes, got "
                f"{'no such file' if size is None else f'{size:,}'}; "
                "the checkpoint is damaged, remove it and resume from an earlier one"
            )
    return SavedCheckpoint(path, content)


def load_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint and verify all of it.

    Args:
        path: a folder that ``save_checkpoint`` returned, of this version or an earlier one.
        device: where the tensors shall be.

    Returns:
        Bit for bit what was saved.

    Raises:
        InputError: it is no checkpoint, another format version, damaged or incomplete; the file is
            named.

    Cost: one sequential read; no copy beyond the tensors themselves on the CPU, 16 MiB elsewhere.
    """
    saved = open_checkpoint(path)
    return Checkpoint(saved.step, saved.read(device=device), saved.state)


def open_latest(folder: str | Path) -> SavedCheckpoint | None:
    """Look at the newest complete checkpoint, and say which newer ones are not complete.

    A running ``fit`` removes old checkpoints: where the newest is gone before it has been looked
    at, a newer one is there.

    Returns:
        None where there is no complete checkpoint.

    Raises:
        InputError: as :func:`open_checkpoint`.
    """
    seen: Path | None = None
    while named := named_checkpoints(Path(folder)):
        newest = _newest_complete(named)
        if newest is not None:
            try:
                checkpoint = open_checkpoint(newest)
            except InputError:
                if newest.exists():
                    raise
            else:
                _say_incomplete(named[named.index(newest) + 1 :], newest)
                return checkpoint
        if seen is not None and not is_newer(named[-1], seen):
            return None
        seen = named[-1]
    return None


def _newest_complete(paths: list[Path]) -> Path | None:
    # No generator: Python loses a Ctrl-C that comes while one ends that was left halfway.
    for path in reversed(paths):
        if is_complete(path):
            return path
    return None


def _say_incomplete(paths: list[Path], newest: Path) -> None:
    for path in paths:
        if path.exists():
            print(
                f"{path} has no {MANIFEST} that can be read: {newest.name} is taken instead",
                file=sys.stderr,
            )
