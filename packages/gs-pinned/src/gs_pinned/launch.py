# SPDX-License-Identifier: Apache-2.0
"""One transfer handed to the native part: where it runs, and on which stream."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

from gs_pinned import _core, device
from gs_pinned.counts import shown, whole_number
from gs_pinned.operands import Selection

__all__ = [
    "blocks",
    "is_checked",
    "keep_until_passed",
    "move",
    "note_written",
    "place_of",
    "torchs_stream",
]


def is_checked() -> bool:
    """Whether ids on a device are checked before each launch: GS_CHECK_INDEX=1."""
    return os.environ.get("GS_CHECK_INDEX", "0") not in ("", "0")


def place_of(array: Any, stream: Any, name: str) -> tuple[int, int]:
    """(device index or -1, stream handle) of a call whose arrays live where this one does.

    Args:
        array: the one.
        stream: as the public functions take it.
        name: the array's, for errors.
    """
    if not hasattr(array, "__dlpack_device__"):
        raise TypeError(f"{name} must be a numpy or torch array, got {type(array).__name__}")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        # By the protocol the same takes ten times as long.
        is_cuda, index = array.is_cuda, array.get_device()
    else:
        kind, index = array.__dlpack_device__()
        is_cuda = int(kind) == 2
    if not is_cuda:
        if stream is not None:
            raise ValueError(f"stream must be None for arrays on the CPU, got {shown(stream)}")
        return -1, 0
    if problem := device.device_problem():
        raise _core.CudaError(f"{name} must be on the CPU, got cuda:{index}: {problem}")
    return int(index), device.stream_handle(stream, device=int(index))


def keep_until_passed(arrays: Iterable[Any], where: int, stream: int) -> None:
    """Tells torch's allocator that tensors are in use on a stream other than its current one, so
    that their memory is not given to others before the stream has passed."""
    torch = sys.modules.get("torch")
    if where < 0 or torch is None or not torch.cuda.is_initialized():
        return  # no tensor is on a device
    if torch.cuda.current_stream(where).cuda_stream == stream:
        return
    handle = torchs_stream(stream, where)
    for array in arrays:
        if isinstance(array, torch.Tensor) and array.is_cuda:
            array.record_stream(handle)


def note_written(arrays: Iterable[Any]) -> None:
    """Tells autograd that tensors have changed, so that a backward pass which needs what they held
    before raises instead of using what they hold now."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for array in arrays:
        if isinstance(array, torch.Tensor) and not array.is_inference():
            torch.autograd.graph.increment_version(array)


@functools.lru_cache(maxsize=64)
def torchs_stream(stream: int, where: int) -> Any:
    """What torch calls a stream; nothing but its number."""
    cuda = sys.modules["torch"].cuda
    # Of number 0 torch makes a new stream.
    return cuda.ExternalStream(stream, device=where) if stream else cuda.default_stream(where)


def blocks(max_blocks: int, name: str = "max_blocks") -> int:
    """max_blocks, checked."""
    return whole_number(max_blocks, name, least=1, most=(1 << 31) - 1)


def move(
    rows: _core.Rows,
    selection: Selection,
    parts: list[tuple[Any, int]],
    *,
    to_parts: bool,
    table: Any = None,
    positions: Any = None,
    positions_name: str = "slots",
    add: bool = False,
    stream: Any = None,
    max_blocks: int = 16,
    copy_engine: bool = True,
) -> tuple[int, int]:
    """Runs or enqueues a transfer between whole rows and parts of them.

    Args:
        rows: the whole rows, already cut to the run for a selection without ids.
        selection: which of them.
        parts: (array, byte offset in the row) each.
        to_parts: from the rows to the arrays, else the other way.
        table: whose the rows are, where that is an array, which then stays until the stream has
            passed; a `Table` sees to that itself.
        positions: rows of the arrays, None for 0, 1, ...
        positions_name: what errors call them.
        add: add instead of copying.
        stream, max_blocks: as the public functions take them.
        copy_engine: whether dense copies may go by one.

    Returns:
        (device index or -1, stream handle) that it went to.
    """
    where, handle = place_of(parts[0][0], stream, "out" if to_parts else "values")
    # Before the call: where a later launch fails, earlier ones are on their way.
    held = (table, selection.ids, positions, *(array for array, _ in parts))
    keep_until_passed(held, where, handle)
    _core.move_rows(
        rows,
        selection.ids,
        parts,
        positions,
        parts_ids_name=positions_name,
        n=selection.n,
        to_parts=to_parts,
        add=add,
        stream=handle,
        max_blocks=blocks(max_blocks),
        checked=is_checked(),
        copy_engine=copy_engine,
    )
    note_written((array for array, _ in parts) if to_parts else (table,))
    return where, handle
