# SPDX-License-Identifier: Apache-2.0
"""Standard output and error for long work with several threads.

``gs-train fit ... 2>&1 | head`` ends its reader after ten lines, and training goes on for hours.
``print`` writes a text and the end of its line apart, and another thread's line may come between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)


class _Begun(threading.local):
    """What a thread has written of a line that it has not ended."""

    text = ""


class Output:
    """A text stream whose lines stay whole, and that says nothing any more once nobody reads it.

    A thread's text is written when its line ends, or at ``flush``. Errors other than those of a
    missing reader, such as a full disk that the stream is written to, are the caller's.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._begun = _Begun()

    def write(self, text: str) -> int:
        lines, end, self._begun.text = (self._begun.text + text).rpartition("\n")
        if end:
            self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        self.end()
        with self._outlived():
            self._stream.flush()

    def end(self) -> None:
        """Write what this thread has begun, which has no end of line."""
        begun, self._begun.text = self._begun.text, ""
        self._pass_on(begun)

    def _pass_on(self, text: str) -> None:
        with self._outlived():
            self._stream.write(text)

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
    """While entered, nothing fails because nobody reads standard output or error any more, and
    threads do not write into each other's lines."""
    for descriptor in range(3):  # else a file that is opened next gets what is meant for them
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:
        # None where the process began with a closed descriptor.
        outputs = sys.stdout, sys.stderr = tuple(
            Output(nowhere if s is None else s) for s in before
        )
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for output in outputs:
                output.end()
