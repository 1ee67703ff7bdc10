# SPDX-License-Identifier: Apache-2.0
"""Safetensors files written and read a block at a time, checksummed on the way.

The format is that of the safetensors library (little-endian header length, JSON header, the
tensors' bytes one after the other), so that library reads these files. Reading and writing here
is streamed instead: a block at a time between the file and the tensor's own memory, whatever its
device, so that saving needs no second copy of what is saved.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from gs_train.checkpoint.blocks import CutOffError, write_all, write_tensor
from gs_train.checkpoint.checksums import combined
from gs_train.checkpoint.dtypes import dtype_name
from gs_train.checkpoint.manifest import damaged_checkpoint
from gs_train.errors import InputError
from gs_train.files.small_files import open_regular

MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class WrittenShard:
    """What a new file holds.

    Attributes:
        n_bytes, crc32: of the file.
        header_bytes, header_crc32: of all that precedes the first tensor.
        offsets, crcs: by tensor, where its bytes begin in the file and their CRC-32.
    """

    n_bytes: int
    crc32: int
    header_bytes: int
    header_crc32: int
    offsets: dict[str, int]
    crcs: dict[str, int]


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> WrittenShard:
    """Write tensors to a safetensors file and sync it.

    Args:
        path: a new file.
        tensors: of any device and strides.

    Cost: memory for one block of 16 MiB; one pass; CRC-32 runs at one GB/s or more.
    """
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    entries: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        entries[name] = header_entry(dtype_name(tensor.dtype), list(tensor.shape), at, sizes[name])
        at += sizes[name]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(f"tensors must need less of a header, got {len(text):,} bytes of it")
    header = struct.pack("<Q", len(text)) + text
    crc = header_crc = zlib.crc32(header)
    offsets, crcs = {}, {}
    at = len(header)
    with open(path, "xb", buffering=0) as file:
        write_all(file, header)
        for name, tensor in tensors.items():
            crcs[name] = write_tensor(file, tensor)
            crc = combined(crc, crcs[name], sizes[name])
            offsets[name] = at
            at += sizes[name]
        os.fsync(file.fileno())
    return WrittenShard(at, crc, len(header), header_crc, offsets, crcs)


def header_entry(dtype: str, shape: list[int], start: int, n_bytes: int) -> dict[str, Any]:
    """What the header of a safetensors file says of one tensor.

    Args:
        start: of its bytes, counted from the end of the header.
    """
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, start + n_bytes]}


@contextlib.contextmanager
def open_shard(path: Path, *, n_bytes: int) -> Iterator[BinaryIO]:
    """A shard to read from.

    Raises:
        InputError: it cannot be read, has another size than ``n_bytes`` or, within the block, ends
            too early; the file is named.
    """
    try:
        with open_regular(path, follow=False) as file:
            if os.fstat(file.fileno()).st_size != n_bytes:
                raise damaged_checkpoint(path)
            yield file
    except CutOffError:
        raise damaged_checkpoint(path) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def read_exactly(file: BinaryIO, n_bytes: int) -> bytes:
    """``n_bytes`` of an unbuffered file; their number has been checked.

    Raises:
        CutOffError: the file ends too early.
    """
    data = bytearray()
    while len(data) < n_bytes:
        block = file.read(n_bytes - len(data))
        if not block:
            raise CutOffError
        data += block
    return bytes(data)
