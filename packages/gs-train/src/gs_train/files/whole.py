# SPDX-License-Identifier: Apache-2.0
"""Whole numbers that are read from a file."""

from __future__ import annotations

from typing import Any


def whole(value: Any, *, below: int = 2**63) -> int:
    """``value``, which must be a whole number from 0 to ``below`` - 1.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"a number must be whole and not negative, got {value!r:.40}")
    return value
