# SPDX-License-Identifier: Apache-2.0
"""Planes of a block store: the column groups of its rows; and the arguments of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_pinned import _core
from gs_pinned.counts import shown, whole_array, whole_number, whole_numbers

__all__ = [
    "Plane",
    "block_array",
    "block_numbers",
    "bytes_of",
    "check_planes",
    "counts_of",
    "firsts_of",
    "results_in",
    "rows_of",
]

_KINDS = "iufb"  # numpy's letters of integers, floats and bool
_MOST_ROW_BYTES = 1 << 20


@dataclass(frozen=True)
class Plane:
    """Some columns of every row, stored together.

    Args:
        name: 1 to 40 bytes of UTF-8.
        width: columns.
        dtype: of the values: integers, floats or bool.
        is_head: whether the plane lies in a record's first part, which can be read alone.
    """

    name: str
    width: int
    dtype: str = "float32"
    is_head: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name.encode()) <= 40:
            raise ValueError(f"name must be 1 to 40 bytes long, got {shown(self.name)}")
        if "\0" in self.name:
            raise ValueError(f"name must not hold a zero byte, got {shown(self.name)}")
        dtype = np.dtype(self.dtype)
        if dtype.kind not in _KINDS or not dtype.isnative or len(dtype.name) > 12:
            raise TypeError(f"dtype must be of integers, floats or bool, got {dtype}")
        object.__setattr__(self, "dtype", dtype.name)
        object.__setattr__(self, "width", whole_number(self.width, "width", least=1))
        if self.row_bytes > _MOST_ROW_BYTES:
            raise ValueError(
                f"a row of plane {self.name} must have at most {_MOST_ROW_BYTES} bytes, "
                f"got {self.row_bytes}"
            )

    @property
    def row_bytes(self) -> int:
        return self.width * np.dtype(self.dtype).itemsize


def check_planes(planes: Sequence[Plane]) -> tuple[Plane, ...]:
    """The planes of a store, of which no two have one name."""
    checked = tuple(planes)
    for plane in checked:
        if not isinstance(plane, Plane):
            raise TypeError(f"planes must be Plane objects, got {type(plane).__name__}")
    if not 1 <= len(checked) <= 48:
        raise ValueError(f"planes must be 1 to 48, got {len(checked)}")
    names = [plane.name for plane in checked]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"planes must have distinct names, got {name} twice")
    return checked


def rows_of(planes: Sequence[Plane], values: Mapping[str, Any]) -> list[NDArray[Any]]:
    """The values of each plane as a C-ordered array of as many rows as the others'."""
    names = {plane.name for plane in planes}
    if missing := [plane.name for plane in planes if plane.name not in values]:
        raise ValueError(f"values must hold every plane, got none of {missing[0]}")
    if unknown := [name for name in values if name not in names]:
        raise ValueError(f"values must hold planes of the store, got {shown(unknown[0])}")
    arrays: list[NDArray[Any]] = []
    for plane in planes:
        array = np.asarray(values[plane.name])
        if array.dtype != np.dtype(plane.dtype):
            raise TypeError(f"plane {plane.name} must be {plane.dtype}, got {array.dtype}")
        if array.ndim == 1 and plane.width == 1:
            array = array[:, None]
        if array.ndim != 2 or array.shape[1] != plane.width:
            raise ValueError(
                f"plane {plane.name} must have shape (rows, {plane.width}), got {array.shape}"
            )
        if arrays and len(array) != len(arrays[0]):
            raise ValueError(
                f"plane {plane.name} must have {len(arrays[0])} rows as {planes[0].name} has, "
                f"got {len(array)}"
            )
        arrays.append(np.ascontiguousarray(array))
    return arrays


def results_in(
    planes: Sequence[Plane], out: Mapping[str, Any], rows: int | None
) -> dict[str, NDArray[Any]]:
    """The arrays of `out` that `rows` rows of each plane are to be read into.

    None: any number of rows, the same for all planes.
    """
    names = {plane.name for plane in planes}
    if unknown := [name for name in out if name not in names]:
        raise ValueError(f"out must hold planes that are read, got {shown(unknown[0])}")
    result: dict[str, NDArray[Any]] = {}
    for plane in planes:
        if plane.name not in out:
            raise ValueError(f"out must hold every plane that is read, got none of {plane.name}")
        array = np.asarray(out[plane.name])
        if array.dtype != np.dtype(plane.dtype):
            raise TypeError(f"out of plane {plane.name} must be {plane.dtype}, got {array.dtype}")
        rows = array.shape[0] if rows is None and array.ndim else rows
        if array.shape != (rows, plane.width):
            raise ValueError(
                f"out of plane {plane.name} must have shape {(rows, plane.width)}, "
                f"got {array.shape}"
            )
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(f"out of plane {plane.name} must be in C order and writable")
        if any(np.may_share_memory(array, other) for other in result.values()):
            raise ValueError(f"out of plane {plane.name} must not share memory with another's")
        result[plane.name] = array
    return result


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of a C-ordered array, not copied."""
    return array.reshape(-1).view(np.uint8)


def block_numbers(blocks: Iterable[int]) -> list[int]:
    """The numbers of blocks. Raises IndexError for one out of range."""
    numbers: list[int] = block_array(blocks).tolist()
    return numbers


def block_array(blocks: Iterable[int]) -> NDArray[np.int64]:
    """(n,) `block_numbers`, in memory of their own."""
    try:
        return whole_array(blocks, "blocks", most=_core.MOST_BLOCKS - 1)
    except ValueError as error:
        raise IndexError(str(error)) from None


def firsts_of(at: Iterable[int] | None) -> list[int] | None:
    """Rows where blocks begin."""
    return None if at is None else whole_numbers(at, "at")


def counts_of(
    blocks: list[int], counts: Iterable[int] | None, rows: int | None, block_rows: int
) -> list[int]:
    """Rows of each block, given or full, that add up to `rows`, if that is given."""
    if counts is not None:
        sizes = whole_numbers(counts, "counts", most=block_rows)
        if len(sizes) != len(blocks):
            raise ValueError(f"counts must be {len(blocks)}, one a block, got {len(sizes)}")
    else:
        sizes = [block_rows] * len(blocks)
        if blocks and rows is not None:
            last = rows - block_rows * (len(blocks) - 1)
            sizes[-1] = last if 0 <= last <= block_rows else block_rows
    if rows is not None and sum(sizes) != rows:
        raise ValueError(f"values must have {sum(sizes)} rows for {len(blocks)} blocks, got {rows}")
    return sizes
