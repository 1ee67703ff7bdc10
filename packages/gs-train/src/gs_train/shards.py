# SPDX-License-Identifier: Apache-2.0
"""Safetensors files written and read a block at a time, checksummed on the way.

The format is that of the safetensors library (little-endian header length, JSON header, the
tensors' bytes one after the other), so that library reads these files. Reading and writing here
is streamed instead: a block at a time between the file and the tensor's own memory, whatever its
device, so that saving needs no second copy of what is saved.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from gs_train.errors import InputError

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
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BLOCK_BYTES = 16 << 20


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
    crc = 0
    with open(path, "wb", buffering=0) as file:
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
        InputError: the file is damaged; targets may be partly filled.

    Cost: one pass; memory for one block where a target is not contiguous on the CPU.
    """
    damaged = InputError(f"{path} is damaged; remove its folder and resume from an earlier one")
    with open(path, "rb", buffering=0) as file:
        try:
            prefix = file.read(8)
            (length,) = struct.unpack("<Q", prefix)
            if length > os.fstat(file.fileno()).st_size:
                raise damaged
            header = file.read(length)
            entries = json.loads(header)
            for name, target in targets.items():
                entry = entries[name]
                if entry["shape"] != list(target.shape) or DTYPES[entry["dtype"]] != target.dtype:
                    raise damaged
            spans = sorted((*entry["data_offsets"], name) for name, entry in entries.items())
        except (struct.error, ValueError, KeyError, TypeError, IndexError):
            raise damaged from None
        actual = zlib.crc32(header, zlib.crc32(prefix))
        for start, end, name in spans:
            if name in targets:
                parts = _blocks(targets[name])
            else:
                parts = _scratch(end - start)
            for part in parts:
                actual = _read_into(file, part, actual, damaged)
    if actual != crc:
        raise damaged


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
