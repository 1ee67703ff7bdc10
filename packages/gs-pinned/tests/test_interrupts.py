# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C between any two steps of the interpreter leaves rings, tables and signals usable.

The interpreter raises KeyboardInterrupt between bytecodes of Python, also right behind a call of
native code that has done its work; here it is raised before each one in turn.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from gs_pinned import Ring, Signal, Table, store_compact

FILES = ("ring.py", "table.py", "signal.py", "operands.py", "launch.py", "contextlib.py")


def stop() -> None:
    raise KeyboardInterrupt


def interrupted(
    call: Callable[[], object], at: int, interrupt: Callable[[], object] = stop
) -> bool:
    """Run `call`, with an interrupt before its bytecode of that number; False: it has fewer."""
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                interrupt()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces none unless some frame has asked
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


def each_interrupt(prepare: Callable[[], Callable[[], object]]) -> Iterator[None]:
    """After each call that is prepared and interrupted, one bytecode later each, until one ends."""
    at = 1
    while interrupted(prepare(), at):
        yield
        at += 1
    assert at > 20, "the bytecodes of the call were not traced"


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_no_interrupt_of_a_store_leaves_bytes_taken(device: str, some: bool) -> None:
    ring, values = Ring(3 * 192), torch.ones(3, 48, device=device)
    positions = torch.tensor([2, 0], device=device) if some else None
    for _ in each_interrupt(lambda: lambda: store_compact(values, positions, ring)):
        if device == "cuda":
            torch.cuda.synchronize()
        assert ring.stats.taken_slots == 0
        store_compact(values, None, ring, timeout_s=0.0).release()


def test_nor_does_one_while_a_slot_is_read_and_released() -> None:
    ring, values = Ring(192), np.ones((1, 48), "f4")

    def read() -> None:
        with store_compact(values, None, ring) as slot:
            slot.numpy()

    for _ in each_interrupt(lambda: read):
        assert ring.stats.taken_slots == 0


def test_a_table_keeps_all_its_rows_or_those_it_was_told() -> None:
    whole = np.arange(12, dtype="f4").reshape(6, 2)
    table = Table(0, 2)

    def prepare() -> Callable[[], object]:
        nonlocal table
        table = Table(6, 2)
        table.numpy()[:] = whole
        return lambda: table.keep(np.array([1, 4]))

    seen = set()
    for _ in each_interrupt(prepare):
        seen.add(table.shape[0])
        expected = whole if table.shape[0] == 6 else whole[[1, 4]]
        np.testing.assert_array_equal(table.numpy(), expected)
    assert seen == {6, 2}


@pytest.mark.parametrize("field", [None, "b"])
def test_rows_are_seen_as_they_are_while_another_thread_appends(field: str | None) -> None:
    more = np.ones((1 << 14, 2), "f4")

    def appended(at: int) -> bool:
        table, seen = Table(0, 2, fields={"a": 1, "b": 1}), []
        found = interrupted(lambda: seen.append(table.numpy(field)), at, lambda: table.append(more))
        assert (len(seen[0]), seen[0].sum()) in [(0, 0), (len(more), seen[0].size)]
        return found

    assert next(at for at in itertools.count(1) if not appended(at)) > 20


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_signal_completes_is_set_or_poisoned(fails: bool) -> None:
    signal, began = Signal(), False

    def prepare() -> Callable[[], object]:
        nonlocal signal, began
        signal, began = Signal(), False

        def complete() -> None:
            nonlocal began
            with suppress(ArithmeticError), signal.completing(1):
                began = True
                if fails:
                    raise ArithmeticError

        return complete

    outcomes = set()
    for _ in each_interrupt(prepare):
        assert signal.value >= 1 or not began  # a poisoned one has the largest value there is
        outcomes.add((began, signal.is_poisoned))
    assert (True, True) in outcomes
