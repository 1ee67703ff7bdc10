# SPDX-License-Identifier: Apache-2.0
"""Bounded page-locked staging memory for rows that leave the device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gs_pinned import _core, device
from gs_pinned.counts import limit_of, whole_number
from gs_pinned.errors import ClosedError, ForkedError, PageableWarning
from gs_pinned.launch import move
from gs_pinned.layout import RowLayout
from gs_pinned.operands import Selection, count_of, layout_of, parts_of

if TYPE_CHECKING:
    import torch

__all__ = ["Ring", "RingSlot", "RingStats", "store_compact"]

_BLOCKS, _BLOCKS_TO_JOIN = 3, 6  # of a kernel


@dataclass(frozen=True)
class RingStats:
    """The present content of a ring: slots taken and not yet free again, and their bytes. Slots
    become free in the order of taking, so a released slot waits for older slots."""

    bytes: int
    taken_bytes: int
    taken_slots: int


class Ring:
    """Page-locked memory of exact size, handed out in slots, in order, and reused after release.

    The producer stores rows into slots (``store_compact``) and waits while there is no room. The
    consumer waits for a slot's bytes, reads the bytes and releases the slot. Dropping a slot and
    all its views releases the slot. The ring reuses bytes only after their release and their
    landing.

    Args:
        bytes: size, at least 64. At most 256 slots are out at once.

    Raises:
        ValueError: too small. MemoryError: the memory is not there.

    Asynchrony: ``close`` turns all producers away, waiting producers included; the memory stays
        until the last slot is gone. Thread-safe.
    """

    def __init__(self, bytes: int) -> None:
        size = whole_number(bytes, "bytes", least=64)
        locked = device.has_device()
        self._core = _core.Ring(
            size,
            locked=locked,
            device=device.current_device() if locked else 0,
            may_be_pageable=True,
        )
        self._is_closed = False
        if reason := self._core.memory.refusal:
            warnings.warn(
                f"page-locking {size} bytes was refused ({reason}); the ring is pageable, and "
                "stores into it take a slower way through a small locked buffer",
                PageableWarning,
                stacklevel=2,
            )

    @property
    def is_pinned(self) -> bool:
        return self._core.memory.is_device_visible

    @property
    def stats(self) -> RingStats:
        self._need_usable()
        slots, size = self._core.taken
        return RingStats(self._core.size, size, slots)

    def take(self, rows: int, layout: RowLayout, timeout_s: float | None = None) -> RingSlot:
        """Take a slot for the caller to write, with threads of its own or from a stream.

        Waits for room. :func:`store_compact` is the call that sends rows of arrays.

        Such a slot cannot know when its rows have landed, so ``wait``, ``is_ready``, ``address``,
        ``value`` and ``with`` raise RuntimeError; use a :class:`Signal` of your own. Releasing the
        slot, or dropping the slot with its views, frees the bytes at once: keep the slot until no
        thread and no stream writes or reads the bytes.

        Args:
            rows: rows of the slot.
            layout: layout of one row, as ``Table.layout``.
            timeout_s: how long to wait for room; None for good.

        Raises:
            ValueError: more bytes than the ring has, or a negative timeout.
            TimeoutError: no room in time.
            ClosedError: the ring was closed.
        """
        self._need_usable()
        if not isinstance(layout, RowLayout):
            raise TypeError(f"layout must be a table's layout, got {type(layout).__name__}")
        rows = whole_number(rows, "rows")
        size = rows * layout.row_bytes
        if size > self._core.size:
            raise ValueError(
                f"a slot of {size} bytes must fit into the ring of {self._core.size} bytes"
            )
        taken = self._core.take(size, limit_of(timeout_s))
        if taken is None:
            raise ClosedError("the ring must be open, got one that was closed")
        return RingSlot(self._core, taken, rows, layout)

    def close(self) -> None:
        """Turn producers away. Closing twice is harmless; slots that are out stay valid."""
        self._is_closed = True
        if self._core.memory.is_usable:  # a thread that a child process lacks may hold its lock
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _need_usable(self) -> None:
        if not self._core.memory.is_usable:
            raise ForkedError("a ring must be used in the process that created it, got a child")

    def __repr__(self) -> str:
        if not self._core.memory.is_usable:
            return "Ring(of another process)"
        stats = self.stats
        state = "closed, " if self._is_closed else ""
        kind = "pinned" if self.is_pinned else "pageable"
        return (
            f"Ring({stats.bytes} bytes, {kind}, {state}{stats.taken_bytes} bytes in "
            f"{stats.taken_slots} slots taken)"
        )


class RingSlot:
    """Rows that :func:`store_compact` sends to the host.

    Call ``wait()``, read ``numpy()`` or ``torch()``, call ``release()``. As a context manager a
    slot waits on entry and releases at the end. Other code may wait for the uint32 at ``address``
    to be >= ``value``.
    """

    def __init__(
        self, ring: _core.Ring, taken: _core.TakenSlot, rows: int, layout: RowLayout
    ) -> None:
        self._ring = ring
        self._taken = taken  # releases itself when it is dropped
        self._rows = rows
        self._layout = layout
        self._is_stored = False  # by store_compact, else by who took it

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, width)."""
        return self._rows, self._layout.width

    @property
    def address(self) -> int:
        return self._landing().address

    @property
    def value(self) -> int:
        self._landing()
        return self._taken.value

    @property
    def is_ready(self) -> bool:
        """Whether the rows have landed."""
        return self._landing().value >= self._taken.value

    @property
    def is_released(self) -> bool:
        return self._taken.is_released

    def wait(self, timeout_s: float | None = None, *, spin_s: float = 0.0) -> Self:
        """Block, without the GIL, until the rows have landed; see :meth:`Signal.wait`.

        Raises:
            TimeoutError: not in time.
            IndexError: a kernel has met a position out of range and left the row unwritten, or met
                a bad row id of an earlier transfer. The next ``wait`` does not raise again.
            CudaError: the device failed before.
            RuntimeError: the slot comes from :meth:`Ring.take`.
            ForkedError: in a child process.
        """
        limits = limit_of(timeout_s), limit_of(spin_s, "spin_s")
        if not self._landing().wait(self._taken.value, *limits):
            raise TimeoutError(f"the rows did not land in {timeout_s} s")
        _core.raise_faults()
        return self

    def numpy(self, field: str | None = None) -> np.ndarray[Any, Any]:
        """(rows, width) in the ring's memory, or one named field, (rows, *shape).

        Before ``wait`` the array may hold anything. The array keeps the slot from being dropped,
        not from being released.

        Raises:
            ClosedError: the slot was released.
            ForkedError: in a child process.
        """
        rows = np.asarray(self)
        if field is None:
            return rows
        part = self._layout.field(field)
        columns = rows[:, part.first : part.first + part.width]
        inner = np.empty(part.shape, rows.dtype).strides
        return np.lib.stride_tricks.as_strided(
            columns, (self._rows, *part.shape), (self._layout.row_bytes, *inner)
        )

    def torch(self, field: str | None = None) -> torch.Tensor:
        """The same as a CPU tensor."""
        import torch

        return torch.from_numpy(self.numpy(field))

    def release(self) -> None:
        """Let the bytes be handed out again. Releasing twice is harmless."""
        self._taken.release()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # An array made from this keeps the slot as its base, and with it the ring's memory.
        if self.is_released:
            raise ClosedError("the slot must be held, got one that was released")
        self._usable()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._layout.dtype.str,
            "data": (self._ring.memory.address + self._taken.begin, False),
        }

    def __enter__(self) -> Self:
        self._landing()
        try:
            return self.wait()
        except BaseException:
            self.release()  # the traceback would hold it
            raise

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        if self.is_released or not self._taken.signal.is_usable:
            state = "released" if self.is_released else "of another process"
        elif not self._is_stored:
            state = "taken"
        else:
            state = "ready" if self.is_ready else "on its way"
        return f"RingSlot(rows={self._rows}, width={self._layout.width}, {state})"

    def _usable(self) -> _core.Signal:
        if not self._taken.signal.is_usable:
            raise ForkedError("a slot must be used in the process that took it, got a child")
        return self._taken.signal

    def _landing(self) -> _core.Signal:
        """What tells when the rows have landed."""
        signal = self._usable()
        if not self._is_stored:
            raise RuntimeError(
                "a slot must be stored into by store_compact to know when its rows have landed, "
                "got one from Ring.take; let a Signal of the producer's tell"
            )
        return signal


def store_compact(
    values: Any,
    positions: Any,
    ring: Ring,
    *,
    stream: Any = None,
    max_blocks: int | None = None,
    timeout_s: float | None = None,
) -> RingSlot:
    """Send rows to the host: densely, in order, into the next slot of a ring.

    Row ``i`` of the slot is row ``positions[i]`` of ``values``.

    Args:
        values: (M, ...) float32, float16, uint8, int32 or int64; or several such arrays, in a
            mapping or a sequence. Rows of several arrays are joined in that order: the gradients of
            ``sh0`` and ``shN`` become rows of 48. The names of a mapping are the slot's fields.
        positions: (R,) int32 or int64 where the values are, in any order; or None for all rows.
        ring: holds at least R rows.
        stream: as for :func:`gather`.
        max_blocks: None: a copy engine sends all rows of one array, fastest and without a
            multiprocessor, and takes two thirds of the link from a simultaneous ``gather``; a
            kernel of few blocks sends other rows. A number: a kernel of at most so many blocks
            sends all rows. Two blocks leave a simultaneous ``gather`` more of the link, most with
            ``max_blocks=32`` for the ``gather``.
        timeout_s: how long to wait for room; None for good.

    Returns:
        The slot; ``wait`` of the slot returns when the rows have landed.

    Raises:
        TypeError, ValueError: arrays that don't fit together, or more than the ring holds.
        IndexError: as :func:`gather`.
        TimeoutError: no room in time. ClosedError: the ring was closed.

    Asynchrony: blocks without the GIL while there is no room, then as :func:`gather`. ``values``
        must not change until the stream has passed.
    Cost: R rows over the link. All rows of one array go by a copy engine in any case when their
        size is no multiple of 16 bytes.
    """
    if not isinstance(ring, Ring):
        raise TypeError(f"ring must be a Ring, got {type(ring).__name__}")
    layout = layout_of(values, "values")
    sequence = values
    if hasattr(values, "values") and not hasattr(values, "shape"):
        sequence = list(values.values())
    parts = parts_of(
        sequence, None, width=layout.width, item_bytes=layout.dtype.itemsize, name="values"
    )
    usual = _BLOCKS if len(parts) == 1 else _BLOCKS_TO_JOIN
    rows = count_of(positions, "positions") if positions is not None else int(parts[0][0].shape[0])
    slot = ring.take(rows, layout, timeout_s)
    taken = slot._taken
    try:
        taken.begin_store()
        target = _core.Rows.of_memory(
            ring._core.memory,
            first_byte=taken.begin,
            rows=rows,
            row_bytes=layout.row_bytes,
            dtype=layout.dtype_name,
        )
        where, handle = move(
            target,
            Selection(slice(0, rows), rows),
            parts,
            to_parts=False,
            positions=positions,
            positions_name="positions",
            stream=stream,
            max_blocks=usual if max_blocks is None else max_blocks,
            copy_engine=max_blocks is None,
        )
        taken.end_store(where, handle)
        slot._is_stored = True
    except BaseException:
        slot.release()
        raise
    return slot
