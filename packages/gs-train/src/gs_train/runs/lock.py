# SPDX-License-Identifier: Apache-2.0
"""One writer of a run's folder at a time."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from gs_train.errors import InputError
from gs_train.files.file_lock import is_file_at, take_lock

LOCK = ".gs-train.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HOLDER = re.compile(rb"(\d{1,10}) ([!-~]{1,255})\n")


class RunLock:
    """The right to write to a folder, which is made where it is missing.

    A lock of the kernel on ``LOCK`` in the folder, which says who holds it. A process that is
    killed leaves the file, and the lock free. Where the file system has no locks, a line on stderr
    says so and the run goes on: such file systems (Lustre without ``flock``) are where large runs
    live, and the lock only guards against a mistake.

    Args:
        folder: of the run.

    Raises:
        InputError: another process writes there, or the folder cannot be made or written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / LOCK
        self._made: list[Path] = []
        self._descriptor = self._take()

    def renew(self) -> None:
        """Take the lock again where somebody removed the folder, or the file, meanwhile.

        Raises:
            InputError: another process has taken it since, or the folder cannot be made.
        """
        if not is_file_at(self._descriptor, self._path):
            taken = self._take()
            os.close(self._descriptor)
            self._descriptor = taken

    def release(self) -> None:
        """Let others write; folders that were made for the lock and hold nothing are removed."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if is_file_at(self._descriptor, self._path):
                self._path.unlink()  # before it is closed: later it may be somebody else's
            for folder in self._made:  # the innermost first
                folder.rmdir()
        os.close(self._descriptor)
        self._descriptor = -1

    def _take(self) -> int:
        try:
            while True:
                self._make_folder()
                try:
                    descriptor = os.open(self._path, _FLAGS, 0o666)
                except FileNotFoundError:  # a writer that left nothing has removed the folder
                    continue
                if self._has_locked(descriptor):
                    return descriptor
                os.close(descriptor)
        except OSError as error:
            what = error.filename or self._path
            raise InputError(
                f"--out {self._folder} cannot be written: {what}: {error.strerror}"
            ) from None

    def _make_folder(self) -> None:
        missing = []
        place = self._folder
        while not place.exists() and place != place.parent:
            missing.append(place)
            place = place.parent
        self._folder.mkdir(parents=True, exist_ok=True)
        self._made = missing or self._made

    def _has_locked(self, descriptor: int) -> bool:
        try:
            if not take_lock(descriptor, self._path):
                return False
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise InputError(
                f"--out {self._folder} is being written by another gs-train{holder}: wait for its "
                "end, or choose another folder"
            ) from None
        except OSError as error:
            print(
                f"--out {self._folder} is on a file system without locks ({error.strerror}): "
                "nothing keeps a second run out",
                file=sys.stderr,
            )
        with contextlib.suppress(OSError):  # it only serves the others' message
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[RunLock]:
    """A :class:`RunLock` for the time of a block."""
    lock = RunLock(folder)
    try:
        yield lock
    finally:
        lock.release()


def _holder(descriptor: int) -> str:
    """Who says to hold the lock, for a message; nothing where the file does not tell."""
    match = _HOLDER.fullmatch(os.pread(descriptor, 300, 0))
    if match is None:
        return ""
    process, host = (part.decode() for part in match.groups())
    return (
        f" (process {process})"
        if host == socket.gethostname()
        else f" (process {process} on {host})"
    )
