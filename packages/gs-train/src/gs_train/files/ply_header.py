# SPDX-License-Identifier: Apache-2.0
"""The header of a PLY file: where the vertices start and what one of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gs_train.errors import InputError

_TYPES = {
    "char": "i1",
    "int8": "i1",
    "uchar": "u1",
    "uint8": "u1",
    "short": "i2",
    "int16": "i2",
    "ushort": "u2",
    "uint16": "u2",
    "int": "i4",
    "int32": "i4",
    "uint": "u4",
    "uint32": "u4",
    "float": "f4",
    "float32": "f4",
    "double": "f8",
    "float64": "f8",
}
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">"}
_MAX_LINE = 4096
_MAX_LINES = 4096


@dataclass(frozen=True)
class PlyHeader:
    """Where and what the vertices of a PLY file are.

    Attributes:
        n_rows: how many vertices.
        dtype: structured, one packed vertex, fields named as the properties.
        data_offset: bytes before the first vertex; of a text file, before the first element.
        lines_before: of a text file, lines between there and the first vertex; None: it is binary.
    """

    n_rows: int
    dtype: np.dtype
    data_offset: int
    lines_before: int | None = None


@dataclass
class _Element:
    name: str
    count: int
    fields: list[tuple[str, str]]
    has_list: bool = False


def read_header(file: BinaryIO, path: Path, *, takes_text: bool = False) -> PlyHeader:
    """Parse the header of an open PLY file.

    Args:
        file: at its start.
        path: its name, for messages.
        takes_text: whether the format ``ascii`` will do.

    Raises:
        InputError: it is not such a file with a vertex element of scalar properties.
    """

    def bad(reason: str) -> InputError:
        kind = "" if takes_text else "binary "
        return InputError(f"{path} must be a {kind}PLY file: {reason}")

    if file.readline(_MAX_LINE).strip() != b"ply":
        raise bad("it does not start with 'ply'")
    order, is_text = None, False
    elements: list[_Element] = []
    for _ in range(_MAX_LINES):
        raw = file.readline(_MAX_LINE)
        if not raw.endswith(b"\n"):
            raise bad("its header does not end")
        words = raw.decode("latin-1").split()
        if words == ["end_header"]:
            break
        match words:
            case [] | ["comment" | "obj_info", *_]:
                pass
            case ["format", name, _]:
                is_text = name == "ascii" and takes_text
                if name not in _ORDERS and not is_text:
                    raise bad(f"its format is {name}")
                order = "<" if is_text else _ORDERS[name]
            case ["element", name, count] if count.isdecimal():
                elements.append(_Element(name, int(count), []))
            case ["property", "list", _, _, _] if elements:
                elements[-1].has_list = True
            case ["property", kind, name] if elements and kind in _TYPES:
                elements[-1].fields.append((name, _TYPES[kind]))
            case _:
                raise bad(f"unknown header line {' '.join(words)[:80]!r}")
    else:
        raise bad("its header does not end")
    if order is None:
        raise bad("its header names no format")

    offset = file.tell()
    lines = 0
    for element in elements:
        if element.has_list and not (is_text and element.name != "vertex"):
            raise bad(f"its element {element.name} has a list property")
        try:
            dtype = np.dtype([(name, order + kind) for name, kind in element.fields])
        except ValueError as error:
            raise bad(f"its element {element.name}: {error}") from error
        if element.name == "vertex":
            return PlyHeader(element.count, dtype, offset, lines if is_text else None)
        if is_text:
            lines += element.count
        else:
            offset += element.count * dtype.itemsize
    raise bad("it has no vertex element")
