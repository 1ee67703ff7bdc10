# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a host know of each photograph, in memory that all of them map.

::

    new ---> held       the pixels are in their place
        ---> loose      it is whole, but its place cannot be written: who needs it decodes it
        ---> broken     it is no image, and the reason is known

What is known of a photograph is written last of all, by the rank that has the photograph's turn,
and never changes. The turn is a lock on a byte: the system gives the turn to the next who waits
when its owner gives it up, or ends in whatever way.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gs_train.data.shared.memory import mapped

_TEXT_BYTES = 992
_RECORD = np.dtype(
    [("state", "<i8"), ("crc", "<i8"), ("number", "<i8"), ("size", "<i8"), ("text", "V992")]
)


class State(enum.IntEnum):
    """See the module's text."""

    NEW = 0
    HELD = 1
    LOOSE = 2
    BROKEN = 3


class Known(NamedTuple):
    """What is known of a photograph.

    Attributes:
        crc: of its file; None: not known.
        reason: why it is loose or broken.
        number: of the system's error, where there was one.
    """

    state: State
    crc: int | None = None
    reason: str = ""
    number: int | None = None


def board_bytes(n_photographs: int) -> int:
    """Of a board of so many."""
    return n_photographs * _RECORD.itemsize


class PixelBoard:
    """One process' view of the board.

    Args:
        path: of memory of `board_bytes`, zeros at first.

    Raises:
        OSError: the memory cannot be opened, or the system has no locks on bytes.

    Threads: any.
    """

    def __init__(self, path: str) -> None:
        self._records = np.frombuffer(mapped(path), _RECORD)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with self.turn(0):
                pass
        except OSError:  # a system without such locks
            self.close()
            raise

    def state(self, index: int) -> State:
        """What has become of a photograph."""
        return State(int(self._records["state"][index]))

    def known(self, index: int) -> Known:
        """All that is known of a photograph."""
        state = self.state(index)  # first: the rest was there before
        _, crc, number, size, text = self._records[index].item()
        reason = bytes(text)[:size].decode(errors="replace")
        return Known(state, crc - 1 if crc else None, reason, number or None)

    def note(self, index: int, known: Known) -> None:
        """Tell all. The caller has the photograph's turn."""
        text = known.reason.encode(errors="replace")[:_TEXT_BYTES]
        record = self._records[index : index + 1]
        record["crc"] = 0 if known.crc is None else known.crc + 1
        record["number"] = known.number or 0
        record["size"] = len(text)
        record["text"] = np.void(text.ljust(_TEXT_BYTES, b"\0"))
        record["state"] = known.state

    @contextlib.contextmanager
    def turn(self, index: int) -> Iterator[None]:
        """While entered, no other thread of any process has the turn of this photograph.

        Asynchrony: waits for who has it, without Python's lock.
        """
        # The lock belongs to what has been opened: two threads open the file twice.
        own = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(own, fcntl.F_OFD_SETLKW, _lock_of(index))
            yield
        finally:
            os.close(own)

    def close(self) -> None:
        """No turn is taken any more. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock_of(byte: int) -> bytes:
    """A ``struct flock`` of Linux: of one byte, exclusive."""
    return struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
