# SPDX-License-Identifier: Apache-2.0
"""Points with colours from PLY files of any size, a chunk at a time."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gs_train.data.files import open_file, readable
from gs_train.data.ranges import in_reach
from gs_train.errors import InputError
from gs_train.files.ply_header import PlyHeader, read_header

_CHUNK_ROWS = 1 << 20
_COLORS = (
    ("red", "green", "blue"),
    ("diffuse_red", "diffuse_green", "diffuse_blue"),
    ("r", "g", "b"),
)
_GREY = 128


@dataclass(frozen=True)
class PointCloud:
    """What `read_point_ply` returns.

    Attributes:
        points: (P, 3) float32, or of the ``dtype`` that was asked for.
        colors: (P, 3) uint8 RGB; a medium grey where the file has none.
        n_dropped: points of the file that are not finite, or out of reach, and left out.
    """

    points: NDArray[Any]
    colors: NDArray[np.uint8]
    n_dropped: int


def read_point_ply(
    path: str | Path,
    *,
    transform: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    report: Callable[[int, int], None] | None = None,
    dtype: type[np.floating[Any]] = np.float32,
    all_points: bool = False,
) -> PointCloud:
    """Read the vertices of a PLY file: binary of either byte order, or text.

    Properties are found by name, in any order and of any scalar type; others are ignored, as are
    faces. Colours are ``red green blue``, ``diffuse_red ...`` or ``r g b``: bytes, 16-bit numbers,
    or floating point from 0 to 1.

    Args:
        path: the file.
        transform: applied to (n, 3) coordinates in float64 before they become ``dtype``: for
            example out of a frame with large offsets.
        report: called with (vertices read, vertices) after each chunk.
        dtype: of the result's positions.
        all_points: keep those too that are not finite, or out of reach of float32 once they are
            transformed (:func:`gs_train.data.ranges.in_reach`): for a caller that judges in another
            frame.

    Raises:
        InputError: there is no such file, it is no PLY file with x, y and z, or it ends early.

    Cost: 15 bytes a point (27 in float64), and one chunk of a million.
    """
    path = Path(path)
    # What overflows, or is no number, leaves the point out.
    quiet = np.errstate(over="ignore", invalid="ignore")
    with readable(path), open_file(path) as file, quiet:
        header = read_header(file, path, takes_text=True)
        fields = header.dtype.names or ()
        missing = [name for name in "xyz" if name not in fields]
        if missing:
            raise InputError(
                f"{path} must be a PLY file of points, but it lacks {', '.join(missing)}"
            )
        _check_size(file, header, path)
        # No generator: Python loses a Ctrl-C that comes while one ends that was left halfway.
        colored = [names for names in _COLORS if set(names) <= set(fields)]
        names = colored[0] if colored else None
        points = np.empty((header.n_rows, 3), dtype)
        colors = np.full((header.n_rows, 3), _GREY, np.uint8)
        seen = kept = 0
        chunks = _binary(file, header) if header.lines_before is None else _text(file, header)
        for records in chunks:
            if records is None:
                raise InputError(
                    f"{path} must have {header.n_rows:,} vertices as its header says, "
                    f"got others after {seen:,}"
                )
            seen += len(records)
            where = np.stack([records[name].astype(np.float64) for name in "xyz"], axis=1)
            moved = where if transform is None else transform(where)
            stay = np.ones(len(moved), bool) if all_points else in_reach(moved)
            stop = kept + int(stay.sum())
            points[kept:stop] = moved[stay]
            for column, name in enumerate(names or ()):
                colors[kept:stop, column] = _as_bytes(records[name][stay])
            kept = stop
            if report is not None:
                report(seen, header.n_rows)
    return PointCloud(points[:kept], colors[:kept], header.n_rows - kept)


def _check_size(file: BinaryIO, header: PlyHeader, path: Path) -> None:
    """Before memory is taken for what the header announces."""
    size = os.fstat(file.fileno()).st_size
    wanted = header.data_offset + header.n_rows * header.dtype.itemsize
    if header.lines_before is not None:  # a digit and a space each, but for the last
        wanted = header.data_offset + header.n_rows * 2 * len(header.dtype.names or ()) - 1
        wanted += header.lines_before  # which are a line break at least
    if size < wanted:
        raise InputError(
            f"{path} is truncated: its header announces {header.n_rows:,} vertices "
            f"(at least {wanted:,} bytes in all), got {size:,} bytes"
        )


def _binary(file: BinaryIO, header: PlyHeader) -> Iterator[np.ndarray | None]:
    file.seek(header.data_offset)
    for start in range(0, header.n_rows, _CHUNK_ROWS):
        n = min(_CHUNK_ROWS, header.n_rows - start)
        records = np.fromfile(file, header.dtype, n)
        yield records if len(records) == n else None


def _text(file: BinaryIO, header: PlyHeader) -> Iterator[np.ndarray | None]:
    file.seek(header.data_offset)
    for _ in itertools.islice(file, header.lines_before):
        pass
    names = header.dtype.names or ()
    for start in range(0, header.n_rows, _CHUNK_ROWS):
        n = min(_CHUNK_ROWS, header.n_rows - start)
        text = b"".join(itertools.islice(file, n))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns of what it cannot read
            try:
                numbers = np.fromstring(text, np.float64, sep=" ")
            except (DeprecationWarning, ValueError):
                numbers = np.empty(0)
        if len(numbers) != n * len(names):
            yield None
            return
        records = np.empty(n, header.dtype)
        for name, column in zip(names, numbers.reshape(n, len(names)).T):
            records[name] = column
        yield records


def _as_bytes(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        scaled = np.nan_to_num(values.astype(np.float32), nan=0.0) * 255
        return np.rint(scaled.clip(0, 255)).astype(np.uint8)
    if values.dtype.itemsize == 2:
        return (values.astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
    return values.clip(0, 255).astype(np.uint8)
