# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C between any two steps of the interpreter: a step has been taken or it has not.

The interpreter raises KeyboardInterrupt between bytecodes of Python, most often right behind native
code that took its time; here it is raised before each one in turn.
"""

import copy
import functools
import itertools
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import gs_adam
from gs_adam import DeviceAdam, DeviceRows, HostAdam, RowSchedule
from gs_adam._rows_on_cpu import RowsOnCpu

FOLDER = Path(gs_adam.__file__).parent
_TRACED = (
    "_host_base", "_open_steps", "_row_edits", "_steps", "_storage", "device", "host",
    "row_schedule",
)  # fmt: skip
SOURCES = tuple(str(FOLDER / f"{name}.py") for name in _TRACED)
N, WIDTHS = 12, (3, 5)
ROWS = torch.tensor([1, 2, 7])
SEMANTICS = ["dense", "deferred", "sparse"]
# Of each semantics: whether steps have been taken before, whether only some rows have gradients.
EACH_ONCE = {"dense": (True, True), "deferred": (False, False), "sparse": (True, False)}


def interrupted(call, at):
    """Run `call`, with Ctrl-C before its bytecode of that number; False: it has fewer."""
    left = at

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in SOURCES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
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
    return False


def values(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(N, width, generator=draw) for width in WIDTHS]


def gradients(rows=None):
    return [value if rows is None else value[rows] for value in values(seed=1)]


def copied(host, like):
    """Another optimizer that goes on from a checkpoint."""
    params = [p.clone() for p in host._params()]
    twin = HostAdam(params, lr=0.1, semantics=like)
    twin.load_state_dict(copy.deepcopy(host.state_dict()))
    return twin


def rows_of(host):
    host.flush()
    return torch.cat([p.clone() for p in host._params()], 1)


@pytest.mark.parametrize(
    ("semantics", "taken", "rows"),
    [
        pytest.param(
            *(semantics, taken, ROWS if is_some else None),
            id=f"{semantics}-{taken}-{'some' if is_some else 'all'}",
            # The long run has every pair.
            marks=() if (taken > 0, is_some) == EACH_ONCE[semantics] else pytest.mark.long,
        )
        for semantics in SEMANTICS
        for taken in (0, 2)
        for is_some in (False, True)
    ],
)
def test_a_step_is_taken_whole_or_not_at_all(semantics, taken, rows):
    def begun(steps):
        host = HostAdam(values(), lr=0.1, semantics=semantics)
        for _ in range(steps):
            host.step(ROWS, gradients(ROWS))
        return host

    def step(host):
        host.step(rows, gradients(rows))

    def expected(whole):
        host = begun(taken)
        for _ in range(whole):
            step(host)
        return rows_of(host)

    after = {taken + whole: expected(whole) for whole in (0, 1, 2)}
    seen = set()
    for at in itertools.count(1):
        host = begun(taken)
        if not interrupted(lambda host=host: step(host), at):
            break
        seen.add(host.step_count)
        assert host.open_steps == ()
        for other in (copied(host, semantics), host):
            count = other.step_count
            assert torch.equal(rows_of(copied(other, semantics)), after[count]), f"bytecode {at}"
            if count + 1 in after:
                step(other)
                assert torch.equal(rows_of(other), after[count + 1]), f"after bytecode {at}"
    assert at > 100
    assert seen == {taken, taken + 1}


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_step_that_was_begun_can_be_ended(semantics):
    for at in itertools.count(1):
        host = HostAdam(values(), lr=0.1, semantics=semantics)
        if not interrupted(host.begin_step, at):
            break
        assert host.open_steps == tuple(range(1, host.step_count + 1))
        for step in host.open_steps:
            host.end_step(step)
        host.step(ROWS, gradients(ROWS))
        copied(host, semantics)
    assert at > 100


@pytest.mark.parametrize("call", ["update", "flush", "lookahead", "end_step"])
def test_a_call_that_ctrl_c_has_ended_keeps_no_other_call_waiting(call):
    for at in itertools.count(1):
        host = HostAdam(values(), lr=0.1, semantics="dense" if call == "end_step" else "deferred")
        step = host.begin_step()
        calls = {
            "update": lambda host=host, step=step: host.update(ROWS, gradients(ROWS), step=step),
            "flush": lambda host=host: host.flush(ROWS),
            "lookahead": lambda host=host: host.lookahead(ROWS),
            "end_step": lambda host=host, step=step: host.end_step(step),
        }
        is_stopped = interrupted(calls[call], at)
        for left in host.open_steps:
            host.end_step(left)
        host.keep_rows(ROWS)
        if not is_stopped:
            break
    assert at > 20


@pytest.mark.parametrize("rows", [None, ROWS], ids=["all", "some"])
def test_so_does_the_step_of_a_devices_optimizer(rows):
    def step(adam):
        adam.step(rows, gradients(rows))

    def expected(steps):
        adam = DeviceAdam(values(), lr=0.1)
        for _ in range(steps):
            step(adam)
        return torch.cat(adam._params(), 1)

    after, seen = [expected(steps) for steps in range(4)], set()
    for at in itertools.count(1):
        adam = DeviceAdam(values(), lr=0.1)
        step(adam)
        if not interrupted(lambda adam=adam: step(adam), at):
            break
        taken = 1 + (not torch.equal(torch.cat(adam._params(), 1), after[1]))
        seen.add(taken)
        replaced, again = (copy.deepcopy(adam) for _ in range(2))
        (group,) = replaced.param_groups
        group["params"] = values()  # with state to come
        replaced.state.clear()
        step(replaced)
        assert torch.equal(torch.cat(replaced._params(), 1), after[1]), f"bytecode {at}"
        for other in (again, adam):
            step(other)
            assert torch.equal(torch.cat(other._params(), 1), after[taken + 1]), f"bytecode {at}"
    assert seen == {1, 2}


@pytest.mark.parametrize("call", ["wake", "update"])
def test_rows_that_visited_know_their_last_step_where_ctrl_c_came_in_the_call(call, monkeypatch):
    bound = RowsOnCpu._bound

    class Interrupted:
        def __init__(self, *arguments):
            self._rows = bound(*arguments)

        def wake(self, *arguments):
            self._rows.wake(*arguments)
            raise KeyboardInterrupt

        def update(self, *arguments):
            self._rows.update(*arguments)
            raise KeyboardInterrupt

    monkeypatch.setattr(RowsOnCpu, "_bound", lambda *arguments: Interrupted(*arguments))
    host = HostAdam(values(), lr=0.1)
    host.step(None, gradients())
    step = [host.begin_step() for _ in range(2)][1]
    table = torch.cat(host._params(), 1)
    moments = [torch.ones_like(table) for _ in range(2)]
    last_step = torch.ones(N, dtype=torch.int32)
    tables = (table, *moments, ROWS.int(), last_step, ROWS.int())
    visits = DeviceRows(host, "cpu")
    grads = torch.cat(gradients(ROWS), 1)
    calls = {
        "wake": lambda: visits.wake(*tables, step=step),
        "update": lambda: visits.update(*tables, grads, step=step),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    assert last_step[ROWS].tolist() == [2 if call == "wake" else 3] * len(ROWS)


@pytest.mark.parametrize("semantics", ["deferred", "sparse"])
def test_a_step_without_a_host_is_begun_or_not_and_ended_or_not(semantics):
    def rows_after(schedule):
        """What its steps, and one more, make of rows that sleep through them."""
        tables = [torch.full((2, 8), 0.5) for _ in range(3)]
        last_step, ids = torch.zeros(2, dtype=torch.int32), torch.arange(2)
        rows = DeviceRows(schedule, "cpu", widths=WIDTHS)
        rows.flush(*tables, ids, last_step, ids)
        step = schedule.begin_step()
        rows.update(*tables, ids, last_step, ids, torch.ones(2, 8), step=step)
        schedule.end_step(step)
        return torch.cat(tables)

    def begun(steps):
        schedule = RowSchedule([{"lr": 0.1}, {}], semantics=semantics)
        for _ in range(steps):
            schedule.end_step(schedule.begin_step())
        return schedule

    saved, expected = begun(5).state_dict(), {n: rows_after(begun(n)) for n in (3, 4, 5)}
    for name, outcomes in {"begin": {3, 4}, "end": {4}, "load": {3, 5}}.items():
        seen = set()
        for at in itertools.count(1):
            schedule = begun(3)
            if name == "end":
                schedule.begin_step()
            call = {
                "begin": schedule.begin_step,
                "end": lambda schedule=schedule: schedule.end_step(4),
                "load": lambda schedule=schedule: schedule.load_state_dict(saved),
            }[name]
            if not interrupted(call, at):
                break
            seen.add(schedule.step_count)
            for step in schedule.open_steps:
                schedule.end_step(step)
            count = schedule.step_count
            assert torch.equal(rows_after(schedule), expected[count]), f"{name}, bytecode {at}"
        assert seen == outcomes


@contextmanager
def tables_left(left, monkeypatch):
    """Memory for so many tables and no more."""
    allocate = gs_adam._memory.empty

    def empty(*args):
        nonlocal left
        left -= 1
        if left < 0:
            raise MemoryError
        return allocate(*args)

    with monkeypatch.context() as patched:
        patched.setattr(gs_adam._memory, "empty", empty)
        yield


EDITS = {
    "append": lambda host: host.append_rows(2),
    "keep": lambda host: host.keep_rows([0, 5]),
    "permute": lambda host: host.permute_rows(torch.arange(N).flip(0)),
}


def edited(at=None, tables=None, *, edit, monkeypatch):
    """Moments and last steps after an edit that was stopped; False: it came to its end."""
    host = HostAdam(values(), lr=0.1)
    host.step(None, gradients())
    host.step(ROWS, gradients(ROWS))
    is_stopped = False
    if at is not None:
        is_stopped = interrupted(lambda: EDITS[edit](host), at)
    elif tables is not None:
        try:
            with tables_left(tables, monkeypatch):
                EDITS[edit](host)
        except MemoryError:
            is_stopped = True
    moments = [host.state[p][key] for p in host._params() for key in ("exp_avg", "exp_avg_sq")]
    return [host._storage.last_step, *moments], is_stopped


def are_equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("edit", EDITS)
def test_rows_of_the_state_are_edited_all_or_not_at_all(edit, monkeypatch):
    run = functools.partial(edited, edit=edit, monkeypatch=monkeypatch)
    before, after = run()[0], run(tables=100)[0]
    seen = set()
    for at in itertools.count(1):
        found, is_stopped = run(at=at)
        if not is_stopped:
            break
        seen.add(are_equal(found, after))
        assert are_equal(found, after) or are_equal(found, before), f"bytecode {at}"
    assert seen == {False, True}
    for tables in itertools.count():
        found, is_stopped = run(tables=tables)
        if not is_stopped:
            break
        assert are_equal(found, before), f"{tables} tables"
    assert tables > 2


def test_a_first_step_without_memory_can_be_taken_later(monkeypatch):
    host, twin = (HostAdam(values(), lr=0.1) for _ in range(2))
    with tables_left(1, monkeypatch), pytest.raises(MemoryError):
        host.begin_step()
    assert not host.state
    for adam in (host, twin):
        adam.step(ROWS, gradients(ROWS))
    assert torch.equal(rows_of(host), rows_of(twin))
