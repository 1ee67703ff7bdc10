# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: written under another name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gs_train.errors import InputError
from gs_train.files.file_lock import take_lock

SUFFIX = ".tmp"
"""Ends every temporary name; what carries it after a crash may be deleted."""

_TEMPORARY = re.compile(r"\.gs-train-[0-9a-f]{16}" + re.escape(SUFFIX))


def require_free(folder: Path, n_bytes: int, what: str) -> None:
    """Check that ``folder``'s disk has ``n_bytes`` left.

    Args:
        folder: need not exist yet; its nearest existing parent is asked.
        what: what shall be written there, for the message.

    Raises:
        InputError: there is less.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < n_bytes:
        raise InputError(
            f"the disk of {folder} must have {n_bytes:,} bytes free for {what}, got {free:,}; "
            "free some space or choose another folder"
        )


def require_writable(path: Path, *, option: str) -> None:
    """Check that a file can be put at ``path``; its folder may have to be made. Leaves nothing.

    Args:
        option: that names it, for the message.

    Raises:
        InputError: it cannot.
    """
    problem = None
    place = path.absolute().parent
    try:
        while not place.exists():
            place = place.parent
        if path.exists() and not path.is_file():
            problem = "it is no file"
        elif not place.is_dir():
            problem = f"{place} is no folder"
        else:  # os.access would let root write to /proc
            tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        problem = f"{place} takes no file ({error.strerror})"
    if problem is not None:
        raise InputError(f"{option} {path} cannot be written: {problem}")


@contextlib.contextmanager
def disk_full_is_input_error(path: Path) -> Iterator[None]:
    """Turn "no space left" and "quota exceeded" into an ``InputError`` that names ``path``. Other
    errors of the system are given its name where they have none, as those of a write."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk became full while writing {path}, which was not written; "
                "free some space or choose another folder"
            ) from error
        if error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file, readable and writable, that becomes ``path`` when the block ends well.

    Until then ``path`` is as it was; when the block raises it stays so and nothing is left behind.
    Parent folders are made. A crash leaves at most one temporary file, which goes when the next
    process writes into the folder. Its name is random, so that two writers of one path do not meet
    and nobody can lay a link in its way.

    Raises:
        InputError: the disk became full.

    Cost: one sync of the file and of its folder, so that a power cut cannot undo the rename.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path.parent.absolute())
    with disk_full_is_input_error(path):
        descriptor, temporary = new_temporary(path.parent)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
                os.replace(temporary, path)  # before it is closed, and may be taken for a leftover
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


@functools.cache  # once in a process
def _remove_stale(folder: Path) -> None:
    """Remove what crashed writers left in a folder, and nothing that is being written."""
    with contextlib.suppress(OSError):  # of what is there, or of a folder that cannot be listed
        for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
            path = folder / name
            with contextlib.suppress(OSError):  # somebody writes it, or it is no file
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    if take_lock(descriptor, path):
                        path.unlink()
                finally:
                    os.close(descriptor)


def new_temporary(folder: Path) -> tuple[int, Path]:
    """A new file, open for reading and writing, and locked: it is being written."""
    while True:
        path = folder / f".gs-train-{secrets.token_hex(8)}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o666)
        try:
            if take_lock(descriptor, path):
                return descriptor, path
        except BlockingIOError:
            pass
        except OSError:  # no locks here, so that nobody takes it for a leftover
            return descriptor, path
        os.close(descriptor)  # taken for a leftover between the two calls


def sync_folder(folder: Path) -> None:
    """Make the folder's own entries (new files, renames) survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with disk_full_is_input_error(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
