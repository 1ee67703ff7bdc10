# SPDX-License-Identifier: Apache-2.0
"""How fast a drive reads and writes records: given, or measured in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gs_train.errors import InputError
from gs_train.sizes import format_bytes, parse_bytes

THREADS = 16
"""That move records, as many as those of a store."""

_SECONDS = 0.5  # of writing, and of reading
_MOST_BYTES, _MOST_SHARE = 4 << 30, 0.25  # of the file, and of what is free on the drive
_PAGE, _HUGE_PAGE = 4096, 2 << 20

_Call = Callable[[int, list[memoryview], int], int]
"""Of the system: file, buffers, offset; gives the bytes that were moved."""


@dataclass(frozen=True)
class DriveRates:
    """Bytes a second of whole records in any order.

    Attributes:
        read, write: alone.
        source: where they are from, for a line to the user.
    """

    read: float
    write: float
    source: str = field(default="given", compare=False)

    def __post_init__(self) -> None:
        for name in ("read", "write"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    def __str__(self) -> str:
        return f"reads {self.read / 1e9:.3g} GB/s, writes {self.write / 1e9:.3g} GB/s"

    @classmethod
    def parsed(cls, text: str, *, option: str) -> DriveRates:
        """``READ:WRITE`` in bytes a second, such as ``4GB:2.1GB``.

        Raises:
            InputError: it is no such pair; names ``option``.
        """
        parts = re.split(":", text)
        if len(parts) != 2:
            raise InputError(
                f"{option} must be READ:WRITE in bytes a second, such as 4GB:2.1GB, got {text!r}"
            )
        read, write = (parse_bytes(part, option=option) for part in parts)
        if not read or not write:
            raise InputError(f"{option} must be two rates above 0, got {text!r}")
        return cls(read, write, f"as {option} says")


def place_of(folder: Path) -> Path:
    """The folder, or the nearest one above that exists."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place


def measure_drive(
    folder: Path, record_bytes: int, *, seconds: float = _SECONDS, threads: int = THREADS
) -> DriveRates:
    """Write records for half a second, and read them for as long, in an order without pattern.

    The file has no name, so that nothing is left of it however the process ends. Its records pass
    the page cache by where the file system lets them; ``source`` says where it does not.

    Args:
        folder: need not exist yet.
        record_bytes: of a record; whole pages are moved.
        seconds: of writing, and of reading; a record of each thread is always moved.

    Raises:
        OSError: the folder takes no file, or has no room for a record of each thread.
    """
    place = place_of(folder)
    record = -(-record_bytes // _PAGE) * _PAGE
    most = min(_MOST_BYTES, int(_MOST_SHARE * shutil.disk_usage(place).free))
    n_records = max(threads, most // record)
    buffers = record_buffers(threads, record)
    for buffer in buffers:
        buffer[:] = os.urandom(record)
    # Unlinked at once where it ever has a name.
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        drive = _Records(file.fileno(), buffers)
        n_written, write_s = drive.move(os.pwritev, range(n_records), seconds)
        drive.forget(n_written * record)
        order = random.Random(0).sample(range(n_written), n_written)
        n_read, read_s = drive.move(os.preadv, order, seconds)
        way = "past the page cache" if drive.is_direct else "through the page cache"
    moved = f"{format_bytes((n_written + n_read) * record)} in records of {format_bytes(record)}"
    source = f"measured in {place} with {moved} {way}"
    return DriveRates(n_read * record / read_s, n_written * record / write_s, source)


def record_buffers(n: int, n_bytes: int) -> list[memoryview]:
    """Buffers of records for direct transfers, in huge pages where the system has them, as those of
    a store: drives may move what lies in one piece several tenths faster."""
    each = -(-n_bytes // _HUGE_PAGE) * _HUGE_PAGE
    memory = mmap.mmap(-1, (n + 1) * each, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # a hint, no more
        memory.madvise(mmap.MADV_HUGEPAGE)
    first = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE
    return [memoryview(memory)[first + i * each :][:n_bytes] for i in range(n)]


class _Records:
    """Records of an open file, moved by threads that wait in calls of the system.

    Args:
        file: descriptor.
        buffers: one of a record's length for each thread.
    """

    def __init__(self, file: int, buffers: Sequence[memoryview]) -> None:
        self._file = file
        self._buffers = buffers
        direct = getattr(os, "O_DIRECT", 0)
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | direct)
            self.is_direct = direct != 0
        except OSError:
            self.is_direct = False

    def move(self, call: _Call, order: Sequence[int], seconds: float) -> tuple[int, float]:
        """Move records in this order, one each thread at least, until the time is over.

        Returns:
            How many were moved, the first ones of the order; and the seconds that it took, those
            included in which the drive takes what the page cache held.
        """
        turns = itertools.count()  # whose next() is one step for all threads
        start = time.perf_counter()

        def work(buffer: memoryview) -> int:
            n_moved = 0
            while not n_moved or time.perf_counter() < start + seconds:
                turn = next(turns)
                if turn >= len(order):
                    break
                if call(self._file, [buffer], order[turn] * len(buffer)) != len(buffer):
                    raise OSError(f"the drive moved less than {len(buffer)} bytes at once")
                n_moved += 1
            return n_moved

        with ThreadPoolExecutor(len(self._buffers)) as pool:
            n_moved = sum(pool.map(work, self._buffers))
        if not self.is_direct and call is os.pwritev:
            os.fdatasync(self._file)
        return n_moved, max(time.perf_counter() - start, 1e-9)

    def forget(self, n_bytes: int) -> None:
        """Let the page cache drop what it has of the file, so that the drive is read."""
        if not self.is_direct:
            os.posix_fadvise(self._file, 0, n_bytes, os.POSIX_FADV_DONTNEED)
