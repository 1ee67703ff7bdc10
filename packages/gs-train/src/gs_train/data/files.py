# SPDX-License-Identifier: Apache-2.0
"""Files of a capture, opened: regular files only, and one line for what cannot be read."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gs_train.errors import InputError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(InputError):
    """Something else than a regular file where one must be.

    Attributes:
        kind: what it is, such as "a fifo".
    """

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(f"{path} must be a file, got {kind}")
        self.kind = kind


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading that is one: a fifo would wait for ever, a device never end.

    Raises:
        NotAFileError: it is a folder, a fifo, a socket or a device. It has not been opened.
        OSError: there is no such file, or it may not be read.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise NotAFileError(path, _KINDS.get(kind, "something else"))
    return path.open("rb")


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn any ``OSError`` of the block into an ``InputError``.

    Args:
        path: what is read, for errors that do not say it themselves.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or path} must be readable, got: {error.strerror or error}"
        ) from error
