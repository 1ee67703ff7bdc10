# SPDX-License-Identifier: Apache-2.0
"""Locks on files that the kernel lifts when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def take_lock(descriptor: int, path: Path) -> bool:
    """Lock an open file for its holder alone, until the descriptor is closed.

    Args:
        descriptor: of the file, open for writing.
        path: that it was opened by.

    Returns:
        False where ``path`` names another file by now, or none: whoever had the lock before has
        removed the file, and the lock keeps nobody out.

    Raises:
        BlockingIOError: another holder has it.
        OSError: the file system has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return is_file_at(descriptor, path)


def is_file_at(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the file that is open, itself and not through a link."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Run one block at a time, among all processes that lock the same folder with this function.

    A second process waits for the end of the first one's block, so that a block is to be short. No
    file is left: the lock is on the folder itself. Where the file system has no locks of folders
    (NFS), nobody waits.

    Args:
        folder: made when missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
