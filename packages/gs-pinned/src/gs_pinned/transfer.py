# SPDX-License-Identifier: Apache-2.0
"""Rows between host memory and arrays, on a stream or with host threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_pinned import _core
from gs_pinned.launch import blocks, is_checked, keep_until_passed, move, note_written, place_of
from gs_pinned.operands import Selection, count_of, parts_of
from gs_pinned.table import Table

__all__ = ["gather", "gather_retained", "raise_faults", "scatter", "scatter_add"]


def gather(
    table: Any,
    ids: Any,
    out: Any,
    *,
    slots: Any = None,
    stream: Any = None,
    max_blocks: int = 16,
) -> Any:
    """Copy selected rows of a table to arrays.

    Row ``ids[i]`` of the table becomes row ``i`` of ``out``, or row ``slots[i]``. On a GPU a kernel
    reads host memory directly, so only the selected rows cross the link.

    Args:
        table: a Table; or an (N, ...) array: page-locked host memory or memory of the device.
        ids: (R,) int32 or int64 on the device of ``out``, ``0 <= ids < N``, repeats allowed. Sorted
            ids are several times faster than random ids. Or a slice of step 1, a dense run: a copy
            engine moves the run without a multiprocessor.
        out: on a CUDA device or on the CPU, rows contiguous. One of: (R, W) of the table's dtype; a
            mapping from names of the table's fields to arrays of (R, *field), in any order (other
            fields do not move); a sequence of arrays that share the row in the sequence's order.
        slots: (R,) rows of ``out``, each once, with the type and device of ``ids``; ``out`` then
            has any number of rows, and rows in no slot keep their values. None: 0 .. R-1.
        stream: an integer handle, a torch stream or any object with ``__cuda_stream__``; None for
            torch's current stream. None on the CPU.
        max_blocks: multiprocessors used at most. Up to 16, four large thread blocks move rows of
            16-byte accesses and fill the link. Above 16, a quarter as many blocks take a larger
            share of the link from simultaneous stores.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError: dtypes, shapes or devices that don't fit together.
        ValueError: ``out`` shares memory with the table.
        IndexError: an id out of range: at once on the CPU and with ``GS_CHECK_INDEX=1`` (the check
            waits for the stream). Otherwise such a row is left alone and a later call, or
            ``raise_faults()``, raises.
        CudaError: the launch failed, or this build or machine has no CUDA.

    Asynchrony: on a device, returns before the copy is done and allocates nothing there. The table
        must not be written, nor ``ids`` changed, until the stream has passed this point; closing
        the table waits for the stream. On the CPU, returns when done. A host function of the stream
        reads a pageable table, in the same order. For autograd ``out`` and all views of the same
        tensor have been written in place.
    Cost: R rows over the link. GIL released. Thread-safe.

    >>> import numpy as np
    >>> out = np.empty((2, 3), "f4")
    >>> gather(np.eye(3, dtype="f4"), np.array([2, 0]), out)
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    rows, layout, selection = _select(table, ids)
    item_bytes, width = _width_of(rows)
    parts = parts_of(out, layout, width=width, item_bytes=item_bytes, name="out")
    _check_slots(slots, selection)
    move(
        rows,
        selection,
        parts,
        to_parts=True,
        table=table,
        positions=slots,
        stream=stream,
        max_blocks=max_blocks,
    )
    return out


def scatter(
    values: Any,
    ids: Any,
    table: Any,
    *,
    slots: Any = None,
    stream: Any = None,
    max_blocks: int = 16,
) -> None:
    """Write rows of arrays to selected rows of a table: ``table[ids[i]] = values[i]``.

    Args:
        values: as ``out`` of :func:`gather`; columns of fields not named keep their values.
        ids: as for :func:`gather`, without repeats.
        table: as for :func:`gather`.
        slots: (R,) rows of ``values``, as for :func:`gather`: ``table[ids[i]] = values[slots[i]]``.
            Repeats allowed.
        stream, max_blocks: as for :func:`gather`.

    Raises:
        As :func:`gather`; ValueError for a repeated id where ids are checked.

    Asynchrony: as :func:`gather`; the host may read the rows once the stream has passed (a
        :class:`Signal` tells).
    Cost: R rows over the link, the other way.
    """
    _write(values, ids, table, slots, add=False, stream=stream, max_blocks=max_blocks)


def scatter_add(
    values: Any, ids: Any, table: Any, *, stream: Any = None, max_blocks: int = 16
) -> None:
    """Add rows of arrays to selected rows of a table: ``table[ids[i]] += values[i]``.

    Args:
        values, ids, table, stream, max_blocks: as for :func:`scatter`. The table may as well be a
            compact one that ``ids`` number, in host or device memory.

    Raises:
        As :func:`scatter`.

    Asynchrony: as :func:`scatter`. Nothing else may write these rows meanwhile: the sum is taken by
        reading and writing, not by atomic operations.
    Cost: R rows over the link each way at once; integers wrap around.
    """
    _write(values, ids, table, None, add=True, stream=stream, max_blocks=max_blocks)


def gather_retained(
    table: Any,
    load_ids: Any,
    load_slots: Any,
    source: Any,
    source_slots: Any,
    out_slots: Any,
    out: Any,
    *,
    stream: Any = None,
    max_blocks: int = 16,
) -> Any:
    """Fill a buffer from a table and from the buffer before it, in one launch.

    ``out[load_slots[i]] = table[load_ids[i]]`` and ``out[out_slots[j]] = source[source_slots[j]]``.

    Args:
        table: as for :func:`gather`.
        load_ids: (L,) rows of the table. load_slots: (L,) rows of ``out``; None for 0 .. L-1.
        source: (M, W) on the device of ``out``, without memory in common with ``out``.
        source_slots: (S,) rows of ``source``. out_slots: (S,) rows of ``out``. All four of one
            integer type, on the device of ``out``. A slot of ``out`` occurs at most once in
            ``load_slots`` and ``out_slots`` together, checked together with ids.
        out: (C, W) of the table's dtype; rows in no slot keep their values.
        stream, max_blocks: as for :func:`gather`.

    Returns:
        ``out``.

    Raises:
        As :func:`gather`.

    Asynchrony: as :func:`gather`.
    Cost: L rows over the link, S rows within the device's memory.
    """
    rows = table.native_rows() if isinstance(table, Table) else _core.Rows.of_array(table, "table")
    where, handle = place_of(out, stream, "out")
    held = (table, load_ids, load_slots, source, source_slots, out_slots, out)
    keep_until_passed(held, where, handle)
    _core.gather_retained(
        rows,
        load_ids,
        load_slots,
        count_of(load_ids, "load_ids"),
        source,
        source_slots,
        out_slots,
        count_of(source_slots, "source_slots"),
        out,
        stream=handle,
        max_blocks=blocks(max_blocks),
        checked=is_checked(),
    )
    note_written((out,))
    return out


def raise_faults() -> None:
    """Raise IndexError when a kernel has met an id out of range since the last call.

    Kernels leave such rows alone. A kernel reports only once its stream has passed the kernel, so
    synchronise first to be sure. Every transfer on a device calls this function too.
    """
    _core.raise_faults()


def _select(table: Any, ids: Any) -> tuple[_core.Rows, Any, Selection]:
    """The rows that ids number: the whole table, or its dense run for a slice."""
    if isinstance(table, Table):
        selection = Selection(ids, table.rows)
        count = None if selection.ids is not None else selection.n
        return table.native_rows(selection.first, count), table.layout, selection
    if not hasattr(table, "shape"):
        raise TypeError(f"table must be a Table or an array, got {type(table).__name__}")
    if not len(table.shape):
        raise ValueError("table must have rows, got a scalar")
    selection = Selection(ids, int(table.shape[0]))
    if selection.ids is None:
        table = table[selection.first : selection.first + selection.n]
    return _core.Rows.of_array(table, "table"), None, selection


def _width_of(rows: _core.Rows) -> tuple[int, int]:
    item_bytes = np.dtype(rows.dtype).itemsize
    return item_bytes, rows.row_bytes // item_bytes


def _write(
    values: Any, ids: Any, table: Any, slots: Any, *, add: bool, stream: Any, max_blocks: int
) -> None:
    rows, layout, selection = _select(table, ids)
    item_bytes, width = _width_of(rows)
    parts = parts_of(values, layout, width=width, item_bytes=item_bytes, name="values")
    _check_slots(slots, selection)
    move(
        rows,
        selection,
        parts,
        to_parts=False,
        table=table,
        positions=slots,
        add=add,
        stream=stream,
        max_blocks=max_blocks,
    )


def _check_slots(slots: Any, selection: Selection) -> None:
    if slots is not None and count_of(slots, "slots") != selection.n:
        raise ValueError(
            f"slots must be one for each of the {selection.n} ids, got {count_of(slots, 'slots')}"
        )
