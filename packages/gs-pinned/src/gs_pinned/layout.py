# SPDX-License-Identifier: Apache-2.0
"""How one row is laid out: its element type and the named fields in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gs_pinned.counts import shown, whole_number

__all__ = ["DTYPES", "FieldShapes", "RowLayout"]

DTYPES = ("float32", "float16", "uint8", "int32", "int64")

FieldShapes = Mapping[str, int | tuple[int, ...]]


def dtype_name(dtype: Any, argument: str = "dtype") -> str:
    """The name of a numpy or torch dtype, or of its string form, checked to be one of DTYPES."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        try:
            known = np.dtype(dtype)
        except (TypeError, ValueError):
            raise TypeError(
                f"{argument} must be one of {', '.join(DTYPES)}, got {shown(dtype)}"
            ) from None
        name = known.name if known.isnative else known.str
    if name not in DTYPES:
        raise TypeError(f"{argument} must be one of {', '.join(DTYPES)}, got {name}")
    return name


@dataclass(frozen=True)
class Field:
    """A run of columns that is also seen as an array of its own shape."""

    first: int
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        return math.prod(self.shape)


class RowLayout:
    """Columns of one row, all of one element type, packed without gaps.

    Args:
        width: elements of a row, at least 1.
        dtype: one of DTYPES.
        fields: name -> number of columns or shape of one row, in the order in which they lie in
            the row; together as wide as the row. None: no named fields.
    """

    def __init__(self, width: int, dtype: Any, fields: FieldShapes | None) -> None:
        self.width = whole_number(width, "width", least=1)
        self.dtype_name = dtype_name(dtype)  # numpy finds it anew at each look
        self.dtype = np.dtype(self.dtype_name)
        self.fields: dict[str, Field] = {}
        if fields is not None and not isinstance(fields, Mapping):
            raise TypeError(
                "fields must be a mapping from names to numbers of columns or shapes, got "
                f"{type(fields).__name__}"
            )
        first = 0
        for name, shape in (fields or {}).items():
            if not isinstance(name, str):
                raise TypeError(f"fields must be named by str, got {shown(name)}")
            sizes = shape if isinstance(shape, tuple | list) else (shape,)
            label = f"fields[{name!r}]"
            field = Field(first, tuple(whole_number(size, label, least=1) for size in sizes))
            self.fields[name] = field
            first += field.width
        if self.fields and first != self.width:
            raise ValueError(
                f"fields must add up to the width {self.width}, got {first} columns in "
                f"{', '.join(self.fields)}"
            )

    @property
    def row_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    def field(self, name: str) -> Field:
        """Raises KeyError with the names there are."""
        if not isinstance(name, str) or name not in self.fields:
            known = ", ".join(self.fields) or "none"
            raise KeyError(f"field must be one of the table's ({known}), got {shown(name)}")
        return self.fields[name]

    def names(self) -> Iterator[str]:
        return iter(self.fields)
