# SPDX-License-Identifier: Apache-2.0
"""Decoded photographs in one file of raw pixels: a fixed place for each, read in one piece."""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

PAGE = 4096
"""Places, sizes and memory of direct reads and writes are multiples of this."""

_SPARE_BYTES = 64 << 20
"""Of memory that is kept for the next photographs: the system would zero new memory page by page,
which takes ten times the processor's time of the read itself."""


PixelSize = tuple[int, int] | tuple[int, int, int]
"""Height and width of a photograph; and its channels, where these are not 3."""


@dataclass(frozen=True)
class Place:
    """Of a photograph.

    Attributes:
        offset: of its first byte.
        shape: height, width and channels.
        room: bytes from there to the next photograph.
    """

    offset: int
    shape: tuple[int, int, int]

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape)

    @property
    def room(self) -> int:
        return _room(self.shape)


class PixelFile:
    """Photographs by index: uint8 RGB, each written once, then read any number of times.

    The file has no name: no other process can open the file, two runs in one folder do not meet,
    and the disk's space is free again when the process ends, even by SIGKILL. So the pixels are
    read by the process that wrote them or by nobody, and need no checksum beyond the disk's own.

    Reads and writes go past the page cache (O_DIRECT). Each photograph is read once an epoch, so
    that the page cache would rarely have a photograph when its turn comes, would push out what
    other work reads, and would take host memory that `--host-memory` does not count and rows
    need; and the processor would copy every pixel once more. What is worth to be kept in memory is
    for `ImageCache` to decide, which knows the order of need. Where the file system has no direct
    access, the pages are dropped from the page cache after use.

    Args:
        folder: on the disk that holds the pixels.
        sizes: by index.

    Raises:
        OSError: the folder takes no file.

    Threads: all methods from any thread, reads and writes of several photographs at once.
    """

    def __init__(self, folder: Path, sizes: Mapping[int, PixelSize]) -> None:
        self._start(tempfile.TemporaryFile(dir=folder, buffering=0), sizes)  # noqa: SIM115
        self._is_direct = _go_past_the_cache(self._descriptor)

    @classmethod
    def shared(cls, path: str, sizes: Mapping[int, PixelSize]) -> PixelFile:
        """A file that several processes open and read.

        Its pages stay in the page cache as long as the system likes: processes that train together
        read a photograph at about the same time, and the disk once for all of them.

        Args:
            path: of an open file without a name, such as ``/proc/1/fd/5``.
            sizes: the same in all processes. `holds` knows of what this process has written.

        Raises:
            OSError: the file cannot be opened.
        """
        file = cls.__new__(cls)
        file._start(open(path, "r+b", buffering=0), sizes)  # noqa: SIM115
        file._is_direct, file._keeps_cache = False, True
        return file

    def _start(self, file: IO[bytes], sizes: Mapping[int, PixelSize]) -> None:
        self._places = places_of(sizes)
        self._lock = threading.Lock()
        self._written: set[int] = set()
        self._spare: deque[mmap.mmap] = deque()
        self._file = file
        self._descriptor = file.fileno()
        self._is_direct = self._keeps_cache = False

    def holds(self, index: int) -> bool:
        """Whether :meth:`read` can give this photograph."""
        with self._lock:
            return index in self._written

    def write(self, index: int, pixels: NDArray[np.uint8]) -> None:
        """Put a photograph in its place, unless it is there already.

        Args:
            pixels: (height, width, channels) uint8 of the size that the index has.

        Raises:
            OSError: the disk is full or fails; the photograph is not held then.

        Asynchrony: returns when the system has the pixels.
        """
        place = self._places[index]
        if pixels.shape != place.shape or pixels.dtype != np.uint8:
            raise ValueError(
                f"pixels must be uint8 of shape {place.shape}, got {pixels.dtype} of {pixels.shape}"
            )
        if self.holds(index):
            return
        memory, copy = self._memory(place)
        copy[:] = pixels
        whole, done = memoryview(memory), 0
        while done < place.room:
            n = os.pwritev(self._descriptor, [whole[done:]], place.offset + done)
            done += _progress(n, "takes no more of a photograph")
        self._drop_from_cache(place, is_new=True)
        with self._lock:
            self._written.add(index)

    def read(self, index: int) -> NDArray[np.uint8]:
        """A photograph that the file holds.

        Returns:
            (height, width, channels) uint8. Its memory serves another photograph once nobody has it
            or a view of it.

        Raises:
            OSError: the disk fails, or gives less than the photograph.

        Cost: one system call, as a rule; no copy by the processor.
        """
        place = self._places[index]
        memory, pixels = self._memory(place)
        whole, done = memoryview(memory), 0
        while done < place.n_bytes:
            n = os.preadv(self._descriptor, [whole[done:]], place.offset + done)
            done += _progress(n, "ends within a photograph")
        self._drop_from_cache(place)
        return pixels

    def close(self) -> None:
        """Give the disk's space back. Idempotent; nobody may be reading or writing."""
        self._file.close()

    def __enter__(self) -> PixelFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _memory(self, place: Place) -> tuple[mmap.mmap, NDArray[np.uint8]]:
        """Memory that begins on a page, and the same as an image."""
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = None
        if memory is None or len(memory) != place.room:
            memory = mmap.mmap(-1, place.room)
        flat = np.frombuffer(memory, np.uint8, place.n_bytes)
        # All views of an array keep the array alive that has the memory: this one. No lock is
        # taken when it goes, because garbage may be collected in the middle of anything.
        weakref.finalize(flat, _give_back, self._spare, memory).atexit = False
        return memory, flat.reshape(place.shape)

    def _drop_from_cache(self, place: Place, *, is_new: bool = False) -> None:
        if self._is_direct or self._keeps_cache or not hasattr(os, "posix_fadvise"):
            return
        if is_new:
            os.fdatasync(self._descriptor)  # pages that are not on the disk yet cannot be dropped
        os.posix_fadvise(self._descriptor, place.offset, place.room, os.POSIX_FADV_DONTNEED)


def places_of(sizes: Mapping[int, PixelSize]) -> dict[int, Place]:
    """Of photographs of these sizes, one behind the other."""
    places: dict[int, Place] = {}
    offset = 0
    for index, size in sizes.items():
        places[index] = Place(offset, _shape(size))
        offset += places[index].room
    return places


def file_bytes(sizes: Iterable[PixelSize]) -> int:
    """Bytes of a `PixelFile` with photographs of these sizes."""
    return sum(_room(_shape(size)) for size in sizes)


def pixel_bytes(size: PixelSize) -> int:
    """Bytes of a photograph of this size in memory."""
    return math.prod(_shape(size))


def _give_back(spare: deque[mmap.mmap], memory: mmap.mmap) -> None:
    if (len(spare) + 1) * len(memory) <= _SPARE_BYTES:
        spare.append(memory)


def _shape(size: PixelSize) -> tuple[int, int, int]:
    return size if len(size) == 3 else (*size, 3)


def _room(shape: tuple[int, int, int]) -> int:
    return -(-math.prod(shape) // PAGE) * PAGE


def _progress(n: int, otherwise: str) -> int:
    if n < 1:
        raise OSError(errno.EIO, f"the file {otherwise}")
    return n


def _go_past_the_cache(descriptor: int) -> bool:
    """Make reads and writes direct; False where the file system or the platform cannot."""
    direct = getattr(os, "O_DIRECT", 0)
    if not direct:
        return False
    usual = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, usual | direct)
        os.pwritev(descriptor, [mmap.mmap(-1, PAGE)], 0)  # some agree and then refuse to write
    except OSError:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, usual)
        return False
    return True
