# SPDX-License-Identifier: Apache-2.0
"""Blocks of rows on disk, with snapshots that outlast the end of the process and a power cut."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gs_pinned import _core
from gs_pinned.counts import whole_number
from gs_pinned.errors import BufferedWarning, ClosedError, ForkedError, SnapshotWarning
from gs_pinned.plane import (
    Plane,
    block_numbers,
    bytes_of,
    check_planes,
    counts_of,
    firsts_of,
    results_in,
    rows_of,
)
from gs_pinned.store_results import BlockTicket, StoreCheck, StoreStats

__all__ = ["BlockStore"]

_VERIFIED_AT_ONCE = 1024

OnCall = Callable[[str, str, str, int, "bytes | int"], int]


class BlockStore:
    """A table of fixed-width rows on disk, read and written in blocks of up to ``block_rows`` rows.

    Make one with :meth:`create` or :meth:`open`. Blocks have numbers, which the caller chooses.
    A snapshot is a state of all blocks that can be opened again, after kill -9 and after a power
    cut too. What was written after the last snapshot is lost with the process.

    Thread-safe. One object, of one process, writes a store; others may open it for reading. A
    reader of a store that is being written finds damage once the writer removes its snapshot.
    """

    def __init__(self, core: _core.BlockStore, path: str) -> None:
        self._core: _core.BlockStore | None = core
        self._path = path
        self._process = os.getpid()
        self._planes = tuple(
            Plane(name, width, dtype, is_head) for name, dtype, width, _, is_head in core.planes
        )

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        planes: Sequence[Plane],
        *,
        block_rows: int = 1024,
        segment_bytes: int = 8 << 30,
        threads: int = 16,
        on_call: OnCall | None = None,
    ) -> Self:
        """Make an empty store and open it for writing.

        Args:
            path: an empty folder, or none yet.
            planes: 1 to 48 column groups.
            block_rows: rows of a block at most, up to 65535.
            segment_bytes: size of a file of the store at most.
            threads, on_call: as for :meth:`open`.

        Raises:
            ValueError: ``path`` holds something, or an argument is out of range.
            OSError: the system refused.
        """
        checked = check_planes(planes)
        rows = whole_number(block_rows, "block_rows", least=1, most=_core.MOST_BLOCK_ROWS)
        pages = whole_number(segment_bytes, "segment_bytes", most=1 << 43) // _core.STORE_PAGE
        _core.BlockStore.create(
            _text_of(path),
            identity=uuid.uuid4().bytes,
            block_rows=rows,
            segment_pages=pages,
            planes=[(p.name, p.dtype, p.width, p.row_bytes, p.is_head) for p in checked],
            hook=on_call,
        )
        return cls.open(path, threads=threads, on_call=on_call)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        snapshot: int | None = None,
        read_only: bool = False,
        threads: int = 16,
        on_call: OnCall | None = None,
    ) -> Self:
        """Open a store at a snapshot.

        Args:
            path: the store's folder.
            snapshot: number of the snapshot; the newest that is whole when None.
            read_only: whether other objects may write the store meanwhile.
            threads: that read and write. They start with the first block.
            on_call: hears of every call of the system, on the thread that makes the call: name,
                path, the path that a rename leaves, offset, and the bytes of a write or their
                number. Returning 0 lets the call go on, -errno fails the call, n > 0 makes at
                most n bytes of a read or write. It must not close the store.

        Raises:
            OSError: no store there, or the system refused.
            StoreReadOnlyError: another object writes the store.
            StoreCorruptError: the store is damaged.
            StoreVersionError: it is whole, and of another version of the format.

        Cost: reads 32 bytes a block, and no record.
        """
        number = -1 if snapshot is None else whole_number(snapshot, "snapshot", most=0xFFFFFFFF)
        core = _core.BlockStore(
            _text_of(path),
            snapshot=number,
            read_only=bool(read_only),
            threads=whole_number(threads, "threads", least=1, most=1024),
            hook=on_call,
        )
        for problem in core.damaged:
            warnings.warn(
                f"snapshot {core.opened_snapshot} was opened, but {problem}",
                SnapshotWarning,
                stacklevel=2,
            )
        if not core.is_direct:
            warnings.warn(
                f"the file system of {_text_of(path)} has no direct transfers; records pass the "
                "page cache",
                BufferedWarning,
                stacklevel=2,
            )
        return cls(core, _text_of(path))

    def write(
        self,
        blocks: Iterable[int],
        values: Mapping[str, Any],
        counts: Iterable[int] | None = None,
        *,
        step: int = 0,
    ) -> None:
        """Write blocks whole, and wait. See :meth:`write_async`.

        Raises:
            OSError: the disk is full, or errs; the message names block, file and step. Such a
                block keeps its old rows, and no snapshot is made until the block is written again.
        """
        self.write_async(blocks, values, counts, step=step).wait()

    def write_async(
        self,
        blocks: Iterable[int],
        values: Mapping[str, Any],
        counts: Iterable[int] | None = None,
        *,
        at: Iterable[int] | None = None,
        step: int = 0,
    ) -> BlockTicket:
        """Begin to write blocks.

        Args:
            blocks: distinct numbers below 2^26. Memory of 32 bytes is taken for each number up to
                the largest.
            values: (rows, width) of every plane, on the CPU: the rows of the first block, then
                those of the second and so on.
            counts: rows of each block. When None all blocks are full; the last may have fewer,
                unless ``at`` is given.
            at: the row of ``values`` where each block begins; other rows are left out. When None
                the blocks lie one after the other, and there are no other rows.
            step: kept with the rows, for errors.

        Asynchrony: returns before the rows are written. Arrays in C order are not copied: leave
            them unchanged until the ticket is done. Reads and snapshots see a write once its
            ticket is done. Of two writes of one block the later call wins.
        Cost: each byte is copied once and written once.

        Raises:
            ValueError, TypeError, IndexError: a wrong argument; nothing was written.
            StoreReadOnlyError: the store cannot be written.
        """
        core = self._usable()
        numbers = block_numbers(blocks)
        arrays = rows_of(self._planes, values)
        firsts = firsts_of(at)
        rows = len(arrays[0]) if firsts is None else None
        sizes = counts_of(numbers, counts, rows, core.block_rows)
        pending = core.write(
            numbers,
            sizes,
            [bytes_of(array) for array in arrays],
            whole_number(step, "step", most=0xFFFFFFFF),
            firsts,
        )
        return BlockTicket(pending, {})

    def read(
        self,
        blocks: Iterable[int],
        planes: Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Read blocks, and wait. See :meth:`read_async`."""
        return self.read_async(blocks, planes, out=out).wait()

    def read_async(
        self,
        blocks: Iterable[int],
        planes: Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at: Iterable[int] | None = None,
    ) -> BlockTicket:
        """Begin to read blocks.

        Args:
            blocks: numbers of blocks that were written, repeats allowed.
            planes: names of planes; all when None. Where all of them are head planes, only the
                first parts of the records are read.
            out: an array in C order for each plane that is read, (rows, width), page-locked ones
                too. No two share memory. New arrays when None.
            at: the row of ``out`` where each block begins; other rows stay as they are. When None
                the blocks lie one after the other, and there are no other rows.

        Returns:
            A ticket whose ``wait()`` returns (rows, width) of each plane: the rows of the first
            block, then those of the second and so on. ``counts()`` says how many each block has.

        Asynchrony: returns before the rows are there. Thread-safe. Leave ``out`` alone until the
            ticket is done; what it holds after a failure is undefined.
        Cost: each byte is read once and copied once, into the result.

        Raises:
            IndexError: a block was never written.
            ValueError, TypeError: no such plane, a wrong ``out``, or another thread gave a block
                more or fewer rows meanwhile.
            OSError, StoreCorruptError: by ``wait()``: the drive errs, or a record is damaged.
        """
        core = self._usable()
        numbers = block_numbers(blocks)
        wanted = [plane.name for plane in self._planes] if planes is None else list(planes)
        by_name = {plane.name: plane for plane in self._planes}
        for name in wanted:
            if name not in by_name:
                raise ValueError(f"planes must be of {list(by_name)}, got {name!r}")
        sizes = core.counts(numbers)
        firsts = firsts_of(at)
        rows = sum(sizes)
        chosen = [by_name[name] for name in wanted]
        if out is not None:
            result = results_in(chosen, out, rows if firsts is None else None)
        elif firsts is not None:
            raise ValueError("out must be given where at is, got None")
        else:
            result = {p.name: np.empty((rows, p.width), p.dtype) for p in chosen}
        parts = [bytes_of(result[p.name]) if p.name in result else None for p in self._planes]
        return BlockTicket(core.read(numbers, sizes, parts, firsts), result)

    def counts(self, blocks: Iterable[int]) -> list[int]:
        """Rows of each block. Raises IndexError for a block that was never written."""
        return self._usable().counts(block_numbers(blocks))

    def snapshot(self, state: bytes = b"", *, keep: int = 1) -> int:
        """Make what was written until now outlast everything; return the snapshot's number.

        Args:
            state: bytes of the caller's, given back by ``state`` when the store is opened.
            keep: snapshots that stay, this one included.

        Raises:
            OSError: the system refused; the older snapshots stay. After a failed sync the store
                refuses all writes.
            StoreReadOnlyError: the store cannot be written, or a write failed and its block was
                not written again.

        Cost: waits until the drive has all that was written; writes 32 bytes a block.
        """
        if not isinstance(state, bytes):
            raise TypeError(f"state must be bytes, got {type(state).__name__}")
        return self._usable().snapshot(state, whole_number(keep, "keep", least=1, most=0xFFFFFFFF))

    def verify(self, report: Callable[[int, int], object] | None = None) -> StoreCheck:
        """Read every record and check its checksums.

        Args:
            report: called now and then with the blocks that are checked, and all.
        """
        if report is not None and not callable(report):
            raise TypeError(f"report must be a function, got {type(report).__name__}")
        core = self._usable()
        blocks = core.blocks
        problems: list[str] = []
        for first in range(0, len(blocks), _VERIFIED_AT_ONCE):
            part = blocks[first : first + _VERIFIED_AT_ONCE]
            problems += core.verify(part)
            if report is not None:
                report(first + len(part), len(blocks))
        return StoreCheck(len(blocks), sum(core.counts(blocks)), tuple(problems))

    def close(self) -> None:
        """Wait for reads and writes, and let other writers in. Closing twice is harmless."""
        core, self._core = self._core, None
        if core is not None and os.getpid() == self._process:
            core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        return Path(self._path)

    @property
    def planes(self) -> tuple[Plane, ...]:
        return self._planes

    @property
    def block_rows(self) -> int:
        """Rows of a block at most."""
        return self._usable().block_rows

    @property
    def blocks(self) -> list[int]:
        """Numbers of the blocks that were written, rising."""
        return self._usable().blocks

    @property
    def snapshots(self) -> list[int]:
        """Numbers of the snapshots that can be opened, rising."""
        return self._usable().snapshots

    @property
    def state(self) -> bytes:
        """The caller's bytes in the snapshot that was opened, until :meth:`forget_state`."""
        return self._usable().state

    def forget_state(self) -> None:
        """Give back the memory of ``state``, which is empty from then on; the disk keeps it."""
        self._usable().forget_state()

    @property
    def is_read_only(self) -> bool:
        return self._usable().is_read_only

    @property
    def is_direct(self) -> bool:
        """Whether records pass the page cache by."""
        return self._usable().is_direct

    @property
    def stats(self) -> StoreStats:
        return StoreStats(**self._usable().stats)

    def _usable(self) -> _core.BlockStore:
        if os.getpid() != self._process:
            raise ForkedError("a store must be used in the process that opened it, got a child")
        if self._core is None:
            raise ClosedError(f"the store {self._path} must be open, got one that was closed")
        return self._core

    def __repr__(self) -> str:
        if self._core is None or os.getpid() != self._process:
            return f"BlockStore({self._path!r}, not usable)"
        stats = self.stats
        return (
            f"BlockStore({self._path!r}, {stats.blocks} blocks, {stats.rows} rows, "
            f"{stats.disk_bytes} bytes)"
        )


def _text_of(path: str | os.PathLike[str]) -> str:
    text = os.path.abspath(os.fspath(path))
    if "\0" in text:
        raise ValueError(f"path must not hold a zero byte, got {text!r}")
    return text
