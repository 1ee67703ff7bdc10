# SPDX-License-Identifier: Apache-2.0
"""Points on the drive by the part of the Morton curve that they lie on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

Dealt = NDArray[np.uint8]
Counts = NDArray[np.int64]


class Parts:
    """Files of points, one a part of the curve.

    A piece of a cloud has few points of each of many parts, and to open a file takes as long as to
    write many points. Pieces therefore wait in memory until they fill it.

    Args:
        folder: for the files, which exists.
        n_parts: of the curve.
        waiting_bytes: of pieces that wait; as much again is taken while they are written.

    Attributes:
        counts: (parts,) points that parts have got.
    """

    def __init__(self, folder: Path, n_parts: int, waiting_bytes: int) -> None:
        self._folder = folder
        self._most = waiting_bytes
        self._waiting: list[tuple[Dealt, Counts]] = []
        self.counts = np.zeros(n_parts, np.int64)

    def append(self, dealt: Dealt, counts: Counts) -> None:
        """Add points (P, W), by part and then in their order, of which parts get (parts,).

        Raises:
            OSError: the drive is full, or errs.
        """
        self.counts += counts
        self._waiting.append((dealt, counts))
        if sum(piece.nbytes for piece, _ in self._waiting) >= self._most:
            self.write()

    def write(self) -> None:
        """Write what waits.

        Raises:
            OSError: the drive is full, or errs.
        """
        if not self._waiting:
            return
        counts = np.sum([own for _, own in self._waiting], axis=0)
        width = self._waiting[0][0].shape[1]
        sizes = counts * width
        at = np.cumsum(sizes) - sizes
        both = np.empty(int(sizes.sum()), np.uint8)
        for dealt, own in self._waiting:
            _move(dealt.reshape(-1), own * width, at, both)
        self._waiting.clear()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        for part in np.flatnonzero(counts).tolist():  # `at` is where each part ends now
            descriptor = os.open(self._path(part), flags, 0o666)
            try:
                write_bytes(descriptor, both[at[part] - sizes[part] : at[part]])
            finally:
                os.close(descriptor)

    def take(self, parts: Iterable[int]) -> Dealt:
        """(P, W) of some parts, one after the other, each in the order of `append`; their files
        go. `write` comes first."""
        files = [self._path(part) for part in parts if self.counts[part]]
        dealt = np.concatenate([np.fromfile(path, np.uint8) for path in files])
        for path in files:
            path.unlink()
        return dealt.reshape(int(self.counts[list(parts)].sum()), -1)

    def _path(self, part: int) -> Path:
        return self._folder / f"part-{part:06}"


def write_bytes(descriptor: int, array: NDArray[np.generic]) -> None:
    """All bytes of an array: a full drive takes some, and then none."""
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done:])


@njit(cache=True, nogil=True, error_model="numpy")
def _move(dealt, sizes, at, both):  # type: ignore[no-untyped-def]
    """Put a piece's bytes of each part where these go on, and move that on."""
    first = 0
    for part in range(len(sizes)):
        n, to = sizes[part], at[part]
        for i in range(n):
            both[to + i] = dealt[first + i]
        first += n
        at[part] = to + n
