# SPDX-License-Identifier: Apache-2.0
"""Standard output and error that work goes on without: a pipe that broke, a terminal that is gone.

``gs-train fit ... 2>&1 | head`` ends its reader after ten lines, and training goes on for hours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)


class Output:
    """A text stream that says nothing any more once nobody reads it. Other errors, such as a full
    disk that it is written to, are the caller's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._outlived():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._outlived():
            self._stream.flush()

    @contextlib.contextmanager
    def _outlived(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _NOBODY_READS:
                raise
            self._fall_silent()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _fall_silent(self) -> None:
        # What is left in the stream's buffer goes there as well, when the interpreter ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """While entered, nothing fails because nobody reads standard output or error any more."""
    for descriptor in range(3):  # else a file that is opened next gets what is meant for them
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:
        # None where the process began with a closed descriptor.
        sys.stdout, sys.stderr = (Output(nowhere if s is None else s) for s in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
