# SPDX-License-Identifier: Apache-2.0
"""Byte sizes and counts as people write them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

import tyro

from gs_train.errors import InputError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}


def parse_count(text: str) -> int:
    """``30000``, ``30k``, ``1.5M`` or ``2b`` as a whole number.

    Raises:
        ValueError: ``text`` is none of these.
    """
    match = re.fullmatch(r"\s*(-?\d[\d_]*(?:\.\d+)?)\s*([kmb]?)\s*", text.lower())
    number = Decimal(match[1]) * _COUNTS[match[2]] if match else Decimal("nan")
    if number.is_nan() or number != int(number):
        raise ValueError(f"it must be a whole number such as 30000, 30k or 1.5M, got {text!r}")
    return int(number)


Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N[k|M]",
        instance_from_str=lambda texts: parse_count(texts[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    ),
]
"""An option that counts steps, images or Gaussians: a plain int that may be written as ``30k``."""


def parse_bytes(text: str, *, option: str) -> int:
    """``4GiB``, ``500MB`` or ``123456`` as a number of bytes.

    Raises:
        InputError: ``text`` is none of these; the message names ``option``.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", str(text).lower())
    if match is None:
        raise InputError(f"{option} must be a size such as 4GiB or 500MB, got {text!r}")
    unit = match[2] or ""
    return int(float(match[1]) * {**_UNITS, **_BINARY}[unit])


def format_bytes(n: float) -> str:
    """``n`` bytes with the largest binary unit that leaves a number of at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"
