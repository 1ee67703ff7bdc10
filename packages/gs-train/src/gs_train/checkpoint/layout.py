# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a checkpoint of format 2 lie: the content of its manifest.

A checksum finds what disks do; what somebody wrote on purpose is checked as well. Whoever has a
`Layout` can rely on its types, on pieces that lie within their shards one after the other, and on
tensors no larger than the shards that hold them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gs_train.checkpoint.dtypes import DTYPES, MOST_DIMENSIONS, dtype_name
from gs_train.checkpoint.labels import LABELS, require_label_kind
from gs_train.checkpoint.manifest import require_shard_name
from gs_train.checkpoint.shards import MOST_HEADER_BYTES
from gs_train.files.whole import whole

_CRCS = 2**32


@dataclass(frozen=True)
class Piece:
    """Some rows of a tensor in a shard.

    Attributes:
        shard: its index.
        start, stop: rows, counted along the tensor's first dimension.
        offset: of the first byte in the file.
        crc32: of the bytes.
    """

    shard: int
    start: int
    stop: int
    offset: int
    crc32: int


@dataclass(frozen=True)
class TensorLayout:
    """A tensor and where it lies.

    Attributes:
        dtype, shape: of the tensor.
        by_row: whether the first dimension counts the Gaussians.
        pieces: in the order of their rows, at most one in a shard. A tensor without dimensions has
            one row, and one without rows an empty piece.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    by_row: bool
    pieces: tuple[Piece, ...]

    def bytes_of(self, piece: Piece) -> int:
        """The size of a piece."""
        return (piece.stop - piece.start) * math.prod(self.shape[1:]) * self.dtype.itemsize

    def shape_of(self, piece: Piece) -> list[int]:
        """The shape of a piece, as the header of its shard has it."""
        return [piece.stop - piece.start, *self.shape[1:]] if self.shape else []


@dataclass(frozen=True)
class ShardLayout:
    """A file of a checkpoint.

    Attributes:
        file: its name, beside the manifest.
        n_bytes, crc32: of the file.
        header_bytes, header_crc32: of all that precedes its first piece.
    """

    file: str
    n_bytes: int
    crc32: int
    header_bytes: int
    header_crc32: int


@dataclass(frozen=True)
class Layout:
    """The content of a manifest.

    Attributes:
        step: optimizer steps done.
        state: the JSON-able rest of what the trainer saves.
        n_rows: Gaussians; None where no tensor has a row for each.
        tensors: by name.
        shards: in the order of their indices.
    """

    step: int
    state: Mapping[str, Any]
    n_rows: int | None
    tensors: Mapping[str, TensorLayout]
    shards: tuple[ShardLayout, ...]

    def to_plain(self) -> dict[str, Any]:
        """As :meth:`from_plain` takes it."""
        return {
            "step": self.step,
            "rows": self.n_rows,
            "state": self.state,
            "tensors": {
                name: {
                    "dtype": dtype_name(tensor.dtype),
                    "shape": list(tensor.shape),
                    "by_row": tensor.by_row,
                    "pieces": [
                        {
                            "shard": piece.shard,
                            "rows": [piece.start, piece.stop],
                            "offset": piece.offset,
                            "crc32": piece.crc32,
                        }
                        for piece in tensor.pieces
                    ],
                }
                for name, tensor in self.tensors.items()
            },
            "shards": [
                {
                    "file": shard.file,
                    "bytes": shard.n_bytes,
                    "crc32": shard.crc32,
                    "header_bytes": shard.header_bytes,
                    "header_crc32": shard.header_crc32,
                }
                for shard in self.shards
            ],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Layout:
        """What :meth:`to_plain` made, checked.

        Raises:
            ValueError: a number or a name does not fit.
            AttributeError, LookupError, TypeError: a value is missing or of a wrong kind.
        """
        dict.keys(plain["state"])
        n_rows = None if plain["rows"] is None else whole(plain["rows"])
        layout = cls(
            step=whole(plain["step"]),
            state=plain["state"],
            n_rows=n_rows,
            tensors={
                name: _tensor(name, entry, n_rows) for name, entry in plain["tensors"].items()
            },
            shards=tuple(_shard(entry) for entry in plain["shards"]),
        )
        if n_rows is not None and not any(tensor.by_row for tensor in layout.tensors.values()):
            raise ValueError("rows must be those of a tensor")
        _require_no_gaps(layout)
        return layout

    def by_shard(self) -> list[list[tuple[str, Piece]]]:
        """Names and pieces in each shard, in the order of their bytes."""
        found: list[list[tuple[str, Piece]]] = [[] for _ in self.shards]
        for name, tensor in self.tensors.items():
            for piece in tensor.pieces:
                found[piece.shard].append((name, piece))
        for pieces in found:
            pieces.sort(key=lambda of: (of[1].offset, self.tensors[of[0]].bytes_of(of[1])))
        return found


def _tensor(name: str, entry: Mapping[str, Any], n_rows: int | None) -> TensorLayout:
    dtype = DTYPES[entry["dtype"]]
    if len(entry["shape"]) > MOST_DIMENSIONS:
        raise ValueError("a tensor must have fewer dimensions")
    shape = tuple(whole(n) for n in entry["shape"])
    whole(dtype.itemsize * math.prod(max(n, 1) for n in shape))
    require_label_kind(name, shape, dtype)
    by_row = entry["by_row"]
    if type(by_row) is not bool or (by_row and shape[0] != n_rows):
        raise ValueError("a tensor by row must have a row for each Gaussian")
    if name in LABELS and not by_row:
        raise ValueError("labels must be by row")
    pieces = tuple(_piece(of) for of in entry["pieces"])
    done, last = 0, -1
    for piece in pieces:
        if not (last < piece.shard and done == piece.start <= piece.stop):
            raise ValueError("pieces must follow each other")
        done, last = piece.stop, piece.shard
    if not pieces or done != (shape[0] if shape else 1):
        raise ValueError("pieces must hold every row")
    return TensorLayout(dtype, shape, by_row, pieces)


def _piece(entry: Mapping[str, Any]) -> Piece:
    start, stop = entry["rows"]
    return Piece(
        whole(entry["shard"]),
        whole(start),
        whole(stop),
        whole(entry["offset"]),
        whole(entry["crc32"], below=_CRCS),
    )


def _shard(entry: Mapping[str, Any]) -> ShardLayout:
    return ShardLayout(
        require_shard_name(entry["file"]),
        whole(entry["bytes"]),
        whole(entry["crc32"], below=_CRCS),
        whole(entry["header_bytes"], below=8 + MOST_HEADER_BYTES + 1),
        whole(entry["header_crc32"], below=_CRCS),
    )


def _require_no_gaps(layout: Layout) -> None:
    """Check that the pieces in a shard follow its header, and each other, to the end of the file.

    Raises:
        IndexError: a piece names a shard that there is not.
        ValueError: they do not, or two shards are one file.
    """
    if len({shard.file for shard in layout.shards}) != len(layout.shards):
        raise ValueError("shards must be different files")
    for shard, pieces in zip(layout.shards, layout.by_shard()):
        if shard.header_bytes < 8:
            raise ValueError("a header must have a length")
        at = shard.header_bytes
        for name, piece in pieces:
            if piece.offset != at:
                raise ValueError("pieces must follow each other in their shard")
            at += layout.tensors[name].bytes_of(piece)
        if at != shard.n_bytes:
            raise ValueError("pieces must fill their shard")
