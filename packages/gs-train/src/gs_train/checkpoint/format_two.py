# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint of format 2: each piece of a tensor has its own checksum.

So only the pieces that hold wanted rows are read, and each that is read is verified.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gs_train.checkpoint.blocks import Report, read_past, read_rows
from gs_train.checkpoint.checksums import combined
from gs_train.checkpoint.content import SavedFile, Wanted
from gs_train.checkpoint.dtypes import dtype_name
from gs_train.checkpoint.layout import Layout, Piece
from gs_train.checkpoint.manifest import MANIFEST, VERSION, damaged_checkpoint
from gs_train.checkpoint.shards import header_entry, open_shard, read_exactly


class FormatTwo:
    """See :class:`gs_train.checkpoint.content.Content`."""

    version = VERSION
    dropped: tuple[str, ...] = ()

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._layout = layout
        self._pieces = layout.by_shard()
        self.step = layout.step
        self.state = dict(layout.state)
        self.shapes = {name: tensor.shape for name, tensor in layout.tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in layout.tensors.items()}
        self.n_rows = layout.n_rows
        self.by_row = frozenset(name for name, of in layout.tensors.items() if of.by_row)
        self.files = tuple(SavedFile(shard.file, shard.n_bytes) for shard in layout.shards)

    @classmethod
    def open(cls, path: Path, manifest: Mapping[str, Any]) -> FormatTwo:
        """The content that a manifest describes.

        Raises:
            InputError: the manifest is not one that was written by a trainer.
        """
        try:
            return cls(path, Layout.from_plain(manifest))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise damaged_checkpoint(path / MANIFEST) from None

    def fill(self, wanted: Mapping[str, Wanted], report: Report) -> None:
        """See `Content.fill`.

        Cost: reads the headers of the shards, and the pieces, that hold wanted rows.
        """
        for index, pieces in enumerate(self._pieces):
            in_shard = [
                (piece, wanted[name])
                for name, piece in pieces
                if name in wanted and _is_wanted(piece, wanted[name])
            ]
            if not in_shard:
                continue
            shard = self._layout.shards[index]
            with open_shard(self._path / shard.file, n_bytes=shard.n_bytes) as file:
                self._check_header(file, index)
                for piece, of in in_shard:
                    file.seek(piece.offset)
                    crc = read_rows(
                        file, of.target, of.rows, piece.start, piece.stop, report=report
                    )
                    if crc != piece.crc32:
                        raise damaged_checkpoint(self._path / shard.file)

    def verify(self, report: Report) -> None:
        """See `Content.verify`."""
        for index, shard in enumerate(self._layout.shards):
            damaged = damaged_checkpoint(self._path / shard.file)
            with open_shard(self._path / shard.file, n_bytes=shard.n_bytes) as file:
                crc = self._check_header(file, index)
                report(shard.header_bytes)
                for name, piece in self._pieces[index]:
                    n_bytes = self._layout.tensors[name].bytes_of(piece)
                    if read_past(file, n_bytes, report=report) != piece.crc32:
                        raise damaged
                    crc = combined(crc, piece.crc32, n_bytes)
            if crc != shard.crc32:
                raise damaged

    def _check_header(self, file: BinaryIO, index: int) -> int:
        """Read past a shard's header, which must say of the pieces what the manifest says.

        Returns:
            CRC-32 of the header.

        Raises:
            InputError: it says something else, or its checksum is wrong.
        """
        shard = self._layout.shards[index]
        data = read_exactly(file, shard.header_bytes)
        crc = zlib.crc32(data)
        damaged = damaged_checkpoint(self._path / shard.file)
        if crc != shard.header_crc32 or struct.unpack_from("<Q", data) != (len(data) - 8,):
            raise damaged
        try:
            entries = json.loads(data[8:])
            entries.pop("__metadata__", None)
            # As text: numbers that are equal and written in another way are other types.
            is_same = _sorted_text(entries) == _sorted_text(self._expected_header(index))
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise damaged from None
        if not is_same:
            raise damaged
        return crc

    def _expected_header(self, index: int) -> dict[str, Any]:
        start = self._layout.shards[index].header_bytes
        expected = {}
        for name, piece in self._pieces[index]:
            tensor = self._layout.tensors[name]
            expected[name] = header_entry(
                dtype_name(tensor.dtype),
                tensor.shape_of(piece),
                piece.offset - start,
                tensor.bytes_of(piece),
            )
        return expected


def _is_wanted(piece: Piece, of: Wanted) -> bool:
    return of.rows.meets(piece.start, piece.stop)


def _sorted_text(plain: object) -> str:
    return json.dumps(plain, sort_keys=True)
