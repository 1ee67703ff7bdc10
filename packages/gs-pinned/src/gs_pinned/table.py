# SPDX-License-Identifier: Apache-2.0
"""Rows of equal width in host memory that CUDA devices can read."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np

from gs_pinned import _core, device
from gs_pinned.counts import shown, whole_number
from gs_pinned.errors import ClosedError, CudaError, ForkedError, PageableWarning
from gs_pinned.launch import move, place_of
from gs_pinned.layout import FieldShapes, RowLayout
from gs_pinned.operands import Selection, count_of, parts_of

if TYPE_CHECKING:
    import torch

__all__ = ["Table", "TableStats"]

_MOST_BYTES = 1 << 62
"""Sizes are counted in 64 bits."""


@dataclass(frozen=True)
class TableStats:
    """Sizes of a table. ``locked_chunks`` counts the pieces that no single copy may reach over:
    each piece that was page-locked by itself, and the piece that could not be locked."""

    rows: int
    capacity: int
    row_bytes: int
    used_bytes: int
    committed_bytes: int
    reserved_bytes: int
    locked_bytes: int
    locked_chunks: int


class Table:
    """Rows of equal width, page-locked, of exactly the size asked for, growable in place.

    Rows are packed: row ``i`` begins at byte ``i * width * itemsize`` of memory that begins on a
    2 MiB boundary. A row of a multiple of 64 bytes (192 for the 48 float32 of a Gaussian's
    appearance) covers whole cache lines and no line of another row. Address space is reserved for
    ``capacity`` rows and memory is committed as rows come, so rows never move and a view stays
    good while the table grows. New memory is zero.

    A table is addressed by slot; the id of a row is its slot.

    Args:
        rows: rows to begin with, zero.
        width: elements of a row. For images one row holds one image.
        dtype: float32, float16, uint8, int32 or int64, by name or as a numpy or torch dtype.
        capacity: the most rows of the table; None for as many as the machine's RAM holds.
            Reserving costs address space, not memory.
        pinned: "auto" locks pages where there is a CUDA device. If the platform refuses, the table
            warns once (PageableWarning) and stays pageable; without a device the table stays
            pageable silently. True insists. False never locks.
        fields: name -> number of columns or shape of one row, in the order of the columns,
            together ``width`` wide: ``{"sh0": (1, 3), "shN": (15, 3)}``.

    Raises:
        TypeError: a dtype that is not one of the above.
        ValueError: rows, width, capacity, pinned or fields out of range.
        CudaError: ``pinned=True`` on a machine or build without CUDA.
        MemoryError: the memory is not there, or ``pinned=True`` and locking was refused.

    Asynchrony: creation and growth return when the memory is there. ``close`` and the last
        reference wait for transfers of this package that still use the rows.
    Cost: zeroing and locking with all threads, some 25 GB/s on 16 processors; the GIL is released.

    >>> table = Table(2, 3, pinned=False, fields={"xyz": 3})
    >>> table["xyz"][:] = 1.0
    >>> table.numpy()
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """

    def __init__(
        self,
        rows: int,
        width: int,
        dtype: Any = "float32",
        *,
        capacity: int | None = None,
        pinned: Literal["auto"] | bool = "auto",
        fields: FieldShapes | None = None,
    ) -> None:
        self._layout = RowLayout(width, dtype, fields)
        rows = whole_number(rows, "rows")
        name = "rows" if capacity is None else "capacity"
        if capacity is None:
            capacity = max(rows, _core.physical_bytes() // self._layout.row_bytes)
        capacity = whole_number(capacity, name)
        if capacity * self._layout.row_bytes > _MOST_BYTES:
            raise ValueError(f"{name} must be at most {_MOST_BYTES} bytes, got {capacity} rows")
        if capacity < rows:
            raise ValueError(f"capacity must be at least rows = {rows}, got {capacity}")
        pinned = _checked_pinned(pinned)
        self._may_be_pageable = pinned is not True
        self._capacity = capacity
        self._rows = 0
        locks = pinned is not False and device.has_device()
        self._held: _core.Memory | None = _core.Memory(
            max(self._capacity, 1) * self._layout.row_bytes,
            lock="cuda" if locks else "none",
            device=device.current_device() if locks else 0,
        )
        self._grow(rows)
        self._rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, width)."""
        return self._rows, self._layout.width

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def width(self) -> int:
        return self._layout.width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._layout.dtype

    @property
    def layout(self) -> RowLayout:
        return self._layout

    @property
    def capacity(self) -> int:
        """The most rows of the table."""
        return self._capacity

    @property
    def is_pinned(self) -> bool:
        """Page-locked: kernels and copy engines read and write the rows directly."""
        return self._memory.is_device_visible

    @property
    def is_closed(self) -> bool:
        return self._held is None

    @property
    def stats(self) -> TableStats:
        memory = self._memory
        return TableStats(
            rows=self._rows,
            capacity=self._capacity,
            row_bytes=self._layout.row_bytes,
            used_bytes=self._rows * self._layout.row_bytes,
            committed_bytes=memory.size,
            reserved_bytes=memory.reserved,
            locked_bytes=memory.locked_size,
            locked_chunks=len(memory.chunk_ends) if memory.locked_size else 0,
        )

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        if self._held is None:
            return "Table(closed)"
        kind = "pinned" if self._held.is_device_visible else "pageable"
        size = self._rows * self._layout.row_bytes
        fields = f", fields={{{', '.join(self._layout.names())}}}" if self._layout.fields else ""
        return (
            f"Table(rows={self._rows}, width={self.width}, dtype={self.dtype.name}, {kind}, "
            f"{size} bytes{fields})"
        )

    def numpy(self, field: str | None = None) -> np.ndarray[Any, Any]:
        """The rows, or one field of the rows, as an array over the table's memory.

        Args:
            field: a name of ``fields``; None for whole rows.

        Returns:
            (rows, width), or (rows, *shape) of the field, writable. The array keeps the memory
            alive even after ``close``, and does not grow with the table.

        Raises:
            KeyError: no such field.
            ClosedError, ForkedError: the table has no memory (any more, or in this process).
        """
        layout, rows = self._layout, self._rows  # another thread may append
        pages = memoryview(self._memory)
        if field is None:
            return np.ndarray((rows, layout.width), self.dtype, buffer=pages)
        part = layout.field(field)
        inner = np.empty(part.shape, self.dtype).strides
        return np.ndarray(
            (rows, *part.shape),
            self.dtype,
            buffer=pages,
            # Without rows the field may begin behind the memory that there is.
            offset=part.first * self.dtype.itemsize if rows else 0,
            strides=(layout.row_bytes, *inner),
        )

    def torch(self, field: str | None = None) -> torch.Tensor:
        """``numpy(field)`` as a CPU tensor; ``is_pinned()`` agrees with the table's."""
        import torch

        return torch.from_numpy(self.numpy(field))

    def __getitem__(self, field: str) -> np.ndarray[Any, Any]:
        """``numpy(field)``."""
        return self.numpy(field)

    __iter__ = None  # by name, not by number: neither `in` nor a loop asks for table[0], table[1]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """``numpy()`` for ``np.asarray``; converted, or copied where that is asked for."""
        rows = self.numpy()
        if copy or (dtype is not None and np.dtype(dtype) != self.dtype):
            if copy is False:
                raise ValueError(f"dtype must be {self.dtype} where copy is False, got {dtype}")
            return np.array(rows, dtype)
        return rows

    def append(self, values: Any, *, stream: Any = None) -> slice:
        """Add rows at the end.

        Args:
            values: (n, width), or anything with rows of that many elements; or a mapping that
                names every field. Of the table's dtype, on the CPU or on a CUDA device.
            stream: for arrays on a device, as for :func:`gather`.

        Returns:
            The slots of the new rows.

        Raises:
            TypeError, ValueError: as :func:`scatter`, or more rows than ``capacity``. The table is
                unchanged, to the byte.
            MemoryError: the memory is not there. The table is unchanged.

        Asynchrony: present rows stay in place, so transfers may go on. Values on a device arrive in
            stream order, values on the CPU before the call returns.
        """
        layout = self._layout
        if isinstance(values, Mapping) and set(values) != set(layout.fields):
            raise ValueError(f"values must name every field, got {', '.join(values) or 'none'}")
        parts = parts_of(
            values,
            layout,
            width=layout.width,
            item_bytes=layout.dtype.itemsize,
            name="values",
        )
        first, end = self._rows, self._rows + int(parts[0][0].shape[0])
        if end > self._capacity:
            raise ValueError(
                f"rows must stay within the capacity of {self._capacity}, got {end}; create the "
                "table with a larger capacity"
            )
        # Growing may take gigabytes, or the locks of the whole table: not for values refused then.
        place_of(parts[0][0], stream, "values")
        _core.check_values(self._native_rows(first, end - first, to_come=True), parts)
        self._grow(end)
        rows = self._native_rows(first, end - first)
        move(rows, Selection(slice(first, end), end), parts, to_parts=False, stream=stream)
        self._rows = end
        return slice(first, end)

    def keep(self, mask_or_ids: Any) -> None:
        """Keep some rows, in their order, and drop all other rows; in place, with all threads.

        Args:
            mask_or_ids: (rows,) bool, or strictly increasing int32 or int64 ids, on the CPU.

        Raises:
            TypeError, ValueError, IndexError: the table is unchanged.

        Asynchrony: waits for transfers that use the rows. The memory stays committed for later
            rows, and is not zero.
        """
        if not hasattr(mask_or_ids, "dtype"):
            kind = type(mask_or_ids).__name__
            raise TypeError(f"mask_or_ids must be a numpy or torch array, got {kind}")
        ids = mask_or_ids
        if str(ids.dtype) in ("bool", "torch.bool"):
            if tuple(ids.shape) != (self._rows,):
                raise ValueError(
                    f"mask_or_ids must have shape ({self._rows},), got {tuple(ids.shape)}"
                )
            ids = np.flatnonzero(np.asarray(ids))
        n = count_of(ids, "mask_or_ids")
        # No bytecode between the rows' move and their new count: there Ctrl-C would be raised.
        done = functools.partial(setattr, self, "_rows", n)
        _core.keep_rows(self.native_rows(), ids, n=n, done=done)

    def truncate(self, rows: int) -> None:
        """Drop the rows from ``rows`` on; the others are not looked at.

        Args:
            rows: how many stay.

        Raises:
            ValueError: no number, or more rows than there are. The table is as it was.

        Asynchrony: waits for transfers that use the rows. The memory stays committed for rows to
            come; it is not zero.
        """
        rows = whole_number(rows, "rows", most=self._rows)
        self.wait()
        self._rows = rows

    def permute(self, perm: Any) -> None:
        """Re-order the rows: row ``i`` becomes the old row ``perm[i]``; with all threads.

        Args:
            perm: (rows,) int32 or int64 on the CPU, each row once.

        Raises:
            TypeError, ValueError, IndexError: the table is unchanged.

        Asynchrony: waits for transfers that use the rows.
        Cost: memory beside the table, for a moment: as much again, but no more than the largest of
            8 MiB, 64 bytes a row and a 64th of the table; and a bit a row.
        """
        count_of(perm, "perm")
        _core.permute_rows(self.native_rows(), perm)

    def overwrite(self, ids: Any, values: Any) -> None:
        """Replace rows: ``scatter`` of values on the CPU that first waits for transfers.

        Args:
            ids: as for :func:`gather`, without repeats.
            values: as for :func:`scatter`.
        """
        layout, selection = self._layout, Selection(ids, self._rows)
        parts = parts_of(
            values, layout, width=layout.width, item_bytes=layout.dtype.itemsize, name="values"
        )
        self.wait()
        count = None if selection.ids is not None else selection.n
        move(self.native_rows(selection.first, count), selection, parts, to_parts=False)

    def wait(self) -> None:
        """Block until no transfer of this package reads or writes the rows any more."""
        self._memory.wait_idle()

    def close(self) -> None:
        """Give the memory back once no view is left; the table can't be used afterwards.

        Waits for transfers that still use the rows. Closing twice is harmless.
        """
        held, self._held = self._held, None
        if held is not None and held.is_usable:
            held.wait_idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:  # of copy, deepcopy and pickle
        raise TypeError("a table can't be copied: its rows have one owner; append them to another")

    @property
    def _memory(self) -> _core.Memory:
        memory = self._held
        if memory is None:
            raise ClosedError("the table must be open, got one that was closed")
        if not memory.is_inherited and not memory.is_usable:
            raise ForkedError(
                "a page-locked table must be used in the process that created it, got a child "
                "process; start workers with the spawn method, or create the table there"
            )
        return memory

    def native_rows(self, first: int = 0, count: int | None = None) -> _core.Rows:
        """Rows [first, first + count), to the end for None, for the native part."""
        first = whole_number(first, "first", most=self._rows)
        most = self._rows - first
        return self._native_rows(
            first, most if count is None else whole_number(count, "count", most=most)
        )

    def _native_rows(self, first: int, count: int, *, to_come: bool = False) -> _core.Rows:
        row_bytes = self._layout.row_bytes
        return _core.Rows.of_memory(
            self._memory,
            first_byte=first * row_bytes,
            rows=count,
            row_bytes=row_bytes,
            dtype=self._layout.dtype_name,
            to_come=to_come,
        )

    def _grow(self, rows: int) -> None:
        """Commits memory for ``rows`` rows; a page at least, so that views have an address."""
        memory = self._memory
        refused_before = bool(memory.refusal)
        memory.grow(max(rows * self._layout.row_bytes, 1), may_be_pageable=self._may_be_pageable)
        if memory.refusal and not refused_before:
            warnings.warn(
                f"page-locking {memory.size} bytes was refused ({memory.refusal}); the table is "
                "pageable, and transfers take a slower way through a small locked buffer",
                PageableWarning,
                stacklevel=3,
            )


def _checked_pinned(pinned: Any) -> Literal["auto"] | bool:
    if isinstance(pinned, str) and pinned == "auto":
        return "auto"
    if not isinstance(pinned, bool | np.bool_):
        raise ValueError(f"pinned must be 'auto', True or False, got {shown(pinned)}")
    if pinned and not device.has_device():
        raise CudaError(
            "pinned must be 'auto' or False where no CUDA device can be used, got True: "
            + device.device_problem()
        )
    return bool(pinned)
