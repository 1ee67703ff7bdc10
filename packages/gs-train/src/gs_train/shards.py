# SPDX-License-Identifier: Apache-2.0
"""Safetensors files written and read a block at a time, checksummed on the way.

The format is that of the safetensors library (little-endian header length, JSON header, the
tensors' bytes one after the other), so that library reads these files. Reading and writing here
is streamed instead: a block at a time between the file and the tensor's own memory, whatever its
device, so that saving needs no second copy of what is saved.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from gs_train.errors import InputError
from gs_train.small_files import open_regular

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MOST_DIMENSIONS = 8
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BLOCK_BYTES = 16 << 20
_MOST_HEADER_BYTES = 16 << 20


def dtype_name(dtype: torch.dtype) -> str:
    """What safetensors calls ``dtype``; ValueError when it has no name here."""
    if dtype not in _NAMES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    return _NAMES[dtype]


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Write tensors to a safetensors file and sync it.

    Args:
        path: a new file.
        tensors: of any device and strides.

    Returns:
        Size in bytes and CRC-32 of the whole file.

    Cost: memory for one block of 16 MiB; one pass; CRC-32 runs at several GB/s, beyond disks.
    """
    entries: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > _MOST_HEADER_BYTES:
        raise ValueError(f"tensors must need less of a header, got {len(header):,} bytes of it")
    crc = 0
    with open(path, "xb", buffering=0) as file:
        for block in (struct.pack("<Q", len(header)), header):
            crc = zlib.crc32(block, crc)
            file.write(block)
        for tensor in tensors.values():
            for part in _blocks(tensor.detach()):
                data = part.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data
                crc = zlib.crc32(data, crc)
                written = 0
                while written < len(data):
                    written += file.write(data[written:])
        os.fsync(file.fileno())
    return 8 + len(header) + offset, crc


def read_shard(path: Path, targets: Mapping[str, Tensor], *, crc: int) -> None:
    """Fill tensors from a safetensors file.

    Args:
        path: what ``write_shard`` wrote.
        targets: what its tensors are copied into; same shapes and dtypes, any device and strides.
            Tensors of other names are read for the checksum alone.
        crc: the CRC-32 that the file must have.

    Raises:
        InputError: the file is damaged or cannot be read; targets may be partly filled.

    Cost: one pass; memory for one block where a target is not contiguous on the CPU.
    """
    damaged = InputError(f"{path} is damaged; remove its folder and resume from an earlier one")
    try:
        with open_regular(path, follow=False) as file:
            actual = _read(file, targets, damaged)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if actual != crc:
        raise damaged


def _read(file: BinaryIO, targets: Mapping[str, Tensor], damaged: InputError) -> int:
    """Fill the targets; the CRC-32 of the whole file is returned."""
    n_bytes = os.fstat(file.fileno()).st_size
    try:
        prefix = file.read(8)
        (length,) = struct.unpack("<Q", prefix)
        if length > min(n_bytes, _MOST_HEADER_BYTES):
            raise damaged
        header = file.read(length)
        entries = json.loads(header)
        for name, target in targets.items():
            entry = entries[name]
            if entry["shape"] != list(target.shape) or DTYPES[entry["dtype"]] != target.dtype:
                raise damaged
        spans = _spans(entries, n_bytes - 8 - length)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged from None
    actual = zlib.crc32(header, zlib.crc32(prefix))
    for size, name in spans:
        for part in _blocks(targets[name]) if name in targets else _scratch(size):
            actual = _read_into(file, part, actual, damaged)
    return actual


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


def _blocks(tensor: Tensor) -> list[Tensor]:
    """Views of consecutive rows, at most one block large where rows are smaller than that."""
    if tensor.ndim == 0:
        return [tensor.reshape(1)]
    if tensor.numel() == 0:
        return []
    row_bytes = tensor[0].numel() * tensor.element_size()
    return list(tensor.split(max(1, _BLOCK_BYTES // row_bytes)))


def _scratch(n_bytes: int) -> list[Tensor]:
    """Blocks of so many bytes in all, which share their memory."""
    block = torch.empty(min(n_bytes, _BLOCK_BYTES), dtype=torch.uint8)
    return [block[: n_bytes - at] for at in range(0, n_bytes, _BLOCK_BYTES)]


def _read_into(file: BinaryIO, target: Tensor, crc: int, damaged: InputError) -> int:
    is_plain = target.device.type == "cpu" and target.is_contiguous()
    host = target if is_plain else torch.empty(target.shape, dtype=target.dtype)
    data = host.reshape(-1).view(torch.uint8).numpy().data
    done = 0
    while done < len(data):
        n = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not n:
            raise damaged
        done += n
    if host is not target:
        target.copy_(host)
    return zlib.crc32(data, crc)
