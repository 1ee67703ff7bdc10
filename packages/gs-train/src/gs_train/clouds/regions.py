# SPDX-License-Identifier: Apache-2.0
"""Points on the drive, region by region along the Morton curve."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from gs_train.clouds.part_files import PartFiles, write_bytes
from gs_train.rows.morton import MortonCube
from gs_train.scene.neighbours import Floats

GROUP = 512
"""Points that follow each other in a region and have a box: what a halo consists of."""

_POINT = 12

Codes = NDArray[np.int64]
Colors = NDArray[np.uint8]


class Curve:
    """The Morton curve through a cube, cut into parts.

    Args:
        cube: around the points.
        cuts: (parts - 1,) rising codes, fewer than 2^16; part k has those in
            [cuts[k - 1], cuts[k]).
    """

    def __init__(self, cube: MortonCube, cuts: Codes) -> None:
        self._low = cube.low.numpy()
        self._scale = float(cube.scale)
        self._cuts = cuts
        self.n_parts = len(cuts) + 1

    def codes(self, points: Floats) -> Codes:
        """(P,) as :func:`gs_train.rows.morton.morton_codes`, of finite points."""
        codes = np.empty(len(points), np.int64)
        _codes(points, self._low, self._scale, codes)
        return codes

    def deal(self, points: Floats, others: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Codes]:
        """Points and (P, W) bytes of each, such as colours, side by side (P, 12 + W), by part and
        then in their order; and (parts,) how many each part has."""
        both = np.empty((len(points), _POINT + others.shape[1]), np.uint8)
        both[:, :_POINT] = points.view(np.uint8)
        both[:, _POINT:] = others
        part = np.searchsorted(self._cuts, self.codes(points), side="right")
        order = np.argsort(part.astype(np.uint16), kind="stable")  # 16 bits are sorted fast
        return both[order], np.bincount(part, minlength=self.n_parts).astype(np.int64)


class Spill:
    """Files of points, one a part of the curve, that become files of regions.

    A region is some parts that follow each other. Its first file has points with their colours; the
    file that takes its place has the points in Morton order, then their colours, then their
    spacings.

    Args:
        folder: for the files, which exists.
        n_parts: of the curve.
        waiting_bytes: as of `PartFiles`.

    Attributes:
        regions: the parts of each region, after `gather`.
        sizes: (regions,) points of each region.
    """

    def __init__(self, folder: Path, n_parts: int, waiting_bytes: int) -> None:
        self._folder = folder
        self._parts = PartFiles(folder, n_parts, waiting_bytes)
        self.regions: list[range] = []
        self.sizes = np.zeros(0, np.int64)

    @property
    def counts(self) -> Codes:
        """(parts,) points that parts have got."""
        return self._parts.counts

    def append(self, dealt: NDArray[np.uint8], counts: Codes) -> None:
        """Add what `Curve.deal` returned.

        Raises:
            OSError: the drive is full, or errs.
        """
        self._parts.append(dealt, counts)

    def gather(self, most: int) -> None:
        """Make regions of at most ``most`` points, or of one part, of all parts that have any.

        Raises:
            OSError: the drive is full, or errs.
        """
        self._parts.write()
        first = n_points = 0
        for part, count in enumerate(self.counts.tolist()):
            if n_points + count > most and n_points:
                self.regions.append(range(first, part))
                first, n_points = part, 0
            n_points += count
        if n_points:
            self.regions.append(range(first, len(self.counts)))
        sizes = [self.counts[parts.start : parts.stop].sum() for parts in self.regions]
        self.sizes = np.array(sizes, np.int64)

    def sort(self, region: int, curve: Curve) -> Floats:
        """Put the points of a region in Morton order, equal ones in that of the file they come
        from, and return them."""
        both = self.take_dealt(region)
        points = both[:, :_POINT].copy().view(np.float32)
        order = np.argsort(curve.codes(points), kind="stable")
        points = points[order]
        with self._region(region).open("xb", buffering=0) as file:
            write_bytes(file.fileno(), points)
            write_bytes(file.fileno(), both[order, _POINT:])
        return points

    def take_dealt(self, region: int) -> NDArray[np.uint8]:
        """(P, 12 + W) of a region as `append` got them, part after part; the files go."""
        return self._parts.take(self.regions[region])

    def points(self, region: int) -> Floats:
        """(P, 3) of a region, in Morton order."""
        n = int(self.sizes[region])
        return np.fromfile(self._region(region), np.float32, 3 * n).reshape(n, 3)

    def points_of(self, region: int, groups: Codes) -> Floats:
        """(P, 3) of some groups of a region, one after the other; ``groups`` rise."""
        n = int(self.sizes[region])
        firsts, lasts = groups * GROUP, np.minimum((groups + 1) * GROUP, n)
        points = np.empty((int((lasts - firsts).sum()), 3), np.float32)
        view, at = points.reshape(-1).view(np.uint8).data, 0
        with self._region(region).open("rb", buffering=0) as file:
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                size = (last - first) * _POINT
                if os.preadv(file.fileno(), [view[at : at + size]], first * _POINT) != size:
                    raise OSError(f"{file.name} became shorter while it was read")
                at += size
        return points

    def thin(self, region: int, keeps: NDArray[np.bool_]) -> None:
        """Leave out points of a sorted region, (P,) of which say whether they stay."""
        path, n = self._region(region), int(self.sizes[region])
        with path.open("rb") as file:
            points = np.fromfile(file, np.float32, 3 * n).reshape(n, 3)
            colors = np.fromfile(file, np.uint8, 3 * n).reshape(n, 3)
        with path.open("wb", buffering=0) as file:
            write_bytes(file.fileno(), points[keeps])
            write_bytes(file.fileno(), colors[keeps])
        self.sizes[region] = keeps.sum()

    def set_spacing(self, region: int, spacing: Floats) -> None:
        """Keep (P,) spacings with the points of a region."""
        with self._region(region).open("ab", buffering=0) as file:
            write_bytes(file.fileno(), spacing)

    def take(self, region: int) -> tuple[Floats, Colors, Floats]:
        """Points, colours (P, 3) and spacings (P,) of a region, whose file goes."""
        path, n = self._region(region), int(self.sizes[region])
        with path.open("rb") as file:
            points = np.fromfile(file, np.float32, 3 * n).reshape(n, 3)
            colors = np.fromfile(file, np.uint8, 3 * n).reshape(n, 3)
            spacing = np.fromfile(file, np.float32, n)
        path.unlink()
        return points, colors, spacing

    def _region(self, region: int) -> Path:
        return self._folder / f"region-{region:06}"


def group_boxes(points: Floats) -> Floats:
    """(groups, 6) lower and upper corners of each `GROUP` points that follow each other."""
    starts = np.arange(0, len(points), GROUP)
    if not len(starts):
        return np.empty((0, 6), np.float32)
    lower = np.minimum.reduceat(points, starts, axis=0)
    upper = np.maximum.reduceat(points, starts, axis=0)
    return np.concatenate([lower, upper], axis=1)


@njit(cache=True, nogil=True, error_model="numpy")
def _codes(points, low, scale, codes):  # type: ignore[no-untyped-def]
    most = 2.0**21 - 1.0
    for i in range(len(points)):
        code = np.int64(0)
        for axis in range(3):
            place = (np.float64(points[i, axis]) - low[axis]) * scale
            cell = np.int64(min(max(place, 0.0), most))
            cell = (cell | (cell << 32)) & 0x001F00000000FFFF
            cell = (cell | (cell << 16)) & 0x001F0000FF0000FF
            cell = (cell | (cell << 8)) & 0x100F00F00F00F00F
            cell = (cell | (cell << 4)) & 0x10C30C30C30C30C3
            cell = (cell | (cell << 2)) & 0x1249249249249249
            code |= cell << axis
        codes[i] = code
