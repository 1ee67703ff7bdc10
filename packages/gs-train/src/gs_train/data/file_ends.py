# SPDX-License-Identifier: Apache-2.0
"""Whether an image file is all there, from its header and its end: nothing is decoded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from PIL import Image

_TAIL_BYTES = 1 << 16

_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = 0xDA
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD8))  # TEM and the restart markers
_IEND = b"IEND\xaeB`\x82"

_TIFF_PARTS = ((273, 279), (324, 325))  # offsets and sizes of strips, and of tiles


def has_its_end(file: BinaryIO, image: Image.Image) -> bool:
    """Whether an image file ends as its format says, up to 64 KiB of other bytes behind it.

    JPEG by its end marker behind the first scan (which thumbnails precede), PNG by its last chunk,
    JPEG 2000 by its last marker, WebP and TIFF by the sizes in their headers. Other formats do not
    tell: True.

    Args:
        file: open, at any position, and left at any.
        image: as Pillow opened it from ``file``.

    Cost: a few small reads.
    """
    size = os.fstat(file.fileno()).st_size
    if image.format in ("JPEG", "MPO"):
        start = _first_scan(file)
        return start is not None and _END_OF_IMAGE in _tail(file, size, start)
    if image.format == "PNG":
        return _IEND in _tail(file, size, 0)
    if image.format == "JPEG2000":
        return _END_OF_IMAGE in _tail(file, size, 0)
    if image.format == "WEBP":
        file.seek(4)
        return size >= 8 + int.from_bytes(file.read(4), "little")
    if image.format == "TIFF":
        return size >= _tiff_end(image)
    return True


def _tail(file: BinaryIO, size: int, start: int) -> bytes:
    file.seek(max(start, size - _TAIL_BYTES))
    return file.read(_TAIL_BYTES)


def _first_scan(file: BinaryIO) -> int | None:
    """Where a JPEG's first entropy-coded data begins; None where the segments lead nowhere."""
    file.seek(2)
    while True:
        if file.read(1) != b"\xff":
            return None
        while (code := file.read(1)) == b"\xff":  # any number of these may come before the code
            pass
        if not code:
            return None
        if code[0] in _WITHOUT_LENGTH:
            continue
        length = int.from_bytes(file.read(2), "big")
        if length < 2:
            return None
        file.seek(length - 2, os.SEEK_CUR)
        if code[0] == _START_OF_SCAN:
            return file.tell()


def _tiff_end(image: Image.Image) -> int:
    """One past the last byte that the strips or tiles of the first picture use."""
    tags = getattr(image, "tag_v2", {})
    ends = [
        offset + length
        for offsets, lengths in _TIFF_PARTS
        for offset, length in zip(_numbers(tags, offsets), _numbers(tags, lengths))
    ]
    return max(ends, default=0)


def _numbers(tags: Mapping[int, Any], tag: int) -> tuple[int, ...]:
    value = tags.get(tag, ())
    return value if isinstance(value, tuple) else (value,)
