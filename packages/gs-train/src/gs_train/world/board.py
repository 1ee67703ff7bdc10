# SPDX-License-Identifier: Apache-2.0
"""What ranks leave for each other in the store: who they are, that they live, who has failed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gs_train.world.failure import Failure
from gs_train.world.processes import Process
from gs_train.world.store import Store

TOLD = "told"
"""The key of who has printed the line about the failure."""


@dataclass(frozen=True)
class Entry:
    """What a rank says of itself when it comes.

    Attributes:
        process: the rank's.
        cores: that it may use, sorted.
    """

    process: Process
    cores: tuple[int, ...]


class Board:
    """One rank's view of the notices of all. Thread-safe; no call waits for another rank.

    Args:
        store: a connection of its own.
        rank: of the caller.
        size: of the world.

    Raises:
        RuntimeError: from every call: the store is gone, and with it the process that had it.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._beats = 0

    def enter(self, entry: Entry) -> None:
        """Say who this rank is."""
        self.beat()
        self._store.set(f"entry/{self._rank}", json.dumps(asdict(entry)))

    def entries(self) -> list[Entry] | None:
        """Of all ranks; None: not all have come."""
        keys = [f"entry/{rank}" for rank in range(self._size)]
        if not self._store.check(keys):
            return None
        plain = [json.loads(self._store.get(key)) for key in keys]
        return [Entry(Process(**each["process"]), tuple(each["cores"])) for each in plain]

    def missing(self) -> list[int]:
        """Ranks that have not come."""
        return [r for r in range(self._size) if not self._store.check([f"entry/{r}"])]

    def beat(self) -> None:
        """Say that this rank lives."""
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def beats(self) -> list[int]:
        """How often each rank has said so; all have entered."""
        return [int(self._store.get(f"beat/{rank}")) for rank in range(self._size)]

    def post(self, failure: Failure) -> Failure:
        """Tell all of a failure. Returns the first one that any rank has posted."""
        text = json.dumps(asdict(failure))
        return _failure(self._store.compare_set("failure", "", text))

    def failure(self) -> Failure | None:
        """The first one that was posted; None: there is none."""
        return _failure(self._store.get("failure")) if self._store.check(["failure"]) else None

    def claim(self) -> bool:
        """Whether the caller is the one to print the line about the failure."""
        return self._store.add(TOLD, 1) == 1

    @property
    def is_told(self) -> bool:
        """Whether a rank has claimed the line."""
        return self._store.check([TOLD])

    def know(self) -> None:
        """Say that this rank knows of the failure, and asks the store for nothing any more."""
        self._store.set(f"knows/{self._rank}", "1")

    def knows(self, rank: int) -> bool:
        """Whether a rank said that."""
        return self._store.check([f"knows/{rank}"])

    def leave(self) -> None:
        """Say that this rank ends as it should."""
        self._store.set(f"left/{self._rank}", "1")

    def has_left(self, rank: int) -> bool:
        """Whether a rank said that."""
        return self._store.check([f"left/{rank}"])


def _failure(text: bytes) -> Failure:
    return Failure(**json.loads(text))
