# SPDX-License-Identifier: Apache-2.0
"""Arguments spoiled by their kind: arrays, numbers, words, containers and other objects.

A spoiled argument may still mean the same (a strided array, ``np.int64(3)``): where it is accepted,
the result must be the same, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from campaigns.misuse.calls import Room


class Spoiled(NamedTuple):
    """
    Attributes:
        value: instead of the good one.
        how: in a few words.
        is_same: whether it means the same.
    """

    value: Any
    how: str
    is_same: bool = False


class _Strange:
    """An object of no use."""

    def __repr__(self) -> str:
        return "a strange object"


def spoil(value: Any, room: Room, others: list[Any], limit: float | None) -> Spoiled | None:
    """Spoil one argument.

    Args:
        value: the good one.
        room: decides how.
        others: arguments that may be given in its place.
        limit: the largest number worth trying.

    Returns:
        None where there was nothing to be tried this time.
    """
    spoiled: Spoiled | None
    if room.chance(0.15):
        spoiled = _other_kind(room)
    elif others and room.chance(0.08):
        spoiled = Spoiled(room.pick(*others), "another argument")
    elif isinstance(value, torch.Tensor | np.ndarray):
        spoiled = _array(value, room)
    elif isinstance(value, bool | np.bool_):
        spoiled = room.pick(
            Spoiled(np.bool_(value), "numpy bool", True),
            Spoiled(int(value), "0 or 1", True),
            Spoiled(2, "2"), Spoiled("no", "a word"), Spoiled(math.nan, "NaN"),
        )  # fmt: skip
    elif isinstance(value, int | np.integer):
        spoiled = _whole(int(value), room)
    elif isinstance(value, float):
        spoiled = _real(value, room)
    elif isinstance(value, str):
        spoiled = _word(value, room)
    elif isinstance(value, list | tuple | dict) and value:
        spoiled = _container(value, room, limit)
    else:
        spoiled = _other_kind(room)
    if spoiled is None or (limit is not None and _largest(spoiled.value) > limit):
        return None
    return spoiled


def _largest(value: Any) -> float:
    try:
        return float(np.max(np.abs(np.asarray(value, float))))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.inf if isinstance(value, int) else 0.0


def _other_kind(room: Room) -> Spoiled:
    value = room.pick(
        None, 1.5, "x", b"x", _Strange(), {}, [], (), True, 3, -7, [None], {"x": 1}, [{}], 1j, len,
        int, np.float64(math.nan), 10**30, 2**63, range(3), {1, 2}, slice(0, 2), iter([1, 2]),
        np.zeros(3, np.float32), np.zeros((2, 0), np.int32), torch.zeros(3), [[0.0, 1.0], [2.0]],
        np.array("x"), np.array([None, {}], object), [torch.zeros(2)], memoryview(b"abcd"),
    )  # fmt: skip
    return Spoiled(value, f"{type(value).__name__} {str(value)[:40]!r}".replace("\n", " "))


def _whole(value: int, room: Room) -> Spoiled:
    same = [np.int64(value), np.int32(value), np.array(value), torch.tensor(value), float(value)]
    if room.chance(0.25):
        chosen = room.pick(*same)
        return Spoiled(chosen, f"{type(chosen).__name__} of the same", True)
    number = room.pick(
        -1, 0, 1, value + 1, value - 1, -value, 2 * value, 33, 1000, 65536, 2**31 - 1, 2**31, 2**32,
        2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**30, 1.5, math.nan, math.inf, "3",
        np.uint64(2**64 - 1), np.int64(-5), value + 0.5,
    )  # fmt: skip
    return Spoiled(number, repr(number), number == value and not isinstance(number, str))


def _real(value: float, room: Room) -> Spoiled:
    if room.chance(0.2):
        chosen = room.pick(
            np.float64(value), np.array(value), torch.tensor(value, dtype=torch.float64)
        )
        return Spoiled(chosen, f"{type(chosen).__name__} of the same", True)
    number = room.pick(
        math.nan, math.inf, -math.inf, -1.0, -value, 0.0, -0.0, 1.0, 1e39, -1e39, 1e300, 1e-45,
        1e-320, 3.4e38, 10**400, 2**63, "0.5", 5, np.float16(1.0),
    )  # fmt: skip
    return Spoiled(number, repr(number)[:40], number == value and not isinstance(number, str))


def _word(value: str, room: Room) -> Spoiled:
    word = room.pick("", "x", value.upper(), f"{value} ", f"_{value}", "__class__", "é")
    return Spoiled(room.pick(word, value.encode(), [value], word), repr(word))


def _container(value: Any, room: Room, limit: float | None) -> Spoiled | None:
    if isinstance(value, dict):
        key = room.pick(*value)
        rest = {k: v for k, v in value.items() if k != key}
        if room.chance(0.25):
            return Spoiled(rest, f"without {key!r}")
        if room.chance(0.15):
            return Spoiled({**value, room.pick("other", 3, None, b"x"): value[key]}, "another key")
        inner = spoil(value[key], room, [], limit)
        if inner is None:
            return None
        return Spoiled({**value, key: inner.value}, f"[{key!r}] {inner.how}", inner.is_same)
    kind = type(value) if type(value) in (list, tuple) else tuple
    if room.chance(0.12):
        other = tuple if kind is list else list
        return Spoiled(other(value), other.__name__, True)
    if room.chance(0.25):
        shorter, longer = kind(value[:-1]), kind((*value, value[-1]))
        return room.pick(Spoiled(shorter, "shorter"), Spoiled(longer, "longer"))
    if room.chance(0.05):
        return Spoiled(iter(value), "an iterator")
    if room.chance(0.05):
        return Spoiled(kind([value[0]] * len(value)), "one entry throughout")
    k = room.below(len(value))
    inner = spoil(value[k], room, [], limit)
    if inner is None:
        return None
    entries = list(value)
    entries[k] = inner.value
    return Spoiled(kind(entries), f"[{k}] {inner.how}", inner.is_same)


# ---------------------------------------------------------------------- arrays

_DTYPES = (
    "f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "O", "S5", "U3",
    "M8[s]", ">f4", ">i4", ">i8", "i4,f4",
)  # fmt: skip


def _array(value: Any, room: Room) -> Spoiled | None:
    is_torch = isinstance(value, torch.Tensor)
    array = value.detach().numpy() if is_torch else value
    how: Callable[..., Spoiled | None]
    how = room.pick(_layout, _layout, _dtype, _shape, _values, _values, _kind)
    if how is _kind:
        return _kind(array, room, is_torch)
    spoiled = how(array, room)
    if spoiled is None or not is_torch:
        return spoiled
    try:
        return spoiled._replace(value=torch.from_numpy(spoiled.value))
    except (TypeError, ValueError):  # torch has no such dtype or strides
        return spoiled


def _layout(array: np.ndarray, room: Room) -> Spoiled | None:
    """The same values, lying otherwise."""
    if not array.ndim:
        return None
    how = room.pick("strided", "reversed", "columns", "unaligned", "read-only", "Fortran", "wide")
    if how == "strided":
        wide = np.repeat(array, 2, axis=0)
        return Spoiled(wide[::2], how, True)
    if how == "reversed":
        axis = room.below(array.ndim)
        return Spoiled(np.flip(np.flip(array, axis).copy(), axis), how, True)
    if how == "columns":
        wide = np.repeat(array, 3, axis=-1)
        return Spoiled(wide[..., ::3], how, True)
    if how == "unaligned":
        memory = np.zeros(array.nbytes + 8, np.uint8)
        shifted = memory[room.between(1, 3) :][: array.nbytes]
        shifted[...] = np.frombuffer(array.tobytes(), np.uint8)
        return Spoiled(shifted.view(array.dtype).reshape(array.shape), how, True)
    if how == "read-only":
        copy = array.copy()
        copy.flags.writeable = False
        return Spoiled(copy, how, True)
    if how == "Fortran":
        return Spoiled(np.asfortranarray(array), how, True)
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 5), array.dtype)
    wide[..., : array.shape[-1]] = array
    return Spoiled(wide[..., : array.shape[-1]], "rows with gaps", True)


def _dtype(array: np.ndarray, room: Room) -> Spoiled | None:
    dtype = np.dtype(room.pick(*_DTYPES))
    try:
        with np.errstate(all="ignore"):
            other = array.astype(dtype)
            # The same numbers of numbers' own kinds; a bit pattern is another number, and where a
            # mask is one, ids are others.
            are_numbers = array.dtype.kind in "fiu" and dtype.kind in "fiu"
            is_same = are_numbers and bool(np.array_equal(other, array))
    except (TypeError, ValueError):
        return None
    return Spoiled(other, f"as {dtype}", is_same)


_SHAPES = (
    "fewer", "more", "one", "none", "front", "back", "flat", "scalar", "turned", "cut",
)  # fmt: skip


def _shape(array: np.ndarray, room: Room) -> Spoiled | None:
    if not array.ndim:
        return Spoiled(array[None], "(1,)")
    how = room.pick(
        "fewer", "more", "one", "none", "front", "back", "flat", "scalar", "turned", "cut"
    )
    if how == "turned" and array.ndim > 1:
        return Spoiled(np.swapaxes(array, 0, -1), "axes exchanged")
    if how == "cut" and array.ndim > 1:
        return Spoiled(np.ascontiguousarray(array[..., :-1]), "a column less")
    if how == "scalar":
        return Spoiled(np.array(array.flat[0] if array.size else 0), "a scalar")
    made = {
        "fewer": array[:-1], "more": np.concatenate([array, array[-1:]]), "one": array[:1],
        "none": array[:0], "front": array[None], "back": array[..., None], "flat": array.ravel(),
    }.get(how)  # fmt: skip
    return None if made is None else Spoiled(np.ascontiguousarray(made), how)


def _values(array: np.ndarray, room: Room) -> Spoiled | None:
    if not array.size:
        return None
    copy = array.copy()
    where = tuple(room.below(size) for size in array.shape)
    if array.dtype.kind == "f":
        info = np.finfo(array.dtype)
        number = room.pick(math.nan, math.inf, -math.inf, 0.0, info.max, info.min, info.tiny, 1e30)
        if room.chance(0.2):
            copy[...] = number
        else:
            copy[where] = number
        return Spoiled(copy, f"with {number}")
    if array.dtype.kind not in "iu":
        return None
    if array.ndim == 1 and room.chance(0.5):
        how = room.pick("reversed", "shuffled", "repeated", "equal")
        if how == "reversed":
            copy = copy[::-1].copy()
        elif how == "shuffled":
            copy = copy[room.rng.permutation(len(copy))]
        elif how == "repeated":
            copy[where] = copy[room.below(len(copy))]
        else:
            copy[...] = copy[where]
        return Spoiled(copy, how)
    info_of = np.iinfo(array.dtype)
    number = room.pick(info_of.min, info_of.max, -1, int(array.max()) + 1, 1000, 2**20)
    number = int(np.array(number).astype(array.dtype))
    if room.chance(0.2):
        copy[...] = number
    else:
        copy[where] = number
    return Spoiled(copy, f"with {number}")


def _kind(array: np.ndarray, room: Room, is_torch: bool) -> Spoiled | None:
    """The same values in another kind of array."""
    try:
        tensor = torch.from_numpy(array.copy())
    except TypeError:
        tensor = None
    if not is_torch and tensor is not None and room.chance(0.4):
        return Spoiled(tensor, "a tensor", True)
    if is_torch and room.chance(0.3):
        return Spoiled(array.copy(), "a numpy array", True)
    if not is_torch or tensor is None:
        how = room.pick("list", "masked", "matrix", "memoryview", "object")
        if how == "list":
            return Spoiled(array.tolist(), "a list", True)
        if how == "masked":
            return Spoiled(np.ma.masked_array(array.copy(), mask=False), "a masked array", True)
        if how == "matrix" and array.ndim == 2:
            with np.testing.suppress_warnings() as quiet:
                quiet.filter(PendingDeprecationWarning)
                return Spoiled(np.matrix(array), "a matrix", True)
        if how == "memoryview" and array.flags.c_contiguous:
            return Spoiled(array.copy().data, "a memoryview", True)
        return Spoiled(array.astype(object), "of objects", True)
    how = room.pick("grad", "leafless", "meta", "sparse", "negative", "parameter", "inference")
    floating = tensor.is_floating_point()
    if how == "grad" and floating:
        return Spoiled(tensor.requires_grad_(), "that requires grad", True)
    if how == "leafless" and floating:
        return Spoiled(tensor.requires_grad_() * 1, "with a history", True)
    if how == "parameter" and floating:
        return Spoiled(torch.nn.Parameter(tensor), "a Parameter", True)
    if how == "sparse" and tensor.ndim:
        return Spoiled(tensor.to_sparse(), "sparse", True)
    if how == "negative" and floating:
        return Spoiled(torch._neg_view(-tensor), "a view of negatives", True)
    if how == "inference":
        with torch.inference_mode():
            return Spoiled(tensor.clone(), "of inference mode", True)
    return Spoiled(tensor.to("meta"), "on meta")
