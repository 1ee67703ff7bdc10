# SPDX-License-Identifier: Apache-2.0
"""The arguments of a transfer, brought into the form that the native part takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gs_pinned.layout import RowLayout, dtype_name

__all__ = ["Selection", "count_of", "layout_of", "parts_of"]


class Selection:
    """Rows chosen by an array of ids, or by a slice as one dense run.

    Args:
        ids: (R,) int32 or int64, or a slice of step 1.
        n_rows: rows there are, for the slice.
    """

    def __init__(self, ids: Any, n_rows: int) -> None:
        self.first = 0
        self.ids = ids
        if isinstance(ids, slice):
            first, end, step = ids.indices(n_rows)
            if step != 1:
                raise ValueError(f"ids must be a slice of step 1, got step {step}")
            self.first, self.n, self.ids = first, max(0, end - first), None
        elif not hasattr(ids, "dtype"):
            raise TypeError(f"ids must be an array or a slice, got {type(ids).__name__}")
        else:
            self.n = count_of(ids, "ids")


def count_of(ids: Any, name: str) -> int:
    """Ids in a one-dimensional array."""
    if not hasattr(ids, "dtype"):
        raise TypeError(f"{name} must be a numpy or torch array, got {type(ids).__name__}")
    if len(ids.shape) != 1:
        raise ValueError(f"{name} must have shape (any), got {tuple(ids.shape)}")
    return int(ids.shape[0])


def width_of(array: Any, name: str) -> int:
    """Elements of one row of an array."""
    if not hasattr(array, "dtype"):
        raise TypeError(f"{name} must be a numpy or torch array, got {type(array).__name__}")
    if not len(array.shape):
        raise ValueError(f"{name} must have rows, got a scalar")
    return math.prod(int(size) for size in array.shape[1:])


def parts_of(
    arrays: Any, layout: RowLayout | None, *, width: int, item_bytes: int, name: str
) -> list[tuple[Any, int]]:
    """(array, byte offset in the row) of each array that takes part.

    Args:
        arrays: one array of whole rows; a mapping from names of ``layout``'s fields; or a sequence
            of arrays that follow one another in the row and cover it.
        layout: the table's, for the names.
        width: elements of a whole row.
        item_bytes: bytes of an element.
        name: the argument's, for errors.
    """
    if isinstance(arrays, Mapping | list | tuple) and not arrays:
        raise ValueError(f"{name} must be at least one array, got none")
    if isinstance(arrays, Mapping):
        if layout is None or not layout.fields:
            raise TypeError(f"{name} must not be a mapping for a table without fields")
        fields = [(array, layout.field(key), f"{name}[{key!r}]") for key, array in arrays.items()]
        for array, field, label in fields:
            if width_of(array, label) != field.width:
                raise ValueError(
                    f"{label} must have rows of {field.width} elements, got shape "
                    f"{tuple(array.shape)}"
                )
        return [(array, field.first * item_bytes) for array, field, _ in fields]
    sequence = list(arrays) if isinstance(arrays, list | tuple) else [arrays]
    parts, first = [], 0
    for array in sequence:
        parts.append((array, first * item_bytes))
        first += width_of(array, name)
    if first != width:
        shapes = ", ".join(str(tuple(array.shape)) for array in sequence)
        raise ValueError(f"{name} must have rows of {width} elements, got shape {shapes}")
    return parts


def layout_of(arrays: Any, name: str) -> RowLayout:
    """The row that arrays make when they are joined: as wide as all of them, in their order."""
    named = arrays if isinstance(arrays, Mapping) else {}
    sequence = list(arrays.values()) if isinstance(arrays, Mapping) else _as_sequence(arrays)
    if not sequence:
        raise ValueError(f"{name} must be at least one array, got none")
    widths = [width_of(array, name) for array in sequence]
    if 0 in widths:
        shape = tuple(sequence[widths.index(0)].shape)
        raise ValueError(f"{name} must have rows of at least 1 element, got shape {shape}")
    dtype = sequence[0].dtype
    for array in sequence:
        other = array.dtype
        if other is not dtype and _name_of(other) != _name_of(dtype):
            raise TypeError(
                f"{name} must be of one dtype, got {_name_of(dtype)} and {_name_of(other)}"
            )
    shapes = tuple((key, tuple(array.shape[1:]) or (1,)) for key, array in named.items())
    return _layout(sum(widths), dtype, shapes, name)


def _name_of(dtype: Any) -> str:
    """The same for numpy's and torch's."""
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=64)
def _layout(
    width: int, dtype: Any, shapes: tuple[tuple[str, tuple[int, ...]], ...], name: str
) -> RowLayout:
    """Made once: it costs as much as handing a transfer to the native part."""
    return RowLayout(width, dtype_name(dtype, name), dict(shapes))


def _as_sequence(arrays: Any) -> Sequence[Any]:
    return list(arrays) if isinstance(arrays, list | tuple) else [arrays]
