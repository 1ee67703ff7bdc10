# SPDX-License-Identifier: Apache-2.0
"""What rows are like, found in a pass over all of them before they are written."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from gs_train.files.agreement import by_each
from gs_train.files.crop import Crop, Point
from gs_train.files.row_chunks import Chunk, bases_of, finite_rows, host_rows, taken
from gs_train.world import World

_MAX_LOG = 700.0  # exp of more is no float

Range = tuple[float, float]
"""The least and the greatest value."""


class Survey(NamedTuple):
    """The rows that are finite and inside the crop.

    Attributes:
        n_rows: how many there are.
        n_lost: rows that are not among them because a value is NaN or infinite.
        n_outside: finite rows that the crop leaves out.
        n_bases: K of ``shN``.
        low: the least x, y and z; infinity where there is no row.
        high: the greatest x, y and z; minus infinity where there is no row.
        scene_low: as ``low``, of the rows outside the crop as well.
        scene_high: as ``high``, of the rows outside the crop as well.
        n_beyond: rows with a log scale outside the range of the format.
        log_sizes: sum over rows of the mean of the three log scales.
    """

    n_rows: int
    n_lost: int
    n_outside: int
    n_bases: int
    low: Point
    high: Point
    scene_low: Point
    scene_high: Point
    n_beyond: int
    log_sizes: float

    @property
    def reach(self) -> float:
        """The greatest coordinate, without its sign."""
        return max(-min(self.low), max(self.high))

    @property
    def size(self) -> float:
        """The geometric mean of the standard deviations of all rows along all axes."""
        return math.exp(min(self.log_sizes / self.n_rows, _MAX_LOG))

    def merged(self, other: Survey) -> Survey:
        """The survey of the rows of both."""
        return Survey(
            self.n_rows + other.n_rows,
            self.n_lost + other.n_lost,
            self.n_outside + other.n_outside,
            max(self.n_bases, other.n_bases),
            _point(np.minimum(self.low, other.low)),
            _point(np.maximum(self.high, other.high)),
            _point(np.minimum(self.scene_low, other.scene_low)),
            _point(np.maximum(self.scene_high, other.scene_high)),
            self.n_beyond + other.n_beyond,
            self.log_sizes + other.log_sizes,
        )


def survey_rows(
    chunks: Iterable[Chunk],
    *,
    transform: Callable[[Chunk], Chunk] | None = None,
    crop: Crop | None = None,
    log_scales: Range | None = None,
) -> Survey:
    """Look at all rows.

    Args:
        chunks: of rows.
        transform: applied to each chunk first.
        crop: compared with the transformed positions.
        log_scales: the range of the format's log scales; None: it holds all.
    """
    surveys = (
        _survey(transform(chunk) if transform else chunk, crop, log_scales) for chunk in chunks
    )
    return functools.reduce(Survey.merged, surveys, _NOTHING)


def survey_rows_of_ranks(
    world: World,
    chunks: Iterable[Chunk],
    *,
    transform: Callable[[Chunk], Chunk] | None = None,
    crop: Crop | None = None,
    log_scales: Range | None = None,
) -> Survey:
    """Look at the rows of all ranks, each rank at its own; the same on all ranks. A collective."""
    own = survey_rows(chunks, transform=transform, crop=crop, log_scales=log_scales)
    if world.size == 1:
        return own
    surveys: list[list[Any]] = by_each(world, lambda: list(own))
    found = [Survey(*each) for each in surveys]
    return functools.reduce(Survey.merged, found, _NOTHING)


def _survey(chunk: Chunk, crop: Crop | None, log_scales: Range | None) -> Survey:
    n_bases = bases_of(chunk)
    rows = host_rows(chunk, n_bases)
    n_all = len(rows["means"])
    rows = taken(rows, finite_rows(rows))
    n_finite = len(rows["means"])
    scene = _bounds(rows["means"])
    if crop is not None:
        rows = taken(rows, crop.holds(rows["means"]))
    n = len(rows["means"])
    return Survey(
        n,
        n_all - n_finite,
        n_finite - n,
        n_bases,
        *_bounds(rows["means"]),
        *scene,
        0 if log_scales is None else _n_beyond(rows["scales"], log_scales),
        float(rows["scales"].sum(dtype=np.float64)) / 3,
    )


def _n_beyond(values: np.ndarray, limits: Range) -> int:
    """Rows of (n, 3) values with one outside the limits."""
    least, most = limits
    return int(((values < least) | (values > most)).any(axis=1).sum())


def _bounds(means: np.ndarray) -> tuple[Point, Point]:
    """The least and the greatest coordinates of (n, 3) positions."""
    least, greatest = means.min(axis=0, initial=math.inf), means.max(axis=0, initial=-math.inf)
    return _point(least), _point(greatest)


def _point(values: np.ndarray) -> Point:
    x, y, z = (float(value) for value in values)
    return x, y, z


_NOTHING = Survey(0, 0, 0, 0, *_bounds(np.empty((0, 3))), *_bounds(np.empty((0, 3))), 0, 0.0)
