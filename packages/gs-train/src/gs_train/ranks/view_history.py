# SPDX-License-Identifier: Apache-2.0
"""What was counted of each view when it was drawn, as all ranks know it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from gs_train.names import number_of

Value = TypeVar("Value")


class ViewHistory(Generic[Value]):
    """Values of views with the steps that they are of.

    Nobody reads a value before it is old enough for all ranks to have it, whatever ranks and
    lookahead are doing.

    Args:
        lag: steps after which all ranks have the values of a step.

    Attributes:
        step: batches so far.
    """

    def __init__(self, lag: int) -> None:
        self.step = 0
        self._lag = lag
        # Of a view's number, by step: the last value that is old enough and what came after it.
        self._noted: dict[int, list[tuple[int, Value]]] = {}

    def known(self, view: str, *, ahead: int = 0) -> Value | None:
        """The last value of the view of this name that is old enough; None: there is none.

        Args:
            ahead: batches between the one that wants to know and the present one, less than the
                lag.
        """
        last = self.step + ahead - self._lag
        for step, value in reversed(self._noted.get(number_of(view), ())):
            if step <= last:
                return value
        return None

    def note(self, view: str, value: Value, *, step: int | None = None) -> None:
        """A view was drawn.

        Args:
            view: its name.
            step: of its batch, none before the view was last noted; None: the present one.
        """
        noted = self._noted.setdefault(number_of(view), [])
        noted.append((self.step if step is None else step, value))
        self._forget(noted)

    def entries(self) -> list[tuple[int, int, Value]]:
        """All that may still be read: number of the view, step, value."""
        for noted in self._noted.values():
            self._forget(noted)
        return [(number, *each) for number, noted in self._noted.items() for each in noted]

    def load(self, step: int, entries: Iterable[tuple[int, int, Value]]) -> None:
        """Take over what `entries` gave at a step."""
        self.step = step
        self._noted = {}
        for number, of, value in entries:
            self._noted.setdefault(number, []).append((of, value))

    def _forget(self, noted: list[tuple[int, Value]]) -> None:
        """Drop what is never read any more: where a view is drawn, and before all are saved."""
        while len(noted) > 1 and noted[1][0] <= self.step - self._lag:
            del noted[0]
