# SPDX-License-Identifier: Apache-2.0
"""Files that are read whole, and what must be true of them before they are."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading, unbuffered.

    Args:
        follow: whether ``path`` may be a symbolic link.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe or a device, which is not waited for.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        what = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file"
        raise OSError(number, what, str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


def read_small(path: Path, *, most_bytes: int) -> bytes:
    """All bytes of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than ``most_bytes``.
    """
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes > most_bytes:
            what = f"it has {n_bytes:,} bytes, at most {most_bytes:,} are expected"
            raise OSError(errno.EFBIG, what, str(path))
        data = bytearray()
        while block := file.read(most_bytes + 1 - len(data)):
            data += block
        return bytes(data)
