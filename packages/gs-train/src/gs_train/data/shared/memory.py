# SPDX-License-Identifier: Apache-2.0
"""Memory and files without a name, which processes of one host open at each other's.

A process that ends, even by SIGKILL, takes its part away, and the last one the whole: nothing is
left on a disk or in /dev/shm, whose size does not matter either.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.data.pixel_file import PixelSize, places_of


def new_memory(n_bytes: int) -> int:
    """A descriptor of so many bytes, zeros, which take memory once they are written to."""
    descriptor = os.memfd_create("gs-train photographs", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, n_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def path_for_others(descriptor: int) -> str:
    """Where processes of this host open a file of this process, while it has the descriptor."""
    pid = Path("/proc/self").readlink().name  # os.getpid() may be of another space of numbers
    return f"/proc/{pid}/fd/{descriptor}"


def mapped(path: str) -> mmap.mmap:
    """All bytes of a file, for reading and writing."""
    with open(path, "r+b", buffering=0) as file:
        return mmap.mmap(file.fileno(), 0)


class PixelMemory:
    """Photographs by index, as `gs_train.data.pixel_file.PixelFile` has them, in mapped memory.

    Args:
        path: of memory of `file_bytes` of the sizes.
        sizes: by index; at least one.
    """

    def __init__(self, path: str, sizes: Mapping[int, PixelSize]) -> None:
        self._places = places_of(sizes)
        self._memory = mapped(path)

    def write(self, index: int, pixels: NDArray[np.uint8]) -> None:
        """Put a photograph in its place. ``pixels``: (height, width, channels) uint8."""
        self.read(index)[:] = pixels

    def read(self, index: int) -> NDArray[np.uint8]:
        """(height, width, channels) uint8: the place itself, not to be written to."""
        place = self._places[index]
        flat = np.frombuffer(self._memory, np.uint8, place.n_bytes, place.offset)
        return flat.reshape(place.shape)
