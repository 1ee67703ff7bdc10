# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM as a request that long work answers at its next safe point."""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818 (a request that was followed, no error)
    """Work stopped on request, with everything saved. ``exit_status`` is 128 + the signal.

    ``is_common``: all ranks of a run stop at the same place.
    """

    def __init__(self, signal_number: int, message: str, *, is_common: bool = False) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.is_common = is_common
        self.exit_status = 128 + signal_number


class StopRequest:
    """While entered, the first SIGINT or SIGTERM sets :attr:`signal_number`; a second one acts as
    before.

    Signals reach Python's main thread only; entered elsewhere this does nothing.

    Args:
        ignores_more: each further SIGTERM has no effect, while a second SIGINT acts as before. A
            batch system may tell a rank and its launcher, which tells the rank again.
    """

    def __init__(self, *, ignores_more: bool = False) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, Any] = {}
        self._kept = {signal.SIGTERM} if ignores_more else set()

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def check(self, work: str) -> None:
        """Raise :class:`Interrupted` when a stop was asked for: at points with nothing to save."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number, f"stopped during {work}")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal_number is None:
            self.signal_number = number
            self._restore(but=self._kept)

    def _restore(self, but: Collection[int] = ()) -> None:
        for number in set(self._previous).difference(but):
            signal.signal(number, self._previous.pop(number))
