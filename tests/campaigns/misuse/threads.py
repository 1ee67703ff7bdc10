# SPDX-License-Identifier: Apache-2.0
"""One object used from two threads: each call works or raises, and nothing crashes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from campaigns.misuse.calls import Room
from campaigns.misuse.judge import fault_of

_TIMES = 300


@dataclass(frozen=True)
class Shared:
    """An object whose methods run at the same time.

    Attributes:
        name: of its class.
        make: calls by name, on one new object.
    """

    name: str
    make: Callable[[Room], dict[str, Callable[[], Any]]]


def use_from_two_threads(shared: Shared, seed: int, say: Callable[[str], None]) -> None:
    """Two calls on one object, each many times in a thread of its own.

    Raises:
        AssertionError: a call raised what callers are not promised.
    """
    room = Room(seed)
    calls = shared.make(room)
    chosen = [room.pick(*calls) for _ in range(2)]
    say(f"{shared.name}: {' beside '.join(chosen)} (arguments of seed {seed})")
    faults: list[str] = []
    barrier = threading.Barrier(2)

    def repeat(name: str) -> None:
        barrier.wait()
        for _ in range(_TIMES):
            try:
                calls[name]()
            except Exception as error:
                fault = fault_of(error)
                if fault:
                    faults.append(f"{name} {fault}")
                    return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=repeat, args=(name,)) for name in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not faults, "; ".join(faults)
    if not room.is_intact():
        raise AssertionError("must write to its arguments alone, wrote beside one")
