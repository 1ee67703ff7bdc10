# SPDX-License-Identifier: Apache-2.0
"""Byte sizes as people write them."""

from __future__ import annotations

import re

from gs_train.errors import InputError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str, *, option: str) -> int:
    """``4GiB``, ``500MB`` or ``123456`` as a number of bytes.

    Raises:
        InputError: ``text`` is none of these; the message names ``option``.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text.lower())
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
