# SPDX-License-Identifier: Apache-2.0
"""A few integers of each rank of a host, in memory that all of them see.

Every batch begins with a gather of some counts. Sockets take half a millisecond among four ranks,
of a step of ten; memory takes less than a tenth of what sockets take on the same machine.

    rank r    number of its last gather | integers of an even gather | integers of an odd one

A rank writes its integers, then the number of the gather, and waits until all others have the same
number. Two sets suffice: who begins gather k knows that all have begun k - 1, so that nobody reads
k - 2 any more, whose place k takes.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gs_train.world.protocol import Ints

FOLDER = "/dev/shm"
"""Of files that are memory."""

MOST = 1024
"""Integers of a rank in a gather."""

_LINE = 8  # words between what different ranks write often
_SETS = 2
_PAUSES_S = ((50, 0.0), (5000, 20e-6), (math.inf, 1e-3))
"""Pauses between looks, each up to so many looks. The last is for a rank that works alone while the
others wait, such as one that saves."""


class SharedTable:
    """What one rank reads and writes of the table.

    The order of what a processor writes is the order in which others see it, as on x86-64.

    Args:
        path: of the file, which may lose its name once all have it open.
        rank, size: of the caller, and of all.
        check: called while waiting; raises where waiting is in vain.

    Raises:
        OSError: there is no such file, or it cannot be mapped.
    """

    def __init__(self, path: Path, rank: int, size: int, check: Callable[[], None]) -> None:
        n_words = _words(size)
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), n_words * 8)
        table = np.frombuffer(memory, np.int64).reshape(size, -1)
        self._rank = rank
        self._numbers = table[:, 0]
        self._sets = [table[:, _LINE + k * MOST :][:, :MOST] for k in range(_SETS)]
        self._check = check
        self._number = 0

    def gather(self, values: Ints) -> Ints:
        """(size, n) the integers of all ranks.

        Args:
            values: (n,) of as many on all ranks, at most `MOST`.
        """
        self._wait(self._number)  # for a gather that an interrupt cut short
        self._number += 1
        table = self._sets[self._number % _SETS][:, : len(values)]
        table[self._rank] = values
        self._numbers[self._rank] = self._number
        self._wait(self._number)
        return table.copy()

    def _wait(self, number: int) -> None:
        n_looks = 0
        while self._numbers.min() < number:
            self._check()
            n_looks += 1
            pause = next(pause for most, pause in _PAUSES_S if n_looks <= most)
            time.sleep(pause)  # without Python's lock


def new_table(size: int) -> Path | None:
    """A file for the ranks of a host, with which no gather has been made; None: there is no room
    for it."""
    try:
        number, path = tempfile.mkstemp(prefix="gs-train-", dir=FOLDER)
    except OSError:
        return None
    try:
        os.posix_fallocate(number, 0, _words(size) * 8)  # a hole without room would end the process
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(number)
    return Path(path)


def _words(size: int) -> int:
    return size * (_LINE + _SETS * MOST)
