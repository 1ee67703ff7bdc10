# SPDX-License-Identifier: Apache-2.0
"""Write out the set bits of words, eight bits or a whole run of words at a time, in compiled code.

Where rows lie along a curve most words are empty or full and neighbours are alike, so runs of full
words are copied or counted as one; the rest goes byte by byte through tables. A byte is always
written as eight lanes of which the surplus is overwritten by what follows. ``end`` says where the
caller's part of the output ends: nothing is written there, as it may be another thread's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from gs_order.bits import lowest_bit, popcount

_BITS = (np.arange(256)[:, None] >> np.arange(8)) & 1


def _places() -> np.ndarray[Any, Any]:
    """(256, 8) int32: where the set bits of a byte are, then zeros."""
    places = np.argsort(1 - _BITS, axis=1, kind="stable")
    return np.where(np.arange(8) < _BITS.sum(axis=1)[:, None], places, 0).astype(np.int32)


def _gathered() -> np.ndarray[Any, Any]:
    """(256 * 256,) uint8: [whole * 256 + part], the bits of part where whole has bits, packed."""
    rank = np.cumsum(_BITS, axis=1) - _BITS  # [whole, bit]
    lanes = (_BITS[:, None, :] & _BITS[None, :, :]) << rank[:, None, :]
    return lanes.sum(axis=2).astype(np.uint8).reshape(-1)


PLACES = _places()
GATHERED = _gathered()

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_BYTE = np.uint64(255)
_8 = np.uint64(8)


def _lane_pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _store_places(typing_context: Any, out: Any, at: Any, table: Any, byte: Any, base: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(32), 8)
        row = builder.shl(args[3], ir.Constant(ir.IntType(64), 3))
        source = _lane_pointer(context, builder, signature.args[2], args[2], row)
        places = builder.load(builder.bitcast(source, lanes.as_pointer()))
        places.align = 4
        undefined = ir.Constant(lanes, ir.Undefined)
        first = builder.insert_element(undefined, args[4], ir.Constant(ir.IntType(32), 0))
        bases = builder.shuffle_vector(first, undefined, ir.Constant(lanes, [0] * 8))
        target = _lane_pointer(context, builder, signature.args[0], args[0], args[1])
        stored = builder.store(
            builder.add(places, bases), builder.bitcast(target, lanes.as_pointer())
        )
        stored.align = 4
        return context.get_dummy_value()

    return types.void(out, types.int64, table, types.uint64, types.int32), generate


def _copy(typing_context: Any, out: Any, at: Any, values: Any, start: Any, n: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _lane_pointer(context, builder, signature.args[2], args[2], args[3])
        target = _lane_pointer(context, builder, signature.args[0], args[0], args[1])
        size = context.get_abi_sizeof(context.get_data_type(out.dtype))
        cgutils.raw_memcpy(builder, target, source, args[4], size)
        return context.get_dummy_value()

    return types.void(out, types.int64, values, types.int64, types.int64), generate


def _gather_8(
    typing_context: Any, out: Any, at: Any, values: Any, start: Any, table: Any, byte: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row = builder.shl(args[5], ir.Constant(ir.IntType(64), 3))
        lane = _lane_pointer(context, builder, signature.args[4], args[4], row)
        source = _lane_pointer(context, builder, signature.args[2], args[2], args[3])
        target = _lane_pointer(context, builder, signature.args[0], args[0], args[1])
        found = []
        for k in range(8):
            place = builder.load(builder.gep(lane, [ir.Constant(ir.IntType(64), k)]))
            found.append(builder.load(builder.gep(source, [builder.zext(place, ir.IntType(64))])))
        for k in range(8):
            builder.store(found[k], builder.gep(target, [ir.Constant(ir.IntType(64), k)]))
        return context.get_dummy_value()

    return types.void(out, types.int64, values, types.int64, table, types.uint64), generate


store_places: Any = intrinsic(_store_places)
"""``out[at + k] = base + table[byte, k]`` for k < 8; int32."""

copy: Any = intrinsic(_copy)
"""``out[at : at + n] = values[start : start + n]``; one dtype, no overlap."""

gather_8: Any = intrinsic(_gather_8)
"""``out[at + k] = values[start + table[byte, k]]`` for k < 8; one dtype."""


@njit(cache=True, nogil=True)
def put_values(bits, values, start, out, at, end):  # type: ignore[no-untyped-def]
    """Append ``values[start + k]`` for each set bit k of the words ``bits``; returns what is next.

    Bits at or beyond the end of ``values`` are not set.
    """
    w = 0
    while w < len(bits):
        word = bits[w]
        if word == _ALL:
            first = w
            while w < len(bits) and bits[w] == _ALL:
                w += 1
            run = 64 * (w - first)
            copy(out, at, values, start + 64 * first, run)
            at += run
            continue
        row = start + 64 * w
        while word != np.uint64(0):
            byte = word & _BYTE
            if byte != np.uint64(0):
                n = np.int64(popcount(byte))
                if at + 8 <= end:
                    gather_8(out, at, values, row, PLACES, byte)
                else:
                    for k in range(n):
                        out[at + k] = values[row + PLACES[byte, k]]
                at += n
            word >>= _8
            row += 8
        w += 1
    return at


@njit(cache=True, nogil=True)
def put_positions(part, whole, position, out, at, end):  # type: ignore[no-untyped-def]
    """Append the ranks of the bits of ``part`` among those of ``whole``, counted from ``position``.

    Args:
        part, whole: (n,) uint64; part's bits are all whole's.
    """
    for w in range(len(whole)):
        here, chosen = whole[w], part[w]
        if here == np.uint64(0):
            continue
        n_here = np.int64(popcount(here))
        if chosen == here:
            if at + 64 <= end:
                for k in range(0, n_here, 8):
                    store_places(out, at + k, PLACES, _BYTE, np.int32(position + k))
            else:
                for k in range(n_here):
                    out[at + k] = position + k
            at += n_here
            position += n_here
            continue
        after = position + n_here
        while chosen != np.uint64(0):
            byte = chosen & _BYTE
            if byte != np.uint64(0):
                ranks = np.uint64(GATHERED[((here & _BYTE) << _8) | byte])
                n = np.int64(popcount(byte))
                if at + 8 <= end:
                    store_places(out, at, PLACES, ranks, np.int32(position))
                else:
                    for k in range(n):
                        out[at + k] = position + PLACES[ranks, k]
                at += n
            position += np.int64(popcount(here & _BYTE))
            here >>= _8
            chosen >>= _8
        position = after
    return at


@njit(cache=True, nogil=True)
def put_rest(part, whole, position, out, at, end, rest):  # type: ignore[no-untyped-def]
    """As `put_positions`, for the bits of ``whole`` that ``part`` lacks; ``rest`` is workspace."""
    for w in range(len(whole)):
        rest[w] = whole[w] & ~part[w]
    return put_positions(rest, whole, position, out, at, end)


@njit(cache=True, nogil=True)
def number_bits(bits, start, number, out):  # type: ignore[no-untyped-def]
    """``out[start + k] = number, number + 1, ...`` for the set bits k of the words ``bits``."""
    for w in range(len(bits)):
        row = start + 64 * w
        word = bits[w]
        if word == _ALL:
            for k in range(0, 64, 8):
                store_places(out, row + k, PLACES, _BYTE, np.int32(number + k))
            number += 64
            continue
        while word != np.uint64(0):
            out[row + np.int64(lowest_bit(word))] = number
            number += 1
            word &= word - np.uint64(1)


@njit(cache=True, nogil=True)
def spread_values(bits, values, at, out, start):  # type: ignore[no-untyped-def]
    """``out[start + k] = values[at], values[at + 1], ...`` for the set bits k of the words."""
    for w in range(len(bits)):
        row = start + 64 * w
        word = bits[w]
        if word == _ALL:
            copy(out, row, values, at, 64)
            at += 64
            continue
        while word != np.uint64(0):
            out[row + np.int64(lowest_bit(word))] = values[at]
            at += 1
            word &= word - np.uint64(1)
