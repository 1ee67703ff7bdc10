# SPDX-License-Identifier: Apache-2.0
"""The photographs of a run: decoded, remembered by CRC, and replaced where they are broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_train.data.capture import Capture, read_image
from gs_train.data.fingerprint import photograph_crc, points_digest, stamps
from gs_train.data.pixels import BrokenPhotographError
from gs_train.errors import InputError


class PhotoReader:
    """Reads training photographs.

    With ``skip_broken``, the next training view whose photograph is whole stands in for one whose
    photograph is broken, in every step that asks for it. Which views a step sees is thus a function
    of the seed, the step and the set of broken photographs alone, and never of the moment at which
    one was found to be broken; no other step changes.

    Args:
        capture: its ``broken`` photographs are never tried.
        skip_broken: go on without photographs that cannot be decoded.
        saved: :meth:`fingerprint` of the run that goes on: what was skipped stays so, even if it
            has been mended.

    Threads: any.
    """

    def __init__(
        self, capture: Capture, *, skip_broken: bool = False, saved: Mapping[str, Any] | None = None
    ) -> None:
        self._capture = capture
        self._skips = skip_broken
        self._lock = threading.Lock()
        self._news: list[str] = []
        self._shown: dict[int, int] = {}
        self._broken = set(capture.broken)
        self._points = points_digest(capture)
        self._stamps = stamps(capture)
        self._crcs: list[int | None] = [None] * len(capture.views)
        if saved is not None:
            self._broken |= set(saved["skipped"])
            self._crcs = [None if before is None else before[2] for before in saved["photographs"]]

    def load(
        self, index: int, decoded: Callable[[int], NDArray[np.uint8]] | None = None
    ) -> NDArray[np.uint8]:
        """The pixels of a training view, or of the one that stands in for it.

        Args:
            decoded: gives the pixels of a view, as the method of this name does, which None stands
                for.

        Returns:
            As :func:`gs_train.data.read_image`, of the view :meth:`shown`.

        Raises:
            InputError: the photograph is broken and broken ones are not skipped; every training
                photograph is broken; or the system failed to read the file, which is never skipped.
        """
        while True:
            shown = self._candidate(index)
            try:
                pixels = (decoded or self.decoded)(shown)
            except BrokenPhotographError as error:
                if self._may_come_back(shown, error):
                    raise InputError(f"{error}; go on with --resume when it can be read") from error
                if not self._skips:
                    raise InputError(f"{error}; --skip-broken goes on without it") from error
                with self._lock:
                    if shown not in self._broken:
                        self._broken.add(shown)
                        self._news.append(f"--skip-broken: {error}")
                continue
            self._shown[index] = shown
            return pixels

    def decoded(self, index: int) -> NDArray[np.uint8]:
        """The pixels of a view, and of no other in its place; remembers the CRC of the file.

        Raises:
            BrokenPhotographError: the photograph is broken, or the system failed to read the file.
        """
        view = self._capture.views[index]
        pixels = read_image(view)
        if self._crcs[index] is None:
            self._crcs[index] = photograph_crc(view)
        return pixels

    def crc(self, index: int) -> int | None:
        """Of the file of a view; None: it has not been read yet."""
        return self._crcs[index]

    def note_crc(self, index: int, crc: int | None) -> None:
        """Remember the CRC of a file that another process has read, unless one is known."""
        if self._crcs[index] is None:
            self._crcs[index] = crc

    def path_of(self, index: int) -> Path:
        """The file of a view."""
        return self._capture.views[index].path

    def shown(self, index: int) -> int:
        """The view that a training view's place in a batch goes to, as far as is known."""
        with self._lock:
            known = self._shown.get(index)
        return self._candidate(index) if known is None else known

    def news(self) -> list[str]:
        """Lines about photographs found broken since this was asked last."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint keeps of the data that was trained on, for `fingerprint.changes`."""
        with self._lock:
            skipped = sorted(self._broken)
        return {
            "points": self._points,
            "photographs": [
                None if stamp is None else [*stamp, crc]
                for stamp, crc in zip(self._stamps, self._crcs)
            ],
            "skipped": skipped,
        }

    def _may_come_back(self, index: int, error: BrokenPhotographError) -> bool:
        """Whether the system failed rather than the photograph: a disk or a network that errs, or
        an image made of the photograph that was removed and is made again when the run goes on."""
        view, cause = self._capture.views[index], error.__cause__
        if isinstance(cause, FileNotFoundError):
            return view.is_made
        return isinstance(cause, OSError) and cause.errno is not None

    def _candidate(self, index: int) -> int:
        if index not in self._broken:
            return index
        train = self._capture.train
        place = train.index(index)
        for view in (*train[place:], *train[:place]):
            if view not in self._broken:
                return view
        raise InputError(f"every one of the {len(train)} training photographs is broken")
