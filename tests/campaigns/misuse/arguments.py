# SPDX-License-Identifier: Apache-2.0
"""One function, called well and then with spoiled arguments."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any

import numpy as np

from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.judge import fault_of, frozen, is_same, shown
from campaigns.misuse.spoil import spoil

_TRIES = 6
_MOST_BYTES = 3 << 30
"""Of memory that a process may have of its own, so that a number too large fails at once."""


def misuse(entry: Entry, seed: int, say: Callable[[str], None]) -> None:
    """Call one function well, and then some times with one or two spoiled arguments.

    Args:
        entry: the function.
        seed: of the good call, which is made anew each time.
        say: is told of each call.

    Raises:
        AssertionError: a result, an exception or what a call left is not as promised.
    """
    room = Room(seed)
    say(f"{entry.name} (arguments of seed {seed})")
    _bound_memory()
    good = entry.make(room)
    result = shown(good.run())
    if good.expect is not None:
        expected = shown(good.expect(**entry.make(Room(seed)).args))
        assert is_same(result[0], expected), f"must return {expected}, got {result[0]}"
    assert room.is_intact(), "must write to its arguments alone, wrote beside one"
    choice = Room(seed + 1)
    for _ in range(_TRIES):
        _try(entry, seed, choice, result, say)


def _try(entry: Entry, seed: int, choice: Room, expected: Any, say: Callable[[str], None]) -> None:
    room = Room(seed)
    good = entry.make(room)
    args, means_the_same, hows = dict(good.args), True, []
    names = [name for name in args if name not in good.fixed]
    if not names:
        return
    for name in choice.rng.permutation(names)[: choice.pick(1, 1, 2)]:
        name = str(name)
        others = [value for other, value in good.args.items() if other != name]
        spoiled = spoil(good.args[name], choice, others, good.limits.get(name))
        if spoiled is not None:
            args[name] = spoiled.value
            means_the_same &= spoiled.is_same
            hows.append(f"{name}: {spoiled.how}")
    if not hows:
        return
    say("; ".join(hows))
    before = {name: frozen(value) for name, value in args.items()}
    state, refusal = _state(good), None
    try:
        result = shown(good.run(args))
    except Exception as error:
        refusal = error
    assert room.is_intact(), f"must write to its arguments alone, wrote beside one ({refusal})"
    changed = [name for name in args if frozen(args[name]) != before[name]]
    if refusal is not None:
        fault = fault_of(refusal, good.raises)
        assert not fault, fault
        assert not changed, f"refused, but changed {', '.join(changed)} ({refusal})"
        assert _state(good) == state, f"refused, but changed the object ({refusal})"
        again = shown(good.run())
        assert is_same(again, expected), f"gives another result after a refused call ({refusal})"
        return
    kept = {name for name in args if name not in good.writes}
    changed = [name for name in changed if name in kept]
    shared = any(args[name] is args[other] for name in kept for other in good.writes)
    assert shared or not changed, f"accepted, but changed {', '.join(changed)}"
    if means_the_same:
        assert is_same(result, expected), f"must return {expected}, got {result}"
    elif good.expect is not None:
        _check_accepted(good, entry.make(Room(seed)), args, result[0])


def _check_accepted(good: Call, fresh: Call, args: dict[str, Any], result: Any) -> None:
    """What was accepted must be what the plain definition makes of it."""
    assert good.expect is not None
    if any(name in good.writes for name in args if args[name] is not good.args[name]):
        return
    given = {name: fresh.args[name] if name in good.writes else args[name] for name in args}
    try:
        with np.errstate(all="ignore"):
            expected = shown(good.expect(**given))
    except Exception:
        return
    assert is_same(result, expected), f"accepted, must return {expected}, got {result}"


def _state(call: Call) -> Any:
    return None if call.state is None else frozen(call.state())


def _bound_memory() -> None:
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return  # whose own memory is beyond all bounds
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, hard))
