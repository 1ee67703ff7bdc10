# SPDX-License-Identifier: Apache-2.0
"""Standard output and error that work goes on without: a pipe that broke, a terminal that is gone.

``gs-train fit ... 2>&1 | head`` ends its reader after ten lines, and training goes on for hours.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class Output:
    """A text stream that says nothing any more once writing to it has failed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            return len(text)
        self._fall_silent()
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
            return
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
