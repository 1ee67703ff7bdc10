# SPDX-License-Identifier: Apache-2.0
"""Numbers of Python's own types, or one line about what is wrong."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, value: Any) -> int:
    """The same number as an int.

    Raises:
        TypeError: the value is no whole number, or has a type with a point.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None


def real(name: str, value: Any) -> float:
    """The same number as a float.

    Raises:
        TypeError: the value is no number, or too large for a float.
    """
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(f"{name} must be a number, got {value!r}")
