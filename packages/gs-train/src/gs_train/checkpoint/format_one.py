# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint of format 1, which earlier versions wrote, as format 2 would hold it.

Format 1 has one checksum for each file, so a file is read whole for any row in it. It has no keys:
a row's key is its index, and the next one their number. The tensors under ``ahead/``, which later
versions need not, are dropped.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gs_train.checkpoint.blocks import Report, read_past, read_rows
from gs_train.checkpoint.content import SavedFile, Wanted
from gs_train.checkpoint.dtypes import DTYPES, MOST_DIMENSIONS
from gs_train.checkpoint.manifest import (
    MANIFEST,
    OLD_VERSION,
    damaged_checkpoint,
    require_shard_name,
)
from gs_train.checkpoint.row_names import KEYS, MEANS, NEXT_KEY, row_names
from gs_train.checkpoint.shards import MOST_HEADER_BYTES, open_shard, read_exactly
from gs_train.errors import InputError
from gs_train.files.whole import whole

_AHEAD = "ahead/"
_MOST_KEYS = 2**31


@dataclass(frozen=True)
class _Part:
    """Rows ``start:stop`` of a tensor, and where the wanted ones of them go."""

    start: int
    stop: int
    wanted: Wanted


class FormatOne:
    """See :class:`gs_train.checkpoint.content.Content`."""

    version = OLD_VERSION

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self._path = path
        self._tensors: Mapping[str, Any] = manifest["tensors"]
        self._shards: list[Any] = manifest["shards"]
        self.step: int = manifest["step"]
        self.state: dict[str, Any] = manifest["state"]
        self.dropped = tuple(name for name in self._tensors if name.startswith(_AHEAD))
        kept = {name: of for name, of in self._tensors.items() if not name.startswith(_AHEAD)}
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(of["shape"]) for name, of in kept.items()
        }
        self.dtypes = {name: DTYPES[of["dtype"]] for name, of in kept.items()}
        rows = row_names(self.shapes)
        self.n_rows = self.shapes[min(rows)][0] if rows else None
        if self.n_rows is not None:
            self.shapes |= {KEYS: (self.n_rows,), NEXT_KEY: ()}
            self.dtypes |= {KEYS: torch.int32, NEXT_KEY: torch.int64}
        self.by_row = row_names(self.shapes)
        self.files = tuple(SavedFile(shard["file"], shard["bytes"]) for shard in self._shards)

    @classmethod
    def open(cls, path: Path, manifest: Mapping[str, Any]) -> FormatOne:
        """The content that a manifest describes.

        Raises:
            InputError: the manifest is not one that was written by a trainer.
        """
        try:
            _require_sound(manifest)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise damaged_checkpoint(path / MANIFEST) from None
        return cls(path, manifest)

    def fill(self, wanted: Mapping[str, Wanted], report: Report) -> None:
        """See `Content.fill`.

        Cost: reads the files that hold wanted rows, each once and whole.
        """
        in_shard: list[dict[str, _Part]] = [{} for _ in self._shards]
        for name, of in wanted.items():
            if name == KEYS:
                of.target.copy_(of.rows.ids(torch.int32))
                continue
            if name == NEXT_KEY:
                of.target.fill_(self.n_rows or 0)
                continue
            for index, start, stop in self._tensors[name]["pieces"]:
                if of.rows.meets(start, stop):
                    in_shard[index][name] = _Part(start, stop, of)
        for index, parts in enumerate(in_shard):
            if parts:
                self._read(index, parts, report)

    def verify(self, report: Report) -> None:
        """See `Content.verify`."""
        for index in range(len(self._shards)):
            self._read(index, {}, report)

    def _read(self, index: int, parts: Mapping[str, _Part], report: Report) -> None:
        """Read a shard, keep what is wanted of it, and check its checksum."""
        shard = self._shards[index]
        path = self._path / shard["file"]
        damaged = damaged_checkpoint(path)
        with open_shard(path, n_bytes=shard["bytes"]) as file:
            crc, spans = _header(file, parts, shard["bytes"], damaged)
            report(shard["bytes"] - sum(n_bytes for n_bytes, _ in spans))
            for n_bytes, name in spans:
                if name in parts:
                    part = parts[name]
                    target, rows = part.wanted.target, part.wanted.rows
                    crc = read_rows(file, target, rows, part.start, part.stop, crc, report)
                else:
                    crc = read_past(file, n_bytes, crc, report)
        if crc != shard["crc32"]:
            raise damaged


def _header(
    file: BinaryIO, parts: Mapping[str, _Part], n_bytes: int, damaged: InputError
) -> tuple[int, list[tuple[int, str]]]:
    """Read a shard's header: its CRC-32, and size and name of each tensor in the order of bytes."""
    try:
        prefix = read_exactly(file, 8)
        (length,) = struct.unpack("<Q", prefix)
        if length > min(n_bytes - 8, MOST_HEADER_BYTES):
            raise damaged
        header = read_exactly(file, length)
        entries = json.loads(header)
        for name, part in parts.items():
            target, entry = part.wanted.target, entries[name]
            whole_shape = [part.stop - part.start, *target.shape[1:]]
            # A tensor without dimensions is read into a target of one row.
            if (entry["shape"] or [1]) != whole_shape or DTYPES[entry["dtype"]] != target.dtype:
                raise damaged
        spans = _spans(entries, n_bytes - 8 - length)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise damaged from None
    return zlib.crc32(header, zlib.crc32(prefix)), spans


def _spans(entries: Mapping[str, Any], n_bytes: int) -> list[tuple[int, str]]:
    """Size and name of each tensor, as they follow each other in the file.

    Nothing may be believed before the checksum is known: this raises what a wrong kind of value
    raises, or ValueError where the tensors are not one after the other ``n_bytes`` long.
    """
    found = []
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        shape = entry["shape"]
        if any(type(n) is not int or n < 0 for n in (start, end, *shape)):
            raise ValueError("sizes must be whole numbers")
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError("a tensor must have fewer dimensions")
        if end - start != math.prod(shape) * DTYPES[entry["dtype"]].itemsize:
            raise ValueError("a tensor must have the size of its shape")
        found.append((start, end, name))
    at = 0
    for start, end, _ in sorted(found):
        if start != at:
            raise ValueError("tensors must follow each other")
        at = end
    if at != n_bytes:
        raise ValueError("tensors must fill the file")
    return [(end - start, name) for start, end, name in sorted(found)]


def _require_sound(manifest: Mapping[str, Any]) -> None:
    """Raise what a wrong kind of value raises, or ValueError."""
    whole(manifest["step"])
    dict.keys(manifest["state"])
    left = []  # bytes of each shard that no tensor has taken
    for shard in manifest["shards"]:
        require_shard_name(shard["file"])
        whole(shard["crc32"])
        left.append(whole(shard["bytes"]))
    for name, entry in manifest["tensors"].items():
        item_bytes = DTYPES[entry["dtype"]].itemsize
        if len(entry["shape"]) > MOST_DIMENSIONS:
            raise ValueError("a tensor must have fewer dimensions")
        shape = [whole(n) for n in entry["shape"]]
        whole(item_bytes * math.prod(max(n, 1) for n in shape))
        n_rows, row_bytes = (shape or [1])[0], item_bytes * math.prod(shape[1:])
        done, last = 0, -1
        for index, start, stop in entry["pieces"]:
            whole(index), whole(start), whole(stop)
            if not (last < index and done == start <= stop):
                raise ValueError("pieces must follow each other")
            left[index] -= (stop - start) * row_bytes
            if left[index] < 0:
                raise ValueError("a shard must hold its tensors")
            done, last = stop, index
        if done != n_rows or last < 0:
            raise ValueError("pieces must hold every row")
        if name in (KEYS, NEXT_KEY):
            raise ValueError("format 1 has no keys")
        if name == MEANS and not (row_bytes and n_rows <= _MOST_KEYS):
            raise ValueError("there must be values for each row, and a key")
