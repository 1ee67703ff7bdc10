# SPDX-License-Identifier: Apache-2.0
"""The photographs of a run, each decoded once where a file keeps what memory cannot."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from gs_train.data.photo_reader import PhotoReader
from gs_train.data.pixel_file import PixelFile


class KeptPhotographs:
    """Photographs from a file of raw pixels, or decoded and then put there.

    The pixels are the same wherever a photograph comes from. Where the file cannot be read, all
    photographs are decoded again whenever memory has lost them; where the file cannot be written
    any more, those that are not in the file yet. A line says so once.

    Args:
        reader: decodes.
        file: with a place for every view that ``reader`` may show; None: all are decoded each time.

    Threads: any.
    """

    def __init__(self, reader: PhotoReader, file: PixelFile | None) -> None:
        self._reader = reader
        self._file = file
        self._lock = threading.Lock()
        self._is_readable = self._is_writable = file is not None
        self._news: list[str] = []

    def load(self, index: int) -> NDArray[np.uint8]:
        """As :meth:`PhotoReader.load`."""
        shown = self._reader.shown(index)
        if self._file is not None and self._is_readable and self._file.holds(shown):
            try:
                return self._file.read(shown)
            except OSError as error:
                self._give_up(error, is_readable=False)
        pixels = self._reader.load(index)
        if self._file is not None and self._is_writable:
            try:
                self._file.write(self._reader.shown(index), pixels)
            except OSError as error:
                self._give_up(error, is_readable=self._is_readable)
        return pixels

    def shown(self, index: int) -> int:
        """As :meth:`PhotoReader.shown`."""
        return self._reader.shown(index)

    def news(self) -> list[str]:
        """Lines about photographs found broken, or about the file, since this was asked last."""
        with self._lock:
            news, self._news = self._news, []
        return [*self._reader.news(), *news]

    def _give_up(self, error: OSError, *, is_readable: bool) -> None:
        with self._lock:
            if not (self._is_writable if is_readable else self._is_readable):
                return  # another thread has said so
            self._is_readable, self._is_writable = is_readable, False
            which = "photographs that it does not hold" if is_readable else "photographs"
            self._news.append(
                f"the file of decoded photographs cannot be {'written' if is_readable else 'read'} "
                f"({error.strerror}): {which} are decoded each time; --scratch names another folder"
            )
