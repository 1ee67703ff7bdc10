# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no arrays: each must be of its kind before anything else looks at it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any

MOST_ROWS = 2**31 - 2


def shown(value: object) -> str:
    """A value in one short line, for errors."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def whole_number(name: str, value: Any, *, least: int = 0, most: int = MOST_ROWS) -> int:
    """A number of any type that stands for a whole one, numpy's included.

    Raises:
        TypeError: another kind of object. ValueError: out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {shown(value)}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, got {number}")
    return number


def number(name: str, value: Any) -> float:
    """A number of any real type.

    Raises:
        TypeError: another kind of object.
    """
    if type(value) is float:
        return value
    if isinstance(value, Real) or getattr(value, "ndim", None) == 0:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
        except (TypeError, ValueError, RuntimeError):
            pass
    raise TypeError(f"{name} must be a number, got {shown(value)}")


def distance(name: str, value: Any) -> float:
    """A finite number that is not negative.

    Raises:
        TypeError: another kind of object. ValueError: out of range.
    """
    checked = number(name, value)
    if not 0 <= checked < float("inf"):
        raise ValueError(f"{name} must be finite and at least 0, got {value}")
    return checked


def flag(name: str, value: Any) -> bool:
    """True or False, numpy's included.

    Raises:
        TypeError: another kind of object.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def check_block_size(value: Any) -> None:
    """Raise ValueError unless it is a positive multiple of 32 that fits 32 bits."""
    if not (isinstance(value, int) and 0 < value < 2**31 and value % 32 == 0):
        raise ValueError(f"block_size must be a positive multiple of 32, got {shown(value)}")


def triples(name: str, values: Iterable[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Each of the values, a tuple or list of means, scales and quats.

    Raises:
        TypeError: they are not, when it is their turn.
    """
    try:
        items = iter(values)
    except TypeError:
        raise TypeError(f"{name} must be iterable, got {shown(values)}") from None
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 3:
            raise TypeError(f"{name} must be of (means, scales, quats), got {shown(item)}")
        means, scales, quats = item
        yield means, scales, quats
