# SPDX-License-Identifier: Apache-2.0
"""How many points of a cloud are in memory at once, and what they take of the drive."""

from __future__ import annotations

import math
from pathlib import Path

from gs_train.errors import InputError
from gs_train.files.atomic import require_free
from gs_train.machine.usable_cores import usable_cores
from gs_train.sizes import format_bytes

_POINT_BYTES = 192
"""Of a point of a region that is worked on."""

_READ_BYTES = 256
"""Of a point of a piece that is read and dealt."""

_ALL_BYTES = 0.5
"""Of every point, all the time: boxes of groups and of blocks."""

_SPILL_BYTES = 19

_MOST_REGIONS = 4096
_PARTS_OF_REGION = 4
_REGIONS_OF_THREAD, _LEAST_REGION = 8, 1 << 16
"""More regions than threads, so that all of these are at work until the end; none so small that its
neighbours are more than it has itself."""

_SHARE_OF_WAITING = 16
_LEAST_PIECE, _MOST_PIECE = 1 << 10, 1 << 20

_MOST_MEMORY = 12 << 30
"""Bytes that are planned with: with more, regions of a billion points would only be larger."""


class CloudRoom:
    """Memory of one start from a cloud.

    Args:
        memory: bytes. Regions where points crowd may take all of it, others `_MOST_MEMORY` at most.
        row_bytes: of a row of a region that is worked on.
        read_bytes: of a row of a piece that is read and dealt.

    Attributes:
        waiting_bytes: of dealt pieces that wait, see `gs_train.clouds.part_files.PartFiles`.
        piece_rows: points that are read at once.
        threads: that read pieces, and that work on regions: fewer where memory does not suffice.
    """

    def __init__(
        self, memory: int, *, row_bytes: int = _POINT_BYTES, read_bytes: int = _READ_BYTES
    ) -> None:
        self._memory = memory
        self._row_bytes, self._read_bytes = row_bytes, read_bytes
        self.threads = usable_cores()
        self._planned = min(memory, _MOST_MEMORY)
        self.waiting_bytes = self._planned // _SHARE_OF_WAITING
        for_pieces = self._planned - 2 * self.waiting_bytes
        fitting = for_pieces // (2 * self.threads * self._read_bytes)
        self.piece_rows = min(max(fitting, _LEAST_PIECE), _MOST_PIECE)
        self._region_rows = 0

    def parts(self, n_points: int, path: Path) -> int:
        """How many parts to deal points to: several for a region, so that regions are even.

        Raises:
            InputError: memory is too small for so many points.
        """
        for_regions = self._planned - math.ceil(_ALL_BYTES * n_points)
        least = -(-n_points // _MOST_REGIONS)
        threads = min(self.threads, for_regions // (least * self._row_bytes))
        if threads < 1:
            self._refuse(f"{n_points:,} points of {path}", least * self._row_bytes, n_points)
        self.threads = threads
        fitting = for_regions // (threads * self._row_bytes)
        even = -(-n_points // (_REGIONS_OF_THREAD * threads))
        self._region_rows = min(fitting, max(even, _LEAST_REGION))
        return max(1, -(-_PARTS_OF_REGION * n_points // self._region_rows))

    def region_rows(self) -> int:
        """Points of a region at most, after `parts`."""
        return self._region_rows

    def require_largest(self, n_rows: int, n_points: int, path: Path) -> None:
        """Check that the largest region fits, which is larger than others where points crowd.

        Raises:
            InputError: it does not.
        """
        for_regions = self._memory - math.ceil(_ALL_BYTES * n_points)
        threads = for_regions // (n_rows * self._row_bytes)
        if threads < 1:
            what = f"{n_rows:,} points of {path} that lie as good as in one place"
            self._refuse(what, n_rows * self._row_bytes, n_points)
        self.threads = min(self.threads, threads)

    def require_drive(self, folder: Path, n_points: int, row_bytes: float) -> None:
        """Check that the drive has room.

        Args:
            row_bytes: that a first row takes in the store.

        Raises:
            InputError: it has not.
        """
        # Files of regions go as the store grows.
        n_bytes = math.ceil(max(row_bytes, _SPILL_BYTES) * n_points)
        require_free(folder, n_bytes, "a store of first rows")

    def _refuse(self, what: str, for_regions: int, n_points: int) -> None:
        needed = for_regions + math.ceil(_ALL_BYTES * n_points)
        raise InputError(
            f"memory must be at least {format_bytes(needed)} ({needed:,} bytes) for {what}, got "
            f"{self._memory:,} bytes"
        )
