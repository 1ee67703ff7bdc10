# SPDX-License-Identifier: Apache-2.0
"""Arguments that are numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["limit_of", "shown", "whole_array", "whole_number", "whole_numbers"]

_MOST = 1 << 59
"""Elements of eight bytes, whose bytes are counted in 64 bits."""


def shown(value: object) -> str:
    """A value in one short line, for errors."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def whole_number(value: Any, name: str, *, least: int = 0, most: int = _MOST) -> int:
    """A count, of any type that stands for a whole number, numpy's included.

    Args:
        value: the argument.
        name: the argument's, for errors.
        least, most: what it may be.

    Raises:
        ValueError: anything else.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    if number > most:
        raise ValueError(f"{name} must be a whole number of at most {most}, got {shown(value)}")
    return number


def whole_numbers(values: Iterable[Any], name: str, *, most: int = _MOST) -> list[int]:
    """Counts; see `whole_number`."""
    if _is_whole(values):
        numbers: list[int] = whole_array(values, name, most=most).tolist()
        return numbers
    return [whole_number(value, name, most=most) for value in values]


def whole_array(values: Iterable[Any], name: str, *, most: int = _MOST) -> NDArray[np.int64]:
    """(n,) `whole_numbers`, in memory of their own."""
    if not _is_whole(values):
        return np.array(whole_numbers(values, name, most=most), np.int64)
    numbers = np.asarray(values)
    # Of these, one look finds both: what is negative has the largest bits.
    if numbers.dtype == np.int64 and len(numbers) and numbers.view(np.uint64).max() <= most:
        return numbers.copy()
    # The least and the largest alone can be out of range.
    for value in (numbers.min(), numbers.max()) if len(numbers) else ():
        whole_number(value, name, most=most)
    return numbers.astype(np.int64)


def _is_whole(values: Iterable[Any]) -> bool:
    return isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"


def limit_of(seconds: float | None, name: str = "timeout_s") -> float:
    """Seconds as the native part takes them: -1 for good."""
    if seconds is None:
        return -1.0
    if not isinstance(seconds, Real) or not seconds >= 0:  # NaN neither
        raise ValueError(f"{name} must be at least 0, got {shown(seconds)}")
    return float(min(seconds, 1e9))  # a whole number may be beyond all floats
