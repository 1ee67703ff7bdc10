# SPDX-License-Identifier: Apache-2.0
"""Points with colours from PLY files of any size, a chunk at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from gs_train.data.files import open_file, readable
from gs_train.data.ranges import in_reach
from gs_train.errors import InputError
from gs_train.files.ply_header import PlyHeader, read_header

PIECE_ROWS = 1 << 20
"""Vertices that are read at once."""

_COLORS = (
    ("red", "green", "blue"),
    ("diffuse_red", "diffuse_green", "diffuse_blue"),
    ("r", "g", "b"),
)
_GREY = 128


@dataclass(frozen=True)
class PointCloud:
    """Points of a PLY file.

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
    piece_rows: int = PIECE_ROWS,
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
        piece_rows: vertices that are read at once.

    Raises:
        InputError: there is no such file, it is no PLY file with x, y and z, or it ends early.

    Cost: 15 bytes a point (27 in float64), and one piece.
    """
    with PlyPoints(
        path, transform=transform, dtype=dtype, all_points=all_points, piece_rows=piece_rows
    ) as file:
        points = np.empty((file.n_rows, 3), dtype)
        colors = np.empty((file.n_rows, 3), np.uint8)
        kept = 0
        for k in range(file.n_pieces):
            piece = file.read(k)
            stop = kept + len(piece.points)
            points[kept:stop], colors[kept:stop] = piece.points, piece.colors
            kept = stop
            if report is not None:
                report(min((k + 1) * file.piece_rows, file.n_rows), file.n_rows)
    return PointCloud(points[:kept], colors[:kept], file.n_rows - kept)


class PlyPoints:
    """The vertices of a PLY file a piece at a time, as `read_point_ply` has them; a context
    manager.

    Args:
        path, transform, dtype, all_points, piece_rows: as for `read_point_ply`.

    Attributes:
        n_rows: vertices in the file.
        n_pieces: in the file.
        is_text: whether pieces must be read one after the other, from the first one on.

    Raises:
        InputError: as `read_point_ply`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        transform: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
        dtype: type[np.floating[Any]] = np.float32,
        all_points: bool = False,
        piece_rows: int = PIECE_ROWS,
    ) -> None:
        self._path = Path(path)
        self._transform, self._dtype, self._all_points = transform, dtype, all_points
        self.piece_rows = piece_rows
        with readable(self._path), contextlib.ExitStack() as held:
            file = held.enter_context(open_file(self._path))
            self._header = read_header(file, self._path, takes_text=True)
            fields = self._header.dtype.names or ()
            missing = [name for name in "xyz" if name not in fields]
            if missing:
                raise InputError(
                    f"{path} must be a PLY file of points, but it lacks {', '.join(missing)}"
                )
            _check_size(file, self._header, self._path)
            held.pop_all()
        # No generator: Python loses a Ctrl-C that comes while one ends that was left halfway.
        colored = [names for names in _COLORS if set(names) <= set(fields)]
        self._color_names = colored[0] if colored else ()
        self._file = file
        self.n_rows = self._header.n_rows
        self.n_pieces = -(-self.n_rows // piece_rows)
        self.is_text = self._header.lines_before is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, k: int) -> PointCloud:
        """Piece k.

        Raises:
            InputError: the file ends early, or a line of text is no vertex.

        Threads: several may read pieces of a binary file at once.
        """
        start = k * self.piece_rows
        n = min(self.piece_rows, self.n_rows - start)
        with readable(self._path):
            if self.is_text:
                records = _text(self._file, self._header, n, is_first=k == 0)
            else:
                records = _binary(self._file, self._header, start, n)
        if records is None:
            raise InputError(
                f"{self._path} must have {self.n_rows:,} vertices as its header says, "
                f"got others after {start:,}"
            )
        # What overflows, or is no number, leaves the point out.
        with np.errstate(over="ignore", invalid="ignore"):
            where = np.stack([records[name].astype(np.float64) for name in "xyz"], axis=1)
            moved = where if self._transform is None else self._transform(where)
            stay = np.ones(n, bool) if self._all_points else in_reach(moved)
            colors = np.full((int(stay.sum()), 3), _GREY, np.uint8)
            for column, name in enumerate(self._color_names):
                colors[:, column] = _as_bytes(records[name][stay])
            points = moved[stay].astype(self._dtype)
        return PointCloud(points, colors, n - len(points))


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


def _binary(file: BinaryIO, header: PlyHeader, start: int, n: int) -> np.ndarray | None:
    """n vertices; None where the file ends before."""
    size = header.dtype.itemsize
    data = bytearray(n * size)
    view, at, done = memoryview(data), header.data_offset + start * size, 0
    while done < len(data):
        got = os.preadv(file.fileno(), [view[done:]], at + done)
        if not got:
            return None
        done += got
    return np.frombuffer(data, header.dtype)


def _text(file: BinaryIO, header: PlyHeader, n: int, *, is_first: bool) -> np.ndarray | None:
    """The next n vertices; None where lines are no vertices, or are missing."""
    if is_first:
        file.seek(header.data_offset)
        for _ in itertools.islice(file, header.lines_before):
            pass
    names = header.dtype.names or ()
    text = b"".join(itertools.islice(file, n))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of what it cannot read
        try:
            numbers = np.fromstring(text, np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    if len(numbers) != n * len(names):
        return None
    records = np.empty(n, header.dtype)
    for name, column in zip(names, numbers.reshape(n, len(names)).T):
        if records[name].dtype.kind in "iu" and not np.isfinite(column).all():
            return None
        records[name] = column
    return records


def _as_bytes(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        scaled = np.nan_to_num(values.astype(np.float32), nan=0.0) * 255
        return np.rint(scaled.clip(0, 255)).astype(np.uint8)
    if values.dtype.itemsize == 2:
        return (values.astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
    return values.clip(0, 255).astype(np.uint8)
