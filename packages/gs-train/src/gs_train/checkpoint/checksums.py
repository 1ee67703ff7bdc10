# SPDX-License-Identifier: Apache-2.0
"""The CRC-32 of a file from the CRC-32 of its parts, so that no byte is summed twice."""

from __future__ import annotations

import functools

_POLYNOMIAL = 0xEDB88320  # of CRC-32, its lowest bit the highest power
_ONE = 1 << 31


def combined(first: int, second: int, n_bytes: int) -> int:
    """The CRC-32 of some bytes and ``n_bytes`` further ones, from the CRC-32 of each.

    The first one is shifted by the length of the second: multiplied by x^(8 n) modulo CRC-32's
    polynomial.

    >>> import zlib
    >>> combined(zlib.crc32(b"row"), zlib.crc32(b"s and keys"), 10) == zlib.crc32(b"rows and keys")
    True
    """
    shifted, bit = first, 0
    while n_bytes >> bit:
        if n_bytes >> bit & 1:
            shifted = _product(_power(bit), shifted)
        bit += 1
    return shifted ^ second


@functools.cache
def _power(bit: int) -> int:
    """x^(8 * 2^bit)."""
    if bit == 0:
        return _ONE >> 8
    half = _power(bit - 1)
    return _product(half, half)


def _product(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
