# SPDX-License-Identifier: Apache-2.0
"""The photographs of a run, opened when the first one is asked for."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gs_train.data import BrokenPhotographError, Capture, read_image
from gs_train.errors import InputError

_KEPT = 8


class Photographs:
    """Photographs by the index of their view.

    Opening a capture may take long: a thread does it, and the viewer goes on meanwhile.

    Args:
        open_capture: gives the capture, or raises InputError.
        opened: called in the thread when it has ended, well or not.
    """

    def __init__(self, open_capture: Callable[[], Capture], opened: Callable[[], None]) -> None:
        self._open_capture = open_capture
        self._opened = opened
        self._capture: Capture | None = None
        self._trouble = ""
        self._thread: threading.Thread | None = None
        self._read = functools.lru_cache(maxsize=_KEPT)(self._read_one)

    def of(self, index: int) -> tuple[NDArray[np.uint8] | None, str]:
        """A photograph, as :func:`gs_train.data.read_image` gives it, or None and a line that says
        why there is none.

        One thread at a time.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._open, name="gs-train photographs")
            self._thread.start()
        if self._capture is None:
            return None, self._trouble or "opening the photographs"
        return self._read(index)

    def close(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()

    def _open(self) -> None:
        try:
            self._capture = self._open_capture()
        except Exception as error:  # whatever it is: the viewer goes on without photographs
            self._trouble = f"no photographs: {error}"
        self._opened()

    def _read_one(self, index: int) -> tuple[NDArray[np.uint8] | None, str]:
        assert self._capture is not None
        try:
            return read_image(self._capture.views[index]), ""
        except (BrokenPhotographError, InputError, OSError) as error:
            return None, str(error)
