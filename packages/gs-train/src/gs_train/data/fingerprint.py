# SPDX-License-Identifier: Apache-2.0
"""What a run was trained on, in a few bytes a photograph, and what of it has changed since.

A photograph's size and time of change are taken at once, the CRC of its bytes when it is decoded
anyway. Another time alone is no change: a copied folder has other times. Another size is one, and
where times differ the CRC decides. A photograph that a caller in Python holds has no time: the CRC
of its pixels decides.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gs_train.data.capture import Capture, CaptureView, read_image
from gs_train.data.depths import DepthMap
from gs_train.data.files import open_file, readable
from gs_train.data.masks import Mask
from gs_train.data.pixel_file import pixel_bytes
from gs_train.data.pixels import BrokenPhotographError
from gs_train.errors import InputError

_CHUNK_BYTES = 1 << 20
_N_THREADS = 8
_SHOWN = 3
_NO_TIME = 0

Stamp = tuple[int, int]
"""Bytes of a photograph, its mask and its depth map, and the last time of change in nanoseconds."""


@dataclass(frozen=True)
class Changes:
    """How a capture differs from what a run was trained on.

    Attributes:
        photographs: names of changed ones: going on with them would mix two captures.
        remade: names of photographs whose undistorted or reduced image has become another file:
            changed, or only made by another version of Pillow.
        has_other_points: only the start of a run uses points.
    """

    photographs: tuple[str, ...] = ()
    remade: tuple[str, ...] = ()
    has_other_points: bool = False


def points_digest(capture: Capture) -> str:
    """Hex digest of positions and colours of all points."""
    digest = hashlib.sha256()
    for values in (capture.points, capture.colors):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def stamps(capture: Capture) -> list[Stamp | None]:
    """Of the photograph of each view; None where it cannot be read."""
    with ThreadPoolExecutor(_N_THREADS) as pool:
        return list(pool.map(lambda i: _stamp(capture, i), range(len(capture.views))))


def file_crc(path: Path, crc: int = 0) -> int:
    """CRC-32 of a file, behind what has the ``crc``.

    Raises:
        InputError: it is no file, or cannot be read.
    """
    with readable(path), open_file(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def photograph_crc(view: CaptureView) -> int:
    """CRC-32 of a view's file and those of its mask and depth map, or of the pixels that a caller
    gives.

    Raises:
        InputError: it cannot be read.
    """
    if view.pixels is not None:
        return zlib.crc32(read_image(view).data)
    paths = [view.path]
    if isinstance(view.mask, Mask) and view.mask.path != view.path:
        paths.append(view.mask.path)
    if isinstance(view.depth, DepthMap):
        paths.append(view.depth.path)
    crc = 0
    for path in paths:
        crc = file_crc(path, crc)
    return crc


def crcs(capture: Capture) -> list[int | None]:
    """Of all photographs; None where one cannot be read.

    Cost: reads all.
    """

    def one(view: CaptureView) -> int | None:
        try:
            return photograph_crc(view)
        except InputError:
            return None

    with ThreadPoolExecutor(_N_THREADS) as pool:
        return list(pool.map(one, capture.views))


def changes(saved: Mapping[str, Any], capture: Capture) -> Changes:
    """What differs between a run's fingerprint and the capture as it is now.

    Args:
        saved: what :meth:`gs_train.data.PhotoReader.fingerprint` gave, of the same views.

    Cost: reads the photographs whose times of change differ and whose CRC is known. The changed
        ones are decoded: one that is broken has not changed, and is left to who reads it.
    """
    changed, in_doubt = [], []
    for index, (before, now) in enumerate(zip(saved["photographs"], stamps(capture))):
        is_skipped = index in capture.broken or index in saved["skipped"]
        if before is None or now is None or is_skipped:
            continue
        n_bytes, time_ns, crc = before
        if now[0] != n_bytes:
            changed.append(index)
        elif crc is not None and (now[1] != time_ns or now[1] == _NO_TIME):
            in_doubt.append((index, crc))
    with ThreadPoolExecutor(_N_THREADS) as pool:
        crcs = pool.map(lambda item: photograph_crc(capture.views[item[0]]), in_doubt)
        others = [index for (index, before), now in zip(in_doubt, crcs) if before != now]
    whole = [i for i in sorted({*changed, *others}) if _is_whole(capture.views[i])]
    remade = [i for i in whole if i in others and capture.views[i].is_made]
    changed = [i for i in whole if i not in remade]
    return Changes(
        tuple(capture.views[i].name for i in changed),
        tuple(capture.views[i].name for i in remade),
        saved["points"] != points_digest(capture),
    )


def first_of(names: tuple[str, ...]) -> str:
    """How many, and the first of them."""
    return f"{len(names)} (first {', '.join(names[:_SHOWN])})"


def _is_whole(view: CaptureView) -> bool:
    try:
        read_image(view)
    except BrokenPhotographError:
        return False
    return True


def _stamp(capture: Capture, index: int) -> Stamp | None:
    view = capture.views[index]
    if view.pixels is not None:
        return pixel_bytes(view.pixel_size), _NO_TIME
    paths = [view.photograph or view.path]
    if isinstance(view.mask, Mask) and view.mask.source not in paths:
        paths.append(view.mask.source)
    if isinstance(view.depth, DepthMap):
        paths.append(view.depth.source)
    try:
        found = [path.stat() for path in paths]
    except (OSError, ValueError):  # a name with a NUL
        return None
    return sum(status.st_size for status in found), max(status.st_mtime_ns for status in found)
