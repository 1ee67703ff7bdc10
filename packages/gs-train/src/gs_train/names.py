# SPDX-License-Identifier: Apache-2.0
"""Names of files: as bytes, as text for people, and as numbers for checkpoints.

A file name is any bytes but NUL and the slash. Python holds the ones that are not UTF-8 with lone
surrogates, which no encoder takes, and the rest may hold what a terminal obeys.
"""

from __future__ import annotations

import functools
import hashlib


def encoded(name: str) -> bytes:
    """The bytes of a file name."""
    return name.encode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=65536)
def number_of(name: str) -> int:
    """63 bits of the digest of a view's name: a checkpoint holds no names."""
    return int.from_bytes(hashlib.sha256(encoded(name)).digest()[:8], "little") >> 1


def printable(text: str) -> str:
    r"""Text as one line that a terminal only shows: the rest is escaped as Python writes it.

    >>> printable("caf\udce9\n\x1b[31m.jpg")
    'caf\\xe9\\n\\x1b[31m.jpg'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
