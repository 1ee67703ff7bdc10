# SPDX-License-Identifier: Apache-2.0
"""Values of a transforms file: looked up in a frame and then in the file, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gs_train.data.colmap_records import FloatArray
from gs_train.data.ranges import FARTHEST_COORDINATE
from gs_train.errors import InputError

Level = Mapping[str, Any]
"""The keys of a frame, or those beside the list of frames."""


def number(where: str, level: Level, key: str) -> float | None:
    """A finite number; None where the key is missing or null.

    Raises:
        InputError: the value is something else.
    """
    value = level.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{where}: {key} must be a number, got {value!r:.80}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InputError(f"{where}: {key} must be finite, got {value!r:.80}")
    return result


def text(where: str, level: Level, key: str) -> str | None:
    """A text that may be a file's name; None where the key is missing or null.

    Raises:
        InputError: the value is something else.
    """
    value = level.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise InputError(f"{where}: {key} must be the name of a file, got {value!r:.80}")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"{where}: {key} must be the name of a file, got {value!r:.80}") from None
    return value


def texts(where: str, level: Level, key: str) -> list[str] | None:
    """A list of texts; None where the key is missing or null.

    Raises:
        InputError: the value is something else.
    """
    value = level.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{where}: {key} must be a list of file names, got {value!r:.80}")
    return value


def matrix(where: str, level: Level, key: str) -> FloatArray | None:
    """The first three rows of a (4, 4) or (3, 4) matrix; None where the key is missing or null.

    Raises:
        InputError: the value is something else, not finite, or beyond
            `gs_train.data.ranges.FARTHEST_COORDINATE`.
    """
    value = level.get(key)
    if value is None:
        return None
    try:
        rows = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        rows = np.empty(0)
    is_affine = rows.shape == (3, 4) or (
        rows.shape == (4, 4) and np.array_equal(rows[3], (0, 0, 0, 1))
    )
    if not is_affine or not np.isfinite(rows).all():
        raise InputError(
            f"{where}: {key} must be 3 or 4 rows of 4 finite numbers, the fourth row 0 0 0 1, "
            f"got {value!r:.80}"
        )
    largest = np.abs(rows).max()
    if not largest <= FARTHEST_COORDINATE:
        raise InputError(
            f"{where}: {key} must hold numbers within {FARTHEST_COORDINATE:g}, got {largest:g}"
        )
    return rows[:3]
