# SPDX-License-Identifier: Apache-2.0
"""Gaussians as PLY files, written and read a chunk of rows at a time.

Two layouts are written, both ``binary_little_endian`` with float32 properties holding the stored
values (log scales, logit opacities, w x y z quaternions, harmonics channel-major): ``inria`` (Kerbl
et al. 2023), which every viewer reads and which carries unused normals, and ``gsplat``, which
orders the properties alike and has no normals. Any order of properties is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from gs_train.errors import InputError
from gs_train.files.ply_header import PlyHeader, read_header
from gs_train.files.row_chunks import CHUNK_ROWS, Chunk, HostRows, count_of
from gs_train.files.row_file import Announced, write_rows

Layout = Literal["inria", "gsplat"]

_MOVE_BYTES = 1 << 20


def write_ply(
    path: str | Path,
    rows: Chunk | Iterable[Chunk],
    *,
    layout: Layout = "inria",
    n_rows: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    transform: Callable[[Chunk], Chunk] | None = None,
) -> int:
    """Write Gaussians to a PLY file, leaving out the ones that are not finite.

    Args:
        path: the file; it appears, or is replaced, only when it is complete.
        rows: ``means`` (N, 3), ``scales`` (N, 3) log, ``quats`` (N, 4) w x y z, ``opacities`` (N,)
            logit, ``sh0`` (N, 1, 3), ``shN`` (N, K, 3) with K = 0, 3, 8 or 15; floating, written
            as float32; or an iterable of such chunks, at least one, all with the same K.
        layout: ``inria`` (with normals, all zero) or ``gsplat`` (without).
        n_rows: the sum of the chunks' rows; required when ``rows`` is an iterable.
        chunk_rows: how many rows are converted at once.
        transform: applied to each chunk first, for example into another frame; keeps row counts.

    Returns:
        How many rows were left out because a value of theirs was NaN or infinite.

    Raises:
        InputError: the disk has not enough space, or every row would be left out.
        ValueError: an attribute is missing or has another shape, K differs between chunks, or the
            chunks do not add up to ``n_rows``.

    Cost: memory for two chunks of ``chunk_rows`` rows, whatever N; one pass over the rows.
    """
    if isinstance(rows, Mapping):
        n_rows, rows = count_of(rows), (rows,)
    elif n_rows is None:
        raise ValueError("n_rows must be given when rows is an iterable of chunks, got None")
    return write_rows(
        Path(path),
        rows,
        form=PlyFormat(layout),
        n_rows=n_rows,
        chunk_rows=chunk_rows,
        transform=transform,
    ).n_lost


@dataclass(frozen=True)
class PlyFormat:
    """PLY files of one layout; see :class:`gs_train.files.row_file.RowFormat`."""

    layout: Layout

    def __post_init__(self) -> None:
        if self.layout not in ("inria", "gsplat"):
            raise ValueError(f"layout must be 'inria' or 'gsplat', got {self.layout!r}")

    @property
    def needs_survey(self) -> bool:
        return False

    @property
    def log_scales(self) -> None:
        return None

    def require_available(self) -> None:
        pass

    def require_room(self, announced: Announced) -> None:
        pass

    def row_bytes(self, n_bases: int) -> int:
        return 4 * len(property_names(self.layout, 3 * n_bases))

    @contextlib.contextmanager
    def encoder(self, file: BinaryIO, announced: Announced) -> Iterator[_PlyEncoder]:
        yield _PlyEncoder(file, self.layout, announced)


class _PlyEncoder:
    """A table of properties, one row after the other."""

    def __init__(self, file: BinaryIO, layout: Layout, announced: Announced) -> None:
        self._file = file
        self._layout = layout
        self._names = property_names(layout, 3 * announced.n_bases)
        self._header = _header(self._names, announced.n_rows)
        self._n_rows = 0
        file.write(self._header)

    def add(self, rows: HostRows) -> None:
        table = _table(rows, self._layout)
        self._file.write(table.data)
        self._n_rows += len(table)

    def end(self) -> None:
        header = _header(self._names, self._n_rows)
        if header != self._header:
            _replace_header(self._file, self._header, header)


def read_ply(path: str | Path, chunk_rows: int = CHUNK_ROWS) -> Iterator[dict[str, Tensor]]:
    """Read Gaussians from a binary PLY file, a chunk at a time.

    Properties are found by name, in any order and of any scalar type; other properties and
    elements are ignored. Files of this module, of Inria's code and its forks, of gsplat and of
    Nerfstudio are read. Values come as they are stored, without any check that they are finite.

    Args:
        path: the file.
        chunk_rows: rows per chunk; the last one is shorter.

    Returns:
        Iterator over rows as ``write_ply`` takes them, float32 on the CPU; no chunk for a file
        without rows.

    Raises:
        InputError: at once, when there is no such file, it is not a binary PLY file of Gaussians,
            or it is shorter than its header says.

    Cost: memory for one chunk.
    """
    path = Path(path)
    header, _ = _gaussian_header(path)
    return _read_chunks(path, header, chunk_rows)


def load_ply(path: str | Path, chunk_rows: int = CHUNK_ROWS) -> dict[str, Tensor]:
    """Read all Gaussians of a binary PLY file, as ``read_ply`` does, into one set of rows."""
    path = Path(path)
    header, n_rest = _gaussian_header(path)
    n = header.n_rows
    rows = {
        "means": torch.empty(n, 3),
        "scales": torch.empty(n, 3),
        "quats": torch.empty(n, 4),
        "opacities": torch.empty(n),
        "sh0": torch.empty(n, 1, 3),
        "shN": torch.empty(n, n_rest // 3, 3),
    }
    start = 0
    for chunk in _read_chunks(path, header, chunk_rows):
        stop = start + len(chunk["means"])
        for name, values in chunk.items():
            rows[name][start:stop] = values
        start = stop
    return rows


def sample_means(path: str | Path, most: int) -> np.ndarray:
    """(S, 3) float64 positions of at most ``most`` rows, evenly over the file's order.

    Raises:
        InputError: as :func:`read_ply`.

    Cost: reads the pages that hold these rows.
    """
    path = Path(path)
    header, _ = _gaussian_header(path)
    if not header.n_rows:
        return np.empty((0, 3))
    records = np.memmap(path, header.dtype, "r", header.data_offset, (header.n_rows,))
    some = records[:: -(-header.n_rows // most)]
    return np.stack([some[name].astype(np.float64) for name in "xyz"], axis=1)


def count_ply(path: str | Path) -> tuple[int, int]:
    """The number of Gaussians of a binary PLY file, and K, the width of their ``shN``.

    Raises:
        InputError: as :func:`read_ply`.
    """
    header, n_rest = _gaussian_header(Path(path))
    return header.n_rows, n_rest // 3


def property_names(layout: Layout, n_rest: int) -> list[str]:
    """The vertex properties of ``layout`` in file order, with ``n_rest`` = 3K of ``f_rest``."""
    return [
        *"xyz",
        *(("nx", "ny", "nz") if layout == "inria" else ()),
        *(f"f_dc_{i}" for i in range(3)),
        *(f"f_rest_{i}" for i in range(n_rest)),
        "opacity",
        *(f"scale_{i}" for i in range(3)),
        *(f"rot_{i}" for i in range(4)),
    ]


def _header(names: list[str], n_rows: int) -> bytes:
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {n_rows}"]
    lines += [f"property float {name}" for name in names]
    return ("\n".join(lines) + "\nend_header\n").encode("ascii")


def _replace_header(file: BinaryIO, old: bytes, new: bytes) -> None:
    """Put ``new`` in the place of ``old``; the data moves up when the count lost a digit."""
    end = file.tell()
    shift = len(old) - len(new)
    if shift:
        for start in range(len(old), end, _MOVE_BYTES):
            file.seek(start)
            block = file.read(min(_MOVE_BYTES, end - start))
            file.seek(start - shift)
            file.write(block)
        file.truncate(end - shift)
    file.seek(0)
    file.write(new)


def _table(rows: HostRows, layout: Layout) -> np.ndarray:
    """(n, properties) little-endian float32, as it goes to the file."""
    n, n_bases = rows["shN"].shape[:2]
    normals = 3 if layout == "inria" else 0
    table = np.zeros((n, 14 + normals + 3 * n_bases), "<f4")
    table[:, 0:3] = rows["means"]
    column = 3 + normals
    rest = rows["shN"].transpose(0, 2, 1).reshape(n, 3 * n_bases)
    for block in (rows["sh0"][:, 0], rest, rows["opacities"][:, None]):
        table[:, column : column + block.shape[1]] = block
        column += block.shape[1]
    table[:, column : column + 3] = rows["scales"]
    table[:, column + 3 :] = rows["quats"]
    return table


def _gaussian_header(path: Path) -> tuple[PlyHeader, int]:
    """The header and the number of ``f_rest`` properties; all that can be wrong with a file."""
    with _opened(path) as file:
        header = read_header(file, path)
        size = os.fstat(file.fileno()).st_size
    fields = set(header.dtype.names or ())
    n_rest = sum(name.startswith("f_rest_") for name in fields)
    missing = [name for name in property_names("gsplat", 0) if name not in fields]
    if missing:
        raise InputError(
            f"{path} must be a PLY file of Gaussians, but it lacks {', '.join(missing)}"
        )
    if n_rest not in (0, 9, 24, 45) or any(f"f_rest_{i}" not in fields for i in range(n_rest)):
        raise InputError(
            f"{path} must have 0, 9, 24 or 45 properties f_rest_0, f_rest_1, ..., got {n_rest}"
            + ("" if n_rest not in (0, 9, 24, 45) else " with gaps in their numbers")
        )
    wanted = header.data_offset + header.n_rows * header.dtype.itemsize
    if size < wanted:
        raise InputError(
            f"{path} is truncated: its header announces {header.n_rows:,} rows "
            f"({wanted:,} bytes in all), got {size:,} bytes"
        )
    return header, n_rest


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path} must be a readable PLY file: {error.strerror}") from error


def _read_chunks(path: Path, header: PlyHeader, chunk_rows: int) -> Iterator[dict[str, Tensor]]:
    n_rest = sum(name.startswith("f_rest_") for name in header.dtype.names or ())
    columns = {
        "means": list("xyz"),
        "scales": [f"scale_{i}" for i in range(3)],
        "quats": [f"rot_{i}" for i in range(4)],
        "opacities": ["opacity"],
        "sh0": [f"f_dc_{i}" for i in range(3)],
        "shN": [f"f_rest_{i}" for i in range(n_rest)],
    }
    with _opened(path) as file:
        file.seek(header.data_offset)
        for start in range(0, header.n_rows, chunk_rows):
            n = min(chunk_rows, header.n_rows - start)
            records = np.fromfile(file, header.dtype, n)
            if len(records) < n:
                raise InputError(f"{path} is truncated: it became shorter while it was read")
            blocks = {}
            for name, properties in columns.items():
                block = np.empty((n, len(properties)), np.float32)
                for column, field in enumerate(properties):
                    block[:, column] = records[field]
                blocks[name] = block
            yield {
                "means": torch.from_numpy(blocks["means"]),
                "scales": torch.from_numpy(blocks["scales"]),
                "quats": torch.from_numpy(blocks["quats"]),
                "opacities": torch.from_numpy(blocks["opacities"][:, 0]),
                "sh0": torch.from_numpy(blocks["sh0"][:, None]),
                "shN": torch.from_numpy(
                    np.ascontiguousarray(blocks["shN"].reshape(n, 3, -1).transpose(0, 2, 1))
                    if n_rest
                    else np.empty((n, 0, 3), np.float32)
                ),
            }
