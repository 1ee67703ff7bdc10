# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: folders of safetensors shards with a JSON manifest, complete or invisible.

A checkpoint is written under a temporary name, synced and renamed, so whatever carries the name
``step_000300`` is whole; ``step_000300.1`` is a later save of the same step. The manifest lists
the shards with sizes and checksums, which rows of which tensor each holds, and the trainer's state.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gs_train.atomic import SUFFIX, disk_full_is_input_error, require_free, sync_folder
from gs_train.errors import InputError
from gs_train.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    damaged_checkpoint,
    read_manifest,
    shard_name,
    write_manifest,
)
from gs_train.shards import DTYPES, dtype_name, read_shard, write_shard

_NAME = re.compile(r"step_(\d{1,18})(?:\.(\d{1,18}))?", re.ASCII)
_STALE = re.compile(r"step_\d+(?:\.\d+)?" + re.escape(SUFFIX))


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
        step: optimizer steps done.
        state: the JSON-able rest.
        shapes, dtypes: of the tensors, by name.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self._manifest = manifest
        self.path = path
        self.step: int = manifest["step"]
        self.state: dict[str, Any] = manifest["state"]
        entries: Mapping[str, Any] = manifest["tensors"]
        self.shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
        self.dtypes = {name: DTYPES[entry["dtype"]] for name, entry in entries.items()}

    def read(
        self, names: Iterable[str] | None = None, *, device: torch.device | str = "cpu"
    ) -> dict[str, Tensor]:
        """Some tensors, or all, bit for bit as they were saved.

        Raises:
            InputError: a file that holds some of them is damaged; it is named.

        Cost: reads and verifies the files that hold them, each once.
        """
        tensors = {
            name: torch.empty(self.shapes[name], dtype=self.dtypes[name], device=device)
            for name in (self.shapes if names is None else names)
        }
        self.fill(tensors)
        return tensors

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read some tensors into ones that are there, of any device and strides.

        Raises:
            InputError: a file that holds some of them is damaged; targets may be partly filled.
            ValueError: a target's shape or dtype is another.

        Cost: as `read`; memory for 16 MiB where a target is not contiguous on the CPU.
        """
        shards = self._manifest["shards"]
        wanted: list[dict[str, Tensor]] = [{} for _ in shards]
        for name, target in targets.items():
            expected = self.shapes[name], self.dtypes[name]
            if (tuple(target.shape), target.dtype) != expected:
                raise ValueError(
                    f"{name} must be {expected[0]} {expected[1]}, got {tuple(target.shape)} "
                    f"{target.dtype}"
                )
            for index, start, stop in self._manifest["tensors"][name]["pieces"]:
                wanted[index][name] = _rows(target, _Piece(name, start, stop))
        for shard, parts in zip(shards, wanted):
            if parts:
                read_shard(self.path / shard["file"], parts, crc=shard["crc32"])

    def damaged(self) -> InputError:
        """The error for a state or tensors that are not what the trainer saves."""
        return damaged_checkpoint(self.path / MANIFEST)


@dataclass(frozen=True)
class _Piece:
    """Rows ``start:stop`` of a tensor."""

    name: str
    start: int
    stop: int


def save_checkpoint(
    folder: str | Path,
    *,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int = 2,
    max_shard_bytes: int = 2 << 30,
) -> Path:
    """Write a checkpoint and remove the oldest ones.

    Args:
        folder: holds one run's checkpoints; made when missing.
        step: optimizer steps done, at least 0.
        tensors: any device, strides and shape; larger ones than a shard are split by rows.
        state: what ``json.dumps`` takes; keys must be strings and tuples come back as lists.
        keep: how many of the newest checkpoints remain, this one included; at least 1.
        max_shard_bytes: of one file, exceeded only by a single row that is larger.

    Returns:
        The new checkpoint's folder.

    Raises:
        InputError: the disk has not enough space; nothing of it remains.
        TypeError: ``state`` cannot be written as JSON.
        ValueError: an argument is out of range or a tensor's dtype is not known to safetensors.

    Cost: one sequential write at the speed of the disk, 16 MiB of memory, one sync per shard.
        A crash at any moment leaves the earlier checkpoints and at most one temporary folder, which
        the next save removes.
    """
    folder = Path(folder)
    if step < 0 or keep < 1 or max_shard_bytes < 1:
        raise ValueError(
            "step must be at least 0, keep and max_shard_bytes at least 1, "
            f"got {step}, {keep}, {max_shard_bytes}"
        )
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "state": json.loads(json.dumps(dict(state))),
        "tensors": {
            name: {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "pieces": []}
            for name, tensor in tensors.items()
        },
        "shards": [],
    }
    remove_stale(folder)
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    require_free(folder, n_bytes + (1 << 20), f"the checkpoint of step {step}")

    path = _free_name(folder, step)
    temporary = path.with_name(path.name + SUFFIX)
    try:
        with disk_full_is_input_error(path):
            temporary.mkdir(parents=True)
            for index, pieces in enumerate(_plan(tensors, max_shard_bytes)):
                file = shard_name(index)
                size, crc = write_shard(
                    temporary / file, {p.name: _rows(tensors[p.name], p) for p in pieces}
                )
                manifest["shards"].append({"file": file, "bytes": size, "crc32": crc})
                for p in pieces:
                    manifest["tensors"][p.name]["pieces"].append([index, p.start, p.stop])
            write_manifest(temporary, manifest)
        sync_folder(temporary)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    for old in [p for p in _complete(folder) if p != path][: -(keep - 1) or None]:
        _remove(old)
    return path


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest complete checkpoint in a folder of checkpoints; None when there is none.

    Raises:
        InputError: the folder cannot be read.
    """
    found = _complete(Path(folder))
    return found[-1] if found else None


def incomplete_checkpoints(folder: str | Path) -> list[Path]:
    """Checkpoints newer than all complete ones whose manifest is gone or may not be read."""
    found = _named(Path(folder))
    complete = _complete(Path(folder))
    return found[found.index(complete[-1]) + 1 :] if complete else found


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
    while named := _named(Path(folder)):
        newest = next((path for path in reversed(named) if _is_complete(path)), None)
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


def _say_incomplete(paths: list[Path], newest: Path) -> None:
    for path in paths:
        if path.exists():
            print(
                f"{path} has no {MANIFEST} that can be read: {newest.name} is taken instead",
                file=sys.stderr,
            )


def is_newer(path: Path, other: Path) -> bool:
    """Whether one checkpoint was saved after another one of the same folder."""
    return _order(path) > _order(other)


def open_checkpoint(path: str | Path) -> SavedCheckpoint:
    """Look at a checkpoint without reading its tensors.

    Args:
        path: a folder that ``save_checkpoint`` returned.

    Raises:
        InputError: it is no checkpoint, another format version, or incomplete; the file is named.
    """
    path = Path(path)
    manifest = read_manifest(path)
    for shard in manifest["shards"]:
        file = path / shard["file"]
        size = None
        with contextlib.suppress(OSError):
            found = os.lstat(file)  # a link would lead out of the checkpoint
            size = found.st_size if stat.S_ISREG(found.st_mode) else None
        if size != shard["bytes"]:
            raise InputError(
                f"{file} must have {shard['bytes']:,} bytes, got "
                f"{'no such file' if size is None else f'{size:,}'}; "
                "the checkpoint is damaged, remove it and resume from an earlier one"
            )
    return SavedCheckpoint(path, manifest)


def load_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint and verify all of it.

    Args:
        path: a folder that ``save_checkpoint`` returned.
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


def _plan(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[list[_Piece]]:
    """Which rows go to which shard: in order, each shard filled up, one piece of a tensor each."""
    shards: list[list[_Piece]] = []
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
            shards[-1].append(_Piece(name, start, stop))
            room -= (stop - start) * row_bytes
            if (start := stop) == n:
                break
    return shards


def _rows(tensor: Tensor, piece: _Piece) -> Tensor:
    return tensor if tensor.ndim == 0 else tensor[piece.start : piece.stop]


def _named(folder: Path) -> list[Path]:
    """What carries the name of a checkpoint, oldest first."""
    try:
        found = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_order)


def _order(path: Path) -> tuple[int, int]:
    """Step and revision."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _complete(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return [path for path in _named(folder) if _is_complete(path)]


def _is_complete(path: Path) -> bool:
    return os.access(path / MANIFEST, os.R_OK)


def _free_name(folder: Path, step: int) -> Path:
    """``step_000300``, or its next revision: a saved one is never replaced in place."""
    found = [_order(path)[1] for path in _named(folder) if _order(path)[0] == step]
    revision = max(found, default=-1) + 1
    return folder / (f"step_{step:06d}" + (f".{revision}" if revision else ""))


def _remove(path: Path) -> None:
    """Hide, then delete: a crash in between leaves no half checkpoint under a good name."""
    hidden = path.with_name(path.name + SUFFIX)
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_surplus(folder: Path, *, keep: int) -> None:
    """Remove what a crash left behind a save: half checkpoints, and whole ones beyond the newest
    ``keep``. For the folder's only writer."""
    remove_stale(folder)
    for old in _complete(folder)[:-keep]:
        _remove(old)


def remove_stale(folder: Path) -> None:
    """Remove what a crash left of a checkpoint that was written or removed; for its only writer."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _STALE.fullmatch(path.name):
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)
