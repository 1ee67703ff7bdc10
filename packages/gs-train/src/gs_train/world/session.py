# SPDX-License-Identifier: Apache-2.0
"""A process as a rank: from finding the others to leaving them, in order or in trouble."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from gs_train.errors import CommonError, InputError
from gs_train.machine.interrupt import Interrupted
from gs_train.world.board import Board, Entry
from gs_train.world.cores import (
    allowed_cores,
    cores_near,
    granted_cores,
    on_cores,
    physical_cores,
    share_of_cores,
)
from gs_train.world.failure import EXIT_STATUS, Failure, ToldError
from gs_train.world.processes import this_process
from gs_train.world.ranks import Ranks
from gs_train.world.standing import Standing, device_of
from gs_train.world.store import connected
from gs_train.world.watch import ENDED, NO_LAUNCHER, PERIOD_S, Watch

_COMING_S = 600.0  # for which ranks wait for one that has not come
_LEAVING_S = 10.0  # for which the rank with the store waits for the others to leave


@contextlib.contextmanager
def entered(
    place: Standing, kind: str, describe: Callable[[BaseException], str]
) -> Iterator[Ranks]:
    """See :func:`gs_train.world.entry.joined`."""
    board = Board(connected(place), place.rank, place.size)
    lost = NO_LAUNCHER if place.launcher_has_store else Failure(0, ENDED)
    watch = Watch(board, place.rank, lost=lost)
    watch.start()
    with _termination(watch):
        try:
            with _world(place, kind, board, watch) as world:
                try:
                    yield world
                except Interrupted as stopped:
                    if stopped.is_common:  # the others may still be giving their memory back
                        _ignore_termination()
                        _part(world)
                    raise
                _part(world)
        except BaseException as error:
            if watch.failure is None and isinstance(error, Interrupted | KeyboardInterrupt):
                watch.stop()
                _leave(board, place)
                raise
            is_common = isinstance(error, CommonError)
            failure = Failure(None if is_common else place.rank, describe(error))
            failure = watch.fail(failure)
            with contextlib.suppress(RuntimeError):
                _keep_store(place, watch.needs_store)
            raise _told(failure) from error
    watch.stop()
    _leave(board, place)


def _part(world: Ranks) -> None:
    """All ranks end their work together."""
    world.barrier()
    world.close()


@contextlib.contextmanager
def _world(place: Standing, kind: str, board: Board, watch: Watch) -> Iterator[Ranks]:
    device = device_of(place, kind)
    cores = allowed_cores()
    board.enter(Entry(this_process(), cores))
    entries = _all_entries(board, watch)
    watch.follow([entry.process for entry in entries])
    host = entries[place.rank].process.host
    others = [entry.cores for entry in entries if entry.process.host == host]
    if len(others) == place.local_size and set(others) == {cores}:
        near = [cores_near(torch.device(kind, r)) for r in range(place.local_size)]
        cores = share_of_cores(cores, near, place.local_rank, physical_cores(cores))
    # Else somebody has given every rank its own.
    with on_cores(cores, granted_cores() / place.local_size):
        yield Ranks(place, device, watch, connected(place))


def _all_entries(board: Board, watch: Watch) -> list[Entry]:
    """Wait for all ranks."""
    for _ in range(round(_COMING_S / PERIOD_S)):
        for _ in range(5):  # they come at nearly the same time
            entries = board.entries()
            if entries is not None:
                return entries
            watch.check()
            time.sleep(PERIOD_S / 5)
    missing = ", ".join(map(str, board.missing()))
    raise InputError(f"all ranks must start, got no word of rank {missing} in {_COMING_S:.0f} s")


@contextlib.contextmanager
def _termination(watch: Watch) -> Iterator[None]:
    """While entered, SIGTERM raises Interrupted, unless a rank has failed: torchrun then sends it
    to the others, which are ending already and have a line to print. After a failure SIGTERM stays
    without effect."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if not watch.sees_a_failure():
            raise Interrupted(number, "stopped")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if watch.failure is None else signal.SIG_IGN)


def _ignore_termination() -> None:
    """Until `_termination` is left: this rank has done what SIGTERM asks for, and the others wait
    for it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(board: Board, place: Standing) -> None:
    with contextlib.suppress(RuntimeError):  # whoever had the store has left
        board.leave()
        _keep_store(place, lambda rank: not board.has_left(rank))


def _keep_store(place: Standing, is_needed_by: Callable[[int], bool]) -> None:
    """Wait for the ranks that need the store, where this one has it."""
    for _ in range(round(_LEAVING_S / PERIOD_S) if place.has_store else 0):
        if not any(map(is_needed_by, range(place.size))):
            return
        time.sleep(PERIOD_S)


def _told(failure: Failure) -> ToldError:
    """The error that ends this process, without what may wait for a rank that is gone: groups wait
    for their collectives when Python tidies up."""
    atexit.register(_end)
    return ToldError(failure)


def _end() -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(EXIT_STATUS)
