# SPDX-License-Identifier: Apache-2.0
"""Where the numbers and words of a file are."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_PARAMETERS = {1: 4, 4: 8}  # of PINHOLE and OPENCV


@dataclass(frozen=True)
class Field:
    """A number or word in a file.

    Attributes:
        name: fields that mean the same have the same.
        start, stop: bytes.
        code: of ``struct``, for one number; empty for text.
    """

    name: str
    start: int
    stop: int
    code: str = ""


def fields_of(name: str, data: bytes) -> list[Field]:
    """The fields of a file by its name; of any text file, its words."""
    by_name = {
        "cameras.bin": _cameras,
        "images.bin": _images,
        "points3D.bin": _points,
        "binary.ply": _vertices,
    }
    if name in by_name:
        return list(by_name[name](data))
    if name.endswith(".png"):
        return [Field("width", 16, 20, ">I"), Field("height", 20, 24, ">I")]
    if name.endswith(".safetensors"):
        (length,) = struct.unpack_from("<Q", data)
        return [Field("length", 0, 8, "<Q"), *_words(data, 8, 8 + length)]
    return list(_words(data, 0, len(data)))


def _words(data: bytes, start: int, stop: int) -> Iterator[Field]:
    for match in re.compile(rb"[^\s,:\[\]{}\"]+").finditer(data, start, stop):
        yield Field("word", *match.span())


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def field(self, name: str, code: str) -> Field:
        start, self.at = self.at, self.at + struct.calcsize(code)
        return Field(name, start, self.at, code)

    def number(self, field: Field) -> int:
        value: int = struct.unpack_from(field.code, self._data, field.start)[0]
        return value

    def word(self, name: str) -> Field:
        start, self.at = self.at, self._data.index(b"\0", self.at)
        self.at += 1
        return Field(name, start, self.at - 1)


def _cameras(data: bytes) -> Iterator[Field]:
    reader = _Reader(data)
    yield (count := reader.field("count", "<Q"))
    for _ in range(reader.number(count)):
        yield reader.field("id", "<i")
        yield (model := reader.field("model", "<i"))
        yield reader.field("width", "<Q")
        yield reader.field("height", "<Q")
        for k in range(_PARAMETERS[reader.number(model)]):
            yield reader.field(f"parameter {k}", "<d")


def _images(data: bytes) -> Iterator[Field]:
    reader = _Reader(data)
    yield (count := reader.field("count", "<Q"))
    for _ in range(reader.number(count)):
        yield reader.field("id", "<I")
        for name in ("qw", "qx", "qy", "qz", "tx", "ty", "tz"):
            yield reader.field(name, "<d")
        yield reader.field("camera", "<I")
        yield reader.word("name")
        yield (seen := reader.field("observations", "<Q"))
        reader.at += 24 * reader.number(seen)


def _points(data: bytes) -> Iterator[Field]:
    reader = _Reader(data)
    yield (count := reader.field("count", "<Q"))
    for _ in range(reader.number(count)):
        yield reader.field("id", "<Q")
        yield from (reader.field(name, "<d") for name in "xyz")
        yield from (reader.field(name, "<B") for name in ("red", "green", "blue"))
        yield reader.field("error", "<d")
        yield (track := reader.field("track", "<Q"))
        reader.at += 8 * reader.number(track)


def _vertices(data: bytes) -> Iterator[Field]:
    reader = _Reader(data)
    reader.at = data.index(b"end_header\n") + len("end_header\n")
    yield from _words(data, 0, reader.at)
    while reader.at < len(data):
        yield from (reader.field(name, "<f") for name in "xyz")
        yield from (reader.field(name, "<B") for name in ("red", "green", "blue"))
