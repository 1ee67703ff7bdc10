# SPDX-License-Identifier: Apache-2.0
"""Arrays that hold blocks in slots, and moves between these and tables of host memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_pinned.counts import shown
from gs_pinned.exchange import exchange
from gs_pinned.launch import place_of, torchs_stream
from gs_pinned.layout import dtype_name
from gs_pinned.plane import Plane
from gs_pinned.signal import Signal
from gs_pinned.table import Table
from gs_pinned.transfer import scatter

__all__ = ["BlockSlots"]

Ints = NDArray[np.int64]


class BlockSlots:
    """One array a plane, of as many slots of ``block_rows`` rows each.

    A block moves as one row of ``block_rows`` times the plane's width, by :func:`exchange`. Moves
    are numbered from 1 and pass in order.

    Args:
        planes: of the store.
        arrays: (slots * block_rows, width) by plane, in C order, all on one device.
        block_rows: rows of a slot.
        stream: that blocks move on; None for torch's current one, and for arrays on the CPU.
    """

    def __init__(
        self, planes: Sequence[Plane], arrays: Mapping[str, Any], block_rows: int, stream: Any
    ) -> None:
        self._arrays = _by_block(planes, arrays, block_rows)
        self._device, handle = place_of(self._arrays[0], stream, f"arrays of {planes[0].name}")
        # The same stream, whatever is torch's current one later.
        self._stream = torchs_stream(handle, self._device) if self._device >= 0 else None
        self._moved = Signal()
        self._n_moves = 0

    @property
    def n_slots(self) -> int:
        return int(self._arrays[0].shape[0])

    @property
    def n_moves(self) -> int:
        """Moves so far."""
        return self._n_moves

    @property
    def n_passed(self) -> int:
        """Moves that have ended: the host may use the memory of their places again."""
        return self._moved.value

    def wait(self, move: int) -> None:
        """Wait until a move has ended. Raises CudaError where the device failed."""
        self._moved.wait(move)

    def check(self, tables: Sequence[Table]) -> None:
        """Raises ValueError for tables and arrays that no blocks can move between."""
        nothing: Any = np.empty(0, np.int64)
        if self._device >= 0:
            torch = sys.modules["torch"]
            nothing = torch.empty(0, dtype=torch.int64, device=f"cuda:{self._device}")
        exchange(tables, self._arrays, nothing, nothing, nothing, stream=self._stream)

    def exchange(self, tables: Sequence[Table], stored: Ints, loaded: Ints, slots: Ints) -> None:
        """Load blocks from places of the tables into slots; the blocks in the last of the slots go
        to places first. See :func:`exchange`."""
        at = self._on_device(stored, loaded, slots)
        exchange(tables, self._arrays, *at, stream=self._stream)
        self._count()

    def copy_out(self, tables: Sequence[Table], slots: Ints, places: Ints) -> None:
        """Copy blocks from slots to places of the tables."""
        at, to = self._on_device(slots, places)
        for table, array in zip(tables, self._arrays, strict=True):
            scatter(array, to, table, slots=at, stream=self._stream)
        self._count()

    def _count(self) -> None:
        self._moved.set_on(self._stream, self._n_moves + 1)
        self._n_moves += 1  # last: nobody may wait for a move that no stream will pass

    def _on_device(self, *lists: Ints) -> list[Any]:
        """Numbers where the arrays are, on the stream."""
        if self._device < 0:
            return list(lists)
        torch = sys.modules["torch"]
        with torch.cuda.stream(self._stream):
            # From page-locked memory, which torch keeps until the copy has passed: a copy from
            # other memory waits for all that the stream has to do before.
            joined = torch.from_numpy(np.concatenate(lists)).pin_memory()
            joined = joined.to(f"cuda:{self._device}", non_blocking=True)
        return list(joined.split([len(one) for one in lists]))


def _by_block(planes: Sequence[Plane], arrays: Mapping[str, Any], block_rows: int) -> list[Any]:
    """(slots, block_rows * width) of each plane, the same memory."""
    names = {plane.name for plane in planes}
    if unknown := [name for name in arrays if name not in names]:
        raise ValueError(f"arrays must hold planes of the store, got {shown(unknown[0])}")
    found: list[Any] = []
    for plane in planes:
        if plane.name not in arrays:
            raise ValueError(f"arrays must hold every plane, got none of {plane.name}")
        array = arrays[plane.name]
        label = f"arrays of {plane.name}"
        if not hasattr(array, "__dlpack_device__"):
            raise TypeError(f"{label} must be a numpy or torch array, got {type(array).__name__}")
        if dtype_name(array.dtype, label) != plane.dtype:
            raise TypeError(f"{label} must be {plane.dtype}, got {dtype_name(array.dtype)}")
        shape = tuple(array.shape)
        if len(shape) != 2 or shape[1] != plane.width or not shape[0] or shape[0] % block_rows:
            raise ValueError(
                f"{label} must have shape (slots * {block_rows}, {plane.width}) and a slot at "
                f"least, got {shape}"
            )
        if (device := _device_of(array)) != _device_of(arrays[planes[0].name]):
            raise ValueError(
                f"{label} must be where those of {planes[0].name} are, got device {device}"
            )
        if found and shape[0] != len(found[0]) * block_rows:
            raise ValueError(
                f"{label} must have {len(found[0]) * block_rows} rows as those of "
                f"{planes[0].name}, got {shape[0]}"
            )
        found.append(_joined(array, (shape[0] // block_rows, block_rows * plane.width), label))
    return found


def _device_of(array: Any) -> int:
    """A CUDA device's number, else -1."""
    kind, index = array.__dlpack_device__()
    return int(index) if int(kind) == 2 else -1


def _joined(array: Any, shape: tuple[int, int], label: str) -> Any:
    if isinstance(array, np.ndarray):
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(f"{label} must be in C order and writable")
        return array.reshape(shape)
    if not array.is_contiguous():
        raise ValueError(f"{label} must be in C order")
    return array.detach().view(shape)
