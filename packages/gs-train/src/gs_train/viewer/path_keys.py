# SPDX-License-Identifier: Apache-2.0
"""The cameras of the path that all pages share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from gs_train.scene.camera_paths import PathCamera

Keys = tuple[PathCamera, ...]


class PathKeys:
    """The cameras of a path, in the capture's frame: every page changes and shows the same ones.

    Pages are told of a change before the next change begins, so that all show the newest cameras.
    Methods may be called from any thread, but not by ``show``.

    Args:
        keys: the cameras at first.
    """

    def __init__(self, keys: Sequence[PathCamera] = ()) -> None:
        self._changing = threading.Lock()
        self._keys: Keys = tuple(keys)
        self._shows: dict[int, Callable[[Keys], None]] = {}

    @property
    def all(self) -> Keys:
        """The cameras of the moment."""
        return self._keys

    def join(self, page: int, show: Callable[[Keys], None]) -> None:
        """Tell a page of the cameras, now and after each change.

        Args:
            page: its number.
            show: takes all cameras.
        """
        with self._changing:
            self._shows[page] = show
            show(self._keys)

    def leave(self, page: int) -> None:
        """Forget a page."""
        with self._changing:
            self._shows.pop(page, None)

    def add(self, key: PathCamera) -> None:
        """Add a camera behind the last one."""
        self._change(lambda keys: (*keys, key))

    def remove_last(self) -> None:
        """Remove the last camera, if there is one."""
        self._change(lambda keys: keys[:-1])

    def remove_all(self) -> None:
        """Remove all cameras."""
        self._change(lambda keys: ())

    def _change(self, change: Callable[[Keys], Keys]) -> None:
        with self._changing:
            self._keys = change(self._keys)
            for show in self._shows.values():
                show(self._keys)
