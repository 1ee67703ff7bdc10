# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all: written under another name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gs_train.errors import InputError

SUFFIX = ".tmp"
"""Ends every temporary name; what carries it after a crash may be deleted."""


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
    while not place.exists():
        place = place.parent
    if path.exists() and not path.is_file():
        problem = "it is no file"
    elif not place.is_dir():
        problem = f"{place} is no folder"
    else:
        try:  # os.access would let root write to /proc
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            problem = f"{place} takes no file ({error.strerror})"
    if problem is not None:
        raise InputError(f"{option} {path} cannot be written: {problem}")


@contextlib.contextmanager
def disk_full_is_input_error(path: Path) -> Iterator[None]:
    """Turn "no space left" and "quota exceeded" into an ``InputError`` that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk became full while writing {path}, which was not written; "
                "free some space or choose another folder"
            ) from error
        raise


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file, readable and writable, that becomes ``path`` when the block ends well.

    Until then ``path`` is as it was; when the block raises it stays so and nothing is left behind.
    Parent folders are made. A crash leaves at most ``.NAME.tmp``, which the next write of the same
    path overwrites.

    Raises:
        InputError: the disk became full.

    Cost: one sync of the file and of its folder, so that a power cut cannot undo the rename.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}{SUFFIX}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with disk_full_is_input_error(path), open(temporary, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's own entries (new files, renames) survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
