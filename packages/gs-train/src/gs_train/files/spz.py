# SPDX-License-Identifier: Apache-2.0
"""Gaussians as SPZ files of version 4, written a chunk of rows at a time.

An SPZ file holds each attribute as one stream of Zstandard, with the values of all rows:

    bytes 0 to 31       header: magic, version, rows, degree, fractional bits, flags, streams, 32
    16 bytes a stream   table: bytes of the stream, bytes of its content
    the streams         positions, alphas, colours, scales, rotations, harmonics

The length of a stream shows when the stream is complete, and rows come once. So the first stream
goes straight into the file, the others into temporary files without a name in the same folder, and
from there behind the first stream. The system removes a file without a name when the process ends,
however the process ends.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import IO, BinaryIO, NamedTuple

import numpy as np

from gs_train.errors import InputError
from gs_train.files.axes import turned, unit_xyzw
from gs_train.files.row_chunks import HostRows
from gs_train.files.row_file import Announced
from gs_train.files.survey import Range

_HEADER = struct.Struct("<4sIIBBBBI12x")
_TABLE_ENTRY = struct.Struct("<QQ")
_MAGIC, _VERSION = b"NGSP", 4
_ANTIALIASED = 0x1

_MAX_ROWS = 2**31 - 1
"""The reference reader counts rows in 32 bits with a sign."""

_MAX_FIXED = 2**23 - 1
"""The greatest position, in steps: 24 bits with a sign."""

_MIN_FRACTIONAL_BITS, _MAX_FRACTIONAL_BITS = 1, 24

_LEVEL = 3
"""Of Zstandard. Bytes of Gaussians repeat little: higher levels take longer and save little."""

_COLOUR_SCALE = 0.15

_SCALE_STEPS = 16
"""Steps of a log scale in 1: a byte counts them."""

_LOG_SCALES = (-10.0, 255 / _SCALE_STEPS - 10)
"""The log scales of the bytes 0 and 255."""

_DEGREES = {0: 0, 3: 1, 8: 2, 15: 3}  # by K of shN

_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
"""Components of a quaternion but for one, by that one."""


def fractional_bits(reach: float) -> int:
    """The binary digits after the point of positions: the most, of 1 to 24, with which the greatest
    coordinate fits into 24 bits with a sign; 0 where it does not fit with one digit.

    Args:
        reach: the greatest coordinate, without its sign.

    >>> [fractional_bits(reach) for reach in (0.4, 2.0, 1000.0, 4194303.5, 4194304.0)]
    [24, 21, 13, 1, 0]
    """
    for bits in range(_MAX_FRACTIONAL_BITS, _MIN_FRACTIONAL_BITS - 1, -1):
        if round(reach * 2**bits) <= _MAX_FIXED:
            return bits
    return 0


@dataclass(frozen=True)
class SpzFormat:
    """SPZ files of version 4; see :class:`gs_train.files.row_file.RowFormat`.

    Attributes:
        is_antialiased: whether opacities were trained for a renderer that compensates the blur.
    """

    is_antialiased: bool

    @property
    def needs_survey(self) -> bool:
        return True

    @property
    def log_scales(self) -> Range:
        return _LOG_SCALES

    def require_available(self) -> None:
        _import_zstandard()

    def require_room(self, announced: Announced) -> None:
        path, n_rows, survey = announced.path, announced.n_rows, announced.survey
        if not 1 <= n_rows <= _MAX_ROWS:
            raise InputError(
                f"{path} must hold 1 to {_MAX_ROWS:,} Gaussians, as SPZ does, got {n_rows:,}"
            )
        assert survey is not None
        bits = fractional_bits(survey.reach)
        step = 2.0**-bits if bits else survey.reach / _MAX_FIXED
        if not bits or step > survey.size:
            raise InputError(
                f"SPZ must have steps between positions below the size of a Gaussian, "
                f"{survey.size:.2g} in the mean; 24 bits for coordinates up to {survey.reach:.6g} "
                f"have steps of {step:.2g}: leave far Gaussians out with --crop, or choose "
                "--frame local or another --layout"
            )

    def row_bytes(self, n_bases: int) -> int:
        return sum(stream.width for stream in _streams(n_bases))

    @contextlib.contextmanager
    def encoder(self, file: BinaryIO, announced: Announced) -> Iterator[_SpzEncoder]:
        assert announced.survey is not None
        bits = fractional_bits(announced.survey.reach)
        streams = _streams(announced.n_bases)
        flags = _ANTIALIASED if self.is_antialiased else 0
        degree = _DEGREES[announced.n_bases]
        header = _HEADER.pack(
            *(_MAGIC, _VERSION, announced.n_rows, degree, bits, flags, len(streams), _HEADER.size)
        )
        file.write(header + bytes(_TABLE_ENTRY.size * len(streams)))
        with contextlib.ExitStack() as stack:
            folder = announced.path.parent
            spools = [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in streams[1:]]
            opened = [
                _Compressed(place, stream.width * announced.n_rows)
                for place, stream in zip([file, *spools], streams, strict=True)
            ]
            yield _SpzEncoder(file, bits, list(zip(streams, opened, strict=True)))


class _Stream(NamedTuple):
    """An attribute of an SPZ file.

    Attributes:
        width: bytes of a row.
        encode: (n, width) uint8 of rows with y up, and of fractional bits.
    """

    width: int
    encode: Callable[[HostRows, int], np.ndarray]


class _Compressed:
    """One stream on its way to a place.

    Args:
        place: a file, at the place where the stream begins.
        n_bytes: of the content.
    """

    def __init__(self, place: IO[bytes], n_bytes: int) -> None:
        self.place = place
        self.n_bytes = n_bytes
        self._start = place.tell()
        compressor = _import_zstandard().ZstdCompressor(level=_LEVEL)
        self._object = compressor.compressobj(size=n_bytes)

    def write(self, content: np.ndarray) -> None:
        self.place.write(self._object.compress(np.ascontiguousarray(content).data))

    def end(self) -> int:
        """Complete the stream.

        Returns:
            Its bytes at the place.
        """
        self.place.write(self._object.flush())
        return self.place.tell() - self._start


class _SpzEncoder:
    """Compresses rows into all streams; at the end the streams follow each other in the file."""

    def __init__(
        self, file: BinaryIO, bits: int, streams: list[tuple[_Stream, _Compressed]]
    ) -> None:
        self._file = file
        self._bits = bits
        self._streams = streams

    def add(self, rows: HostRows) -> None:
        rows = turned(rows)
        for stream, compressed in self._streams:
            compressed.write(stream.encode(rows, self._bits))

    def end(self) -> None:
        table = b""
        for _, compressed in self._streams:
            table += _TABLE_ENTRY.pack(compressed.end(), compressed.n_bytes)
            if compressed.place is not self._file:
                compressed.place.seek(0)
                shutil.copyfileobj(compressed.place, self._file)
                compressed.place.close()
        self._file.seek(_HEADER.size)
        self._file.write(table)


def _streams(n_bases: int) -> list[_Stream]:
    """The streams in the order of the file; harmonics of degree 0 have none."""
    streams = [
        _Stream(9, _positions),
        _Stream(1, _alphas),
        _Stream(3, _colours),
        _Stream(3, _scales),
        _Stream(4, _rotations),
    ]
    return [*streams, _Stream(3 * n_bases, _harmonics)] if n_bases else streams


def _positions(rows: HostRows, bits: int) -> np.ndarray:
    """Three bytes a coordinate: fixed point with ``bits`` digits after the point."""
    fixed = np.rint(np.ldexp(rows["means"].astype(np.float64), bits)).astype("<i4")
    return fixed.view(np.uint8).reshape(-1, 3, 4)[:, :, :3]


def _alphas(rows: HostRows, _: int) -> np.ndarray:
    logits = np.clip(rows["opacities"].astype(np.float64), -80, 80)
    return _bytes(255 / (1 + np.exp(-logits)))


def _colours(rows: HostRows, _: int) -> np.ndarray:
    return _bytes(255 * (_COLOUR_SCALE * rows["sh0"].astype(np.float64) + 0.5))


def _scales(rows: HostRows, _: int) -> np.ndarray:
    """Log scales from -10 to 5.94 in sixteenths; others become the nearest of these."""
    return _bytes(_SCALE_STEPS * (rows["scales"].astype(np.float64) - _LOG_SCALES[0]))


def _rotations(rows: HostRows, _: int) -> np.ndarray:
    """Four bytes: which component x y z w is the largest, and the others with a sign and nine bits
    for 0 to sqrt(1/2). The largest one is positive, and what is left of the length."""
    quats = unit_xyzw(rows["quats"])
    largest = np.abs(quats).argmax(axis=1)
    sign = np.where(np.take_along_axis(quats, largest[:, None], 1) < 0, -1, 1)
    others = np.take_along_axis(quats * sign, _OTHERS[largest], 1)
    parts = np.minimum(np.rint(np.abs(others) * (511 * np.sqrt(2))), 511).astype(np.uint32)
    parts |= (others < 0).astype(np.uint32) << 9
    packed = largest.astype("<u4") << 30 | parts[:, 0] << 20 | parts[:, 1] << 10 | parts[:, 2]
    return packed.astype("<u4")[:, None].view(np.uint8)


def _harmonics(rows: HostRows, _: int) -> np.ndarray:
    """A byte each for -1 to 127/128, coefficient after coefficient, red, green and blue of each."""
    return _bytes(128 * rows["shN"].astype(np.float64) + 128)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _import_zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            "--layout spz must have the package zstandard, which is not installed: "
            "pip install 'gs-train[spz]'"
        ) from error
    return zstandard
