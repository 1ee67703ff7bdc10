# SPDX-License-Identifier: Apache-2.0
"""Gaussians as binary glTF files with the extension KHR_gaussian_splatting, written a chunk of rows
at a time.

A ``.glb`` file is a header, a chunk of JSON and a chunk of bytes. The bytes hold one attribute
after the other, each with the values of all rows. The number of rows is known beforehand, so a
chunk of rows is written at its places in all attributes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gs_train.errors import InputError
from gs_train.files.axes import turned, unit_xyzw
from gs_train.files.row_chunks import HostRows
from gs_train.files.row_file import Announced
from gs_train.files.survey import Survey

EXTENSION = "KHR_gaussian_splatting"

_HEADER = struct.Struct("<4sII")
_CHUNK_HEADER = struct.Struct("<I4s")
_MAX_BYTES = 2**32 - 1  # lengths have 32 bits
_FLOAT, _BYTE, _VERTICES, _POINTS = 5126, 5121, 34962, 0
_TYPES = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}
_MAX_LOG_SCALE = 88.0  # exp of more is no float32
_COLOUR_OF_SH0 = 0.28209479177387814


class _Attribute(NamedTuple):
    """An attribute of the points of a glTF file.

    Attributes:
        name: in the file.
        width: values of a row.
        dtype: of the values.
        encode: (n, width) of rows with y up.
    """

    name: str
    width: int
    dtype: str
    encode: Callable[[HostRows], np.ndarray]

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class GltfFormat:
    """Binary glTF files; see :class:`gs_train.files.row_file.RowFormat`."""

    @property
    def needs_survey(self) -> bool:
        return True

    @property
    def log_scales(self) -> None:
        return None

    def require_available(self) -> None:
        pass

    def require_room(self, announced: Announced) -> None:
        path, n_rows = announced.path, announced.n_rows
        if not n_rows:
            raise InputError(f"{path} must hold a Gaussian, as glTF does, got none")
        room = _MAX_BYTES - len(_head(announced)) - _CHUNK_HEADER.size
        row_bytes = self.row_bytes(announced.n_bases)
        if n_rows * row_bytes > room:
            raise InputError(
                f"{path} must hold at most {room // row_bytes:,} Gaussians of {row_bytes} bytes, "
                f"the 4 GiB of a .glb file, got {n_rows:,}: leave some out with --crop, or choose "
                "another --layout"
            )

    def row_bytes(self, n_bases: int) -> int:
        return sum(attribute.row_bytes for attribute in _attributes(n_bases))

    @contextlib.contextmanager
    def encoder(self, file: BinaryIO, announced: Announced) -> Iterator[_GltfEncoder]:
        file.write(_head(announced))
        file.write(_CHUNK_HEADER.pack(_content_bytes(announced), b"BIN\0"))
        yield _GltfEncoder(file, announced)


class _GltfEncoder:
    """Writes the values of a chunk of rows at their places in all attributes."""

    def __init__(self, file: BinaryIO, announced: Announced) -> None:
        self._file = file
        self._places = list(_places(announced))
        self._start = file.tell()
        self._n_rows = 0

    def add(self, rows: HostRows) -> None:
        rows = turned(rows)
        for attribute, place in self._places:
            self._file.seek(self._start + place + self._n_rows * attribute.row_bytes)
            values = attribute.encode(rows).astype(attribute.dtype)
            self._file.write(np.ascontiguousarray(values).data)
        self._n_rows += len(rows["means"])

    def end(self) -> None:
        pass


def _places(announced: Announced) -> Iterator[tuple[_Attribute, int]]:
    """Attributes, and where each begins among the bytes."""
    place = 0
    for attribute in _attributes(announced.n_bases):
        yield attribute, place
        place += attribute.row_bytes * announced.n_rows


def _content_bytes(announced: Announced) -> int:
    row_bytes = sum(attribute.row_bytes for attribute in _attributes(announced.n_bases))
    return row_bytes * announced.n_rows


def _head(announced: Announced) -> bytes:
    """All that precedes the chunk of bytes."""
    text = json.dumps(_document(announced), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    n_bytes = _HEADER.size + 2 * _CHUNK_HEADER.size + len(text) + _content_bytes(announced)
    header = _HEADER.pack(b"glTF", 2, min(n_bytes, _MAX_BYTES))
    return header + _CHUNK_HEADER.pack(len(text), b"JSON") + text


def _document(announced: Announced) -> dict[str, Any]:
    assert announced.survey is not None
    names: dict[str, int] = {}
    views: list[dict[str, Any]] = []
    accessors: list[dict[str, Any]] = []
    for attribute, place in _places(announced):
        names[attribute.name] = len(accessors)
        views.append(
            {
                "buffer": 0,
                "byteOffset": place,
                "byteLength": attribute.row_bytes * announced.n_rows,
                "target": _VERTICES,
            }
        )
        accessor = {
            "bufferView": len(accessors),
            "componentType": _FLOAT if attribute.dtype == "<f4" else _BYTE,
            "count": announced.n_rows,
            "type": _TYPES[attribute.width],
        }
        if accessor["componentType"] == _BYTE:
            accessor["normalized"] = True
        accessors.append(accessor)
    accessors[names["POSITION"]] |= _bounds(announced.survey)
    splatting = {
        "kernel": "ellipse",
        "colorSpace": "srgb_rec709_display",
        "projection": "perspective",
        "sortingMethod": "cameraDistance",
    }
    primitive = {"attributes": names, "mode": _POINTS, "extensions": {EXTENSION: splatting}}
    version = importlib.metadata.version("gs-train")
    return {
        "asset": {"version": "2.0", "generator": f"gs-train {version}"},
        "extensionsUsed": [EXTENSION],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "buffers": [{"byteLength": _content_bytes(announced)}],
        "bufferViews": views,
        "accessors": accessors,
    }


def _bounds(survey: Survey) -> dict[str, list[float]]:
    """Of the positions in the file, whose y and z have the other sign."""
    (x0, y0, z0), (x1, y1, z1) = survey.low, survey.high
    # 0.0 + value: no zero with a sign.
    return {
        "min": [0.0 + value for value in (x0, -y1, -z1)],
        "max": [0.0 + value for value in (x1, -y0, -z0)],
    }


def _attributes(n_bases: int) -> list[_Attribute]:
    """The attributes in the order of the file."""
    attributes = [
        _Attribute("POSITION", 3, "<f4", lambda rows: rows["means"]),
        _Attribute("COLOR_0", 4, "u1", _fallback_colours),
        _Attribute(f"{EXTENSION}:ROTATION", 4, "<f4", lambda rows: unit_xyzw(rows["quats"])),
        _Attribute(f"{EXTENSION}:SCALE", 3, "<f4", _linear_scales),
        _Attribute(f"{EXTENSION}:OPACITY", 1, "<f4", _alphas),
    ]
    for index in range(1 + n_bases):
        degree = int(index**0.5)
        name = f"{EXTENSION}:SH_DEGREE_{degree}_COEF_{index - degree**2}"
        attributes.append(_Attribute(name, 3, "<f4", _harmonic(index)))
    return attributes


def _harmonic(index: int) -> Callable[[HostRows], np.ndarray]:
    if index == 0:
        return lambda rows: rows["sh0"][:, 0]
    return lambda rows: rows["shN"][:, index - 1]


def _linear_scales(rows: HostRows) -> np.ndarray:
    return np.exp(np.minimum(rows["scales"].astype(np.float64), _MAX_LOG_SCALE))


def _alphas(rows: HostRows) -> np.ndarray:
    """(n, 1) opacities in [0, 1]."""
    logits = np.clip(rows["opacities"].astype(np.float64), -80, 80)
    return 1 / (1 + np.exp(-logits[:, None]))


def _fallback_colours(rows: HostRows) -> np.ndarray:
    """(n, 4) linear colours and opacities, for programs that draw points."""
    shown = np.clip(0.5 + _COLOUR_OF_SH0 * rows["sh0"][:, 0].astype(np.float64), 0, 1)
    linear = np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)
    return np.rint(255 * np.concatenate([linear, _alphas(rows)], axis=1))
