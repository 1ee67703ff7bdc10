# SPDX-License-Identifier: Apache-2.0
"""A PLY file of coloured points, as ``gs-train fit --init`` reads it, written piece by piece."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np

RECORD = np.dtype([("xyz", "<f4", 3), ("rgb", "u1", 3)])


class PointFile:
    """A file that holds ``n`` points once all have been written.

    Threads: any number may write, each its own points.
    """

    def __init__(self, path: Path, n: int) -> None:
        lines = ["ply", "format binary_little_endian 1.0", f"element vertex {n}"]
        lines += [f"property float {name}" for name in "xyz"]
        lines += [f"property uchar {name}" for name in ("red", "green", "blue")]
        head = "\n".join([*lines, "end_header", ""]).encode()
        self._start = len(head)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.pwrite(self._file, head, 0)

    def write(self, first: int, points: np.ndarray, colors: np.ndarray) -> None:
        """Write (m, 3) points and (m, 3) uint8 colours from place ``first`` on."""
        records = np.empty(len(points), RECORD)
        records["xyz"], records["rgb"] = points, colors
        left, at = memoryview(records.tobytes()), self._start + first * RECORD.itemsize
        while left:
            done = os.pwrite(self._file, left, at)
            left, at = left[done:], at + done

    def __enter__(self) -> PointFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)
