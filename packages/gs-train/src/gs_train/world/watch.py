# SPDX-License-Identifier: Apache-2.0
"""The thread of a rank that notices the end of the others, whatever the main thread waits for."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import IO

from gs_train.names import printable
from gs_train.world.board import Board
from gs_train.world.failure import EXIT_STATUS, Failure, RankFailedError
from gs_train.world.processes import Process

PERIOD_S = 0.25
"""Between two looks. All patience is counted in looks: a process that was stopped, or a machine
that was asleep, has not waited meanwhile."""

# In looks:
_BEAT = 4  # between two signs of life
_SILENT = 100  # without one: Python's lock may be held for long, so this is generous
_LEFT = 40  # of a rank that has left, while this one goes on
_TURN, _LAST_TURN = 4, 3  # before a rank takes the place of one that should have printed the line
_LINGER = 24  # of a main thread after a failure is known

NO_LAUNCHER = Failure(None, "the process that started the ranks has ended")
ENDED = "its process has ended without a word (the system may have run out of memory)"
_WAS_STOPPED = "it was stopped, and the other ranks were not"

# A main thread whose collective has failed waits for the cause, which may be that a rank was
# stopped alone.
_LEFT_S, _NAMED_S = 1.0, 10.0


class Watch:
    """Looks at the other ranks four times a second.

    A rank has failed when it posts so, when its process is not there any more (noticed on the same
    host at the next look), or when nothing was heard of it for 25 seconds. One rank prints the
    line. A main thread that then hangs, in a collective or in a kernel, is ended with its process.

    Args:
        board: of this rank.
        rank: this one.
        lost: what it means where the store is gone.
        end: called where the main thread does not end.
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        *,
        lost: Failure = NO_LAUNCHER,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._board = board
        self._rank = rank
        self._lost = lost
        self._end = end or _end_process
        self._stream = sys.stderr  # a rank may be silent otherwise
        self._peers: dict[int, Process] = {}
        self._beats: list[int] = []
        self._silent: list[int] = []
        self._left: list[int] = []
        self._looks = 0
        self._since = 0
        self._failure: Failure | None = None
        self._failed, self._told, self._stopped = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="gs-train-watch", daemon=True)

    @property
    def failure(self) -> Failure | None:
        """The first one that this rank knows of."""
        return self._failure

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; the thread has ended when this returns."""
        self._stopped.set()
        self._thread.join()

    def follow(self, processes: Sequence[Process]) -> None:
        """From now on look at these, the processes of all ranks."""
        self._beats = [0] * len(processes)
        self._silent = [0] * len(processes)
        self._left = [0] * len(processes)
        self._peers = {r: each for r, each in enumerate(processes) if r != self._rank}

    def check(self) -> None:
        """Raise RankFailedError where a failure is known."""
        if self._failure is not None:
            raise RankFailedError(self._failure)

    def check_named(self) -> None:
        """The same after a collective has failed; its cause takes a moment to be noticed."""
        if not self._failed.wait(_LEFT_S):
            with contextlib.suppress(RuntimeError):
                left = next((rank for rank in self._peers if self._board.has_left(rank)), None)
                if left is not None:
                    self._notice(self._board.post(Failure(left, _WAS_STOPPED)))
            self._failed.wait(_NAMED_S)
        self.check()

    def sees_a_failure(self) -> bool:
        """Whether this rank is about to be ended by another's failure.

        For signal handlers: it takes no lock that the interrupted thread may hold, for Python
        calls handlers between calls of the store.
        """
        try:
            return (
                self._failure is not None
                or self._board.failure() is not None
                or any(
                    not each.is_alive and not self._board.has_left(rank)
                    for rank, each in self._peers.items()
                )
            )
        except RuntimeError:
            return True

    def fail(self, failure: Failure) -> Failure:
        """Tell all ranks that this one has failed, unless another has, and wait until the line is
        printed. Returns the failure that the line is about."""
        try:  # one that is known is posted; the store may be gone since
            failure = self._failure or self._board.post(failure)
        except RuntimeError:  # of torch: there is no store any more
            failure = self._failure or failure
        self._notice(failure)
        self._told.wait(_LINGER * PERIOD_S)
        return failure

    def needs_store(self, rank: int) -> bool:
        """After a failure: whether a rank may still ask who has failed, or who prints the line."""
        is_gone = rank in self._peers and not self._peers[rank].is_alive
        return not is_gone and not self._board.knows(rank)

    def look(self) -> None:
        """One look; the thread's work."""
        try:
            if self._failure is None:
                self._search()
            if self._failure is not None:
                self._tell(self._failure)
        except RuntimeError:  # of torch, about its store
            if self._failure is None:
                self._notice(self._lost)
        if self._failure is not None:
            if self._since >= _LINGER:
                self._end()
            self._since += 1

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            self.look()

    def _notice(self, failure: Failure) -> None:
        self._failure = self._failure or failure
        self._failed.set()

    def _search(self) -> None:
        found = self._board.failure()
        if found is None and self._looks % _BEAT == 0 and self._peers:
            self._board.beat()
            found = self._silence() or self._departure()
        found = found or self._death()
        self._looks += 1
        if found is not None:
            self._notice(self._board.post(found))

    def _death(self) -> Failure | None:
        """The failure of a rank whose process is gone, and that has not left."""
        for rank, each in self._peers.items():
            if not each.is_alive and not self._board.has_left(rank):
                return Failure(rank, ENDED)
        return None

    def _departure(self) -> Failure | None:
        """The failure of a rank that left while this one goes on."""
        for rank in self._peers:
            self._left[rank] += _BEAT * self._board.has_left(rank)
            if self._left[rank] > _LEFT:
                return Failure(rank, _WAS_STOPPED)
        return None

    def _silence(self) -> Failure | None:
        """The failure of a rank that has not been heard of for too long."""
        beats = self._board.beats()
        for rank in self._peers:
            heard = beats[rank] != self._beats[rank]
            self._silent[rank] = 0 if heard else self._silent[rank] + _BEAT
            if self._silent[rank] > _SILENT:
                seconds = round(_SILENT * PERIOD_S)
                return Failure(rank, f"it has not been heard of for {seconds} seconds")
        self._beats = beats
        return None

    def _tell(self, failure: Failure) -> None:
        """Print the line, when it is this rank's turn and no other has."""
        if self._told.is_set():
            return
        turn = self._turn(failure)
        try:
            if not self._board.is_told:
                if self._since < _TURN * turn:
                    return
                if self._board.claim():
                    _print_error(failure, self._stream)
        except RuntimeError:  # nobody can be asked
            if turn == 0:
                _print_error(failure, self._stream)
        with contextlib.suppress(RuntimeError):
            self._board.know()
        self._told.set()

    def _turn(self, failure: Failure) -> int:
        """How many ranks are asked first: lower ones that live. The rank that failed comes last:
        it is about to end."""
        if failure.rank == self._rank:
            return min(len(self._peers), _LAST_TURN)
        lower = (r for r in self._peers if r < self._rank and r != failure.rank)
        return sum(self._peers[rank].is_alive for rank in lower)


def _print_error(failure: Failure, stream: IO[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
        print(f"gs-train: error: {printable(str(failure))}", file=stream, flush=True)


def _end_process() -> None:
    """Nothing is tidied up or flushed: all of that may wait for a rank that is gone."""
    os._exit(EXIT_STATUS)
