# SPDX-License-Identifier: Apache-2.0
"""Tensors between memory and a file, a block at a time and checksummed on the way.

A block goes from the file straight into the target's own memory, or through a buffer of one block
where the target is on another device, has other strides, or wants only some of the block's rows.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import BinaryIO

import torch
from torch import Tensor

from gs_train.checkpoint.selection import RowSelection

BLOCK_BYTES = 16 << 20

Report = Callable[[int], None]
"""Called with the number of bytes that have been read since the last call."""


class CutOffError(Exception):
    """A file ends before its content does."""


def blocks_of(tensor: Tensor) -> list[Tensor]:
    """Views of consecutive rows, at most one block large where rows are smaller than that."""
    if tensor.ndim == 0:
        return [tensor.reshape(1)]
    if tensor.numel() == 0:
        return []
    row_bytes = tensor[0].numel() * tensor.element_size()
    return list(tensor.split(max(1, BLOCK_BYTES // row_bytes)))


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of ``data`` to an unbuffered file."""
    written = 0
    while written < len(data):
        written += file.write(data[written:])


def write_tensor(file: BinaryIO, tensor: Tensor) -> int:
    """Write a tensor's values; their CRC-32 is returned."""
    crc = 0
    for part in blocks_of(tensor.detach()):
        data = _bytes_of(part.contiguous().cpu())
        crc = zlib.crc32(data, crc)
        write_all(file, data)
    return crc


def read_rows(
    file: BinaryIO,
    target: Tensor,
    wanted: RowSelection,
    start: int,
    stop: int,
    crc: int = 0,
    report: Report | None = None,
) -> int:
    """Read rows ``start:stop`` of a tensor and keep the wanted ones.

    Args:
        file: stands where row ``start`` begins; stands where row ``stop`` begins afterwards.
        target: (R, ...) of any device and strides, for the R wanted rows of the whole tensor.
        wanted: of the whole tensor's rows.
        crc: of what was read before.
        report: called after each block.

    Returns:
        CRC-32 of all rows that were read, wanted or not, going on from ``crc``.

    Raises:
        CutOffError: the file ends too early.

    Cost: memory for one block, unless all rows go into contiguous memory of the CPU.
    """
    row_bytes = math.prod(target.shape[1:]) * target.element_size()
    if row_bytes == 0:
        return crc
    n_block = max(1, BLOCK_BYTES // row_bytes)
    buffer: Tensor | None = None
    for at in range(start, stop, n_block):
        n = min(n_block, stop - at)
        places, rows = wanted.within(at, at + n)
        part = target[places]
        if len(part) == n and part.device.type == "cpu" and part.is_contiguous():
            crc = _read_into(file, part, crc)
        else:
            if buffer is None:
                buffer = torch.empty((n, *target.shape[1:]), dtype=target.dtype)
            block = buffer[:n]
            crc = _read_into(file, block, crc)
            if len(part):
                part.copy_(block[rows])
        if report is not None:
            report(n * row_bytes)
    return crc


def read_past(file: BinaryIO, n_bytes: int, crc: int = 0, report: Report | None = None) -> int:
    """Read bytes for their checksum alone: the CRC-32 that goes on from ``crc``.

    Raises:
        CutOffError: the file ends too early.
    """
    buffer = torch.empty(min(n_bytes, BLOCK_BYTES), dtype=torch.uint8)
    for at in range(0, n_bytes, BLOCK_BYTES):
        block = buffer[: n_bytes - at]
        crc = _read_into(file, block, crc)
        if report is not None:
            report(len(block))
    return crc


def _read_into(file: BinaryIO, target: Tensor, crc: int) -> int:
    data = _bytes_of(target)
    done = 0
    while done < len(data):
        n = file.readinto(data[done:])  # type: ignore[attr-defined]
        if not n:
            raise CutOffError
        done += n
    return zlib.crc32(data, crc)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    # A single value is contiguous whatever its strides, which a view as bytes would look at.
    values = tensor.as_strided((tensor.numel(),), (1,))
    data: memoryview = values.view(torch.uint8).numpy().data
    return data
