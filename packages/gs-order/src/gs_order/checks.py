# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no arrays: each must be of its kind before anything else looks at it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

_MOST = 2**62


def shown(value: object) -> str:
    """A value in one short line, for errors."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def integer(name: str, value: Any) -> int:
    """A number of any type that stands for a whole one, numpy's included.

    Raises:
        TypeError: another kind of object.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {shown(value)}") from None


def whole_number(name: str, value: Any, *, least: int = 0, most: int = _MOST) -> int:
    """A whole number from ``least`` to ``most``, by default what signed 64 bits hold.

    Raises:
        TypeError: another kind of object. ValueError: out of range.
    """
    number = integer(name, value)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def real(name: str, value: Any) -> float:
    """The value of a number of any real type; infinity where it is beyond all floats.

    Raises:
        TypeError: another kind of object.
    """
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    raise TypeError(f"{name} must be a number, got {shown(value)}")


def word(name: str, value: Any, words: Sequence[str]) -> None:
    """Raise ValueError unless the value is one of the words."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, got {shown(value)}")


def sequence(name: str, value: Any) -> Any:
    """The value, which has a length and items by number.

    Raises:
        TypeError: another kind of object.
    """
    is_numbered = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    if not is_numbered or isinstance(value, Mapping):
        raise TypeError(f"{name} must be a sequence, got {shown(value)}")
    return value
