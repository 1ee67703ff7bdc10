# SPDX-License-Identifier: Apache-2.0
"""Points on the drive by the part of the Morton curve that they lie on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

Dealt = NDArray[np.uint8]
Counts = NDArray[np.int64]


class PartFiles:
    """Files of points, one a part of the curve.

    A piece of a cloud has few points of each of many parts, and to open a file takes as long as to
    write many points. Pieces therefore wait in memory until they fill it. After an error nothing
    here can be used.

    Args:
        folder: for the files, which exists.
        n_parts: of the curve.
        waiting_bytes: of pieces that wait; as much again while they are put in order.

    Attributes:
        counts: (parts,) points that parts have got.

    Threads: one calls `append` and `write`; several may `take` different parts.
    """

    def __init__(self, folder: Path, n_parts: int, waiting_bytes: int) -> None:
        self._folder = folder
        self._most_waiting = waiting_bytes
        self._waiting: list[tuple[Dealt, Counts]] = []
        self._waiting_bytes = 0
        self._width = 0
        self.counts = np.zeros(n_parts, np.int64)

    def append(self, dealt: Dealt, counts: Counts) -> None:
        """Add points (P, W), by part and then in their order, of which parts get (parts,). Both
        arrays are kept until they are written.

        Raises:
            OSError: the drive is full, or errs.

        Cost: a write of all that waits where that fills its memory.
        """
        self.counts += counts
        self._width = dealt.shape[1]
        self._waiting.append((dealt, counts))
        self._waiting_bytes += dealt.nbytes + counts.nbytes
        if self._waiting_bytes >= self._most_waiting:
            self.write()

    def write(self) -> None:
        """Write what waits.

        Raises:
            OSError: the drive is full, or errs.
        """
        if not self._waiting:
            return
        sizes = np.zeros_like(self.counts)
        for _, counts in self._waiting:
            sizes += counts
        sizes *= self._width
        ends = np.cumsum(sizes) - sizes
        data = np.empty(int(sizes.sum()), np.uint8)
        for dealt, counts in self._waiting:
            _move(dealt.reshape(-1), counts * self._width, ends, data)
        self._waiting.clear()
        self._waiting_bytes = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        for part in np.flatnonzero(sizes).tolist():
            descriptor = os.open(self._path(part), flags, 0o666)
            try:
                write_bytes(descriptor, data[ends[part] - sizes[part] : ends[part]])
            finally:
                os.close(descriptor)

    def take(self, parts: Sequence[int]) -> Dealt:
        """(P, W) of some parts, at least one of which has points, one after the other, each in the
        order of `append`; their files go. Nothing may wait.

        Raises:
            OSError: the drive errs, or a file has another size than was written.
        """
        files = [self._path(part) for part in parts if self.counts[part]]
        data = np.concatenate([np.fromfile(path, np.uint8) for path in files])
        n = int(self.counts[list(parts)].sum())
        if len(data) != n * self._width:
            expected = f"{n * self._width:,} bytes, got {len(data):,}"
            raise OSError(f"{files[0]} and the {len(files) - 1} files behind must have {expected}")
        for path in files:
            path.unlink()
        return data.reshape(n, self._width)

    def _path(self, part: int) -> Path:
        return self._folder / f"part-{part:06}"


def write_bytes(descriptor: int, array: NDArray[np.generic]) -> None:
    """All bytes of an array: a full drive takes some, and then none."""
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done:])


@njit(cache=True, nogil=True, error_model="numpy")
def _move(dealt, sizes, ends, data):  # type: ignore[no-untyped-def]
    """Put a piece's bytes of each part behind those that the part has, and move its end."""
    first = 0
    for part in range(len(sizes)):
        n, end = sizes[part], ends[part]
        for i in range(n):
            data[end + i] = dealt[first + i]
        first += n
        ends[part] = end + n
