# SPDX-License-Identifier: Apache-2.0
"""gs_adam: good calls of functions, schedules, and of what updates rows on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gs_adam
from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.threads import Shared

N_STEPS = 3


def shapes_of(room: Room) -> tuple[int, list[tuple[int, ...]]]:
    """Rows, and the shape of one row of each tensor."""
    n_rows = room.pick(1, 2, 17, 64, 300)
    return n_rows, [room.pick((3,), (4,), (1, 3), (15, 3), ()) for _ in range(room.between(1, 3))]


def schedule_of(room: Room, n_groups: int = 1, *, steps: int = N_STEPS) -> gs_adam.Schedule:
    schedule = gs_adam.Schedule(n_groups)
    for _ in range(steps):
        schedule.begin(lr=0.1)
    return schedule


def _storage(room: Room) -> dict[str, Any]:
    n_rows, shapes = shapes_of(room)

    def listed(made: Callable[[tuple[int, ...]], Any]) -> Any:
        arrays = [made((n_rows, *shape)) for shape in shapes]
        return arrays[0] if len(arrays) == 1 else arrays

    return {
        "params": listed(lambda shape: room.normal(*shape)),
        "exp_avg": listed(lambda shape: room.normal(*shape)),
        "exp_avg_sq": listed(lambda shape: room.own(np.abs(room.rng.random(shape)), np.float32)),
        "last_step": room.own(np.full(n_rows, room.below(N_STEPS)), np.int32),
        "rows": room.pick(None, room.ids(room.between(1, n_rows), n_rows)),
        "schedule": schedule_of(room),
    }


_WRITES = ("params", "exp_avg", "exp_avg_sq", "last_step")


def _update_rows(room: Room) -> Call:
    args = _storage(room)
    params = args["params"] if isinstance(args["params"], list) else [args["params"]]
    n = len(params[0]) if args["rows"] is None else len(args["rows"])
    grads = [room.normal(n, *param.shape[1:]) for param in params]
    args["grads"] = grads[0] if len(grads) == 1 else grads
    if room.chance(0.4):
        args |= {"threads": room.pick(None, 1, 2), "skip_nonfinite": room.chance()}
    schedule = args["schedule"]
    limits = {"threads": 8}
    state = lambda: [schedule.step, schedule.nonfinite_rows]  # noqa: E731
    return Call(gs_adam.update_rows, args, writes=_WRITES, limits=limits, state=state)


def _flush_rows(room: Room) -> Call:
    args = {**_storage(room), "threads": room.pick(None, 2)}
    return Call(gs_adam.flush_rows, args, writes=_WRITES, limits={"threads": 8})


def _schedule(room: Room) -> Call:
    return Call(gs_adam.Schedule, {"n_groups": room.between(1, 4)}, limits={"n_groups": 10_000})


def _state(schedule: gs_adam.Schedule) -> Any:
    return schedule.state_dict()


def _begin(room: Room) -> Call:
    n_groups = room.between(1, 3)
    schedule = schedule_of(room, n_groups, steps=room.below(3))
    each = room.chance()
    args = {
        "lr": [0.1] * n_groups if each else 0.1,
        "betas": [(0.9, 0.999)] * n_groups if room.chance() else (0.9, 0.999),
        "eps": [1e-15] * n_groups if each else 1e-15,
        "weight_decay": 0.0,
        "all_awake": False,
    }

    def begin(**given: Any) -> Any:
        return [schedule.begin(**given), _state(schedule)]

    return Call(begin, args, state=lambda: _state(schedule))


def _schedule_saved(room: Room) -> Call:
    return Call(schedule_of(room, room.between(1, 3)).state_dict, {})


def _schedule_loaded(room: Room) -> Call:
    n_groups = room.between(1, 3)
    saved = schedule_of(room, n_groups).state_dict()
    schedule = schedule_of(room, n_groups, steps=1)

    def load(state_dict: Any) -> Any:
        schedule.load_state_dict(state_dict)
        return _state(schedule)

    return Call(load, {"state_dict": saved}, state=lambda: _state(schedule))


# ---------------------------------------------------------------------- on a device


def _device_adam(room: Room) -> Call:
    n_rows, shapes = shapes_of(room)
    params = [room.tensor(room.rng.standard_normal((n_rows, *s)), np.float32) for s in shapes]
    rates = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-15, "weight_decay": 0.0}

    def make_and_step(**given: Any) -> Any:
        adam = gs_adam.DeviceAdam(**given)
        adam.step(grads=[torch.ones_like(p) for g in adam.param_groups for p in g["params"]])
        return [p.detach() for g in adam.param_groups for p in g["params"]]

    return Call(make_and_step, {"params": params, **rates}, writes=("params",))


def _device_step(room: Room) -> Call:
    n_rows, shapes = shapes_of(room)
    params = [room.tensor(room.rng.standard_normal((n_rows, *s)), np.float32) for s in shapes]
    adam = gs_adam.DeviceAdam(params, lr=0.1)
    n = room.between(1, n_rows)
    ids = room.pick(None, torch.from_numpy(np.sort(room.rng.permutation(n_rows)[:n])))
    count = n_rows if ids is None else n
    args = {
        "ids": ids,
        "grads": [room.tensor(room.rng.standard_normal((count, *s)), np.float32) for s in shapes],
        "penalties": room.pick(None, [("exp", 0.1)] * len(params)),
    }

    def step(**given: Any) -> Any:
        adam.step(**given)
        return [*params, adam.state_dict()["state"]]

    return Call(step, args, state=lambda: [*params, adam.state_dict()["state"]])


def _device_state(room: Room) -> Call:
    call = _device_adam(room)
    return Call(gs_adam.DeviceAdam(**call.args).state_dict, {}, show=lambda saved: saved["state"])


def _device_loaded(room: Room) -> Call:
    call = _device_step(room)
    call.run()
    params = call.state()[:-1]  # type: ignore[misc]
    other = gs_adam.DeviceAdam([torch.zeros_like(param) for param in params], lr=0.1)
    other.step(grads=[torch.ones_like(param) for param in params])
    adam = gs_adam.DeviceAdam(params, lr=0.1)

    def load(state_dict: Any) -> Any:
        adam.load_state_dict(state_dict)
        return adam.state_dict()["state"]

    return Call(load, {"state_dict": other.state_dict()}, state=lambda: adam.state_dict()["state"])


def _add_group(kind: Any) -> Callable[[Room], Call]:
    """Refused always, in words."""

    def make(room: Room) -> Call:
        adam = kind([torch.zeros(3, 2)])

        def add(param_group: Any) -> str:
            try:
                adam.add_param_group(param_group)
            except RuntimeError:
                return "refused"
            return "taken"

        return Call(add, {"param_group": {"params": [torch.zeros(3, 2)]}}, expect=_refused)

    return make


def _refused(**_: Any) -> str:
    return "refused"


def _row_schedule(room: Room, n_groups: int, *, steps: int = N_STEPS) -> gs_adam.RowSchedule:
    groups = [{"lr": 0.1, "name": str(k)} for k in range(n_groups)]
    semantics = room.pick("deferred", "sparse")
    schedule = gs_adam.RowSchedule(groups, semantics=semantics, threads=room.pick(None, 2))
    for _ in range(steps):
        schedule.end_step(schedule.begin_step())
    return schedule


def _steps_of(schedule: gs_adam.RowSchedule) -> Any:
    """What is kept of its steps; of one with open steps their numbers alone."""
    counts = [schedule.step_count, schedule.open_steps, schedule.param_groups]
    return counts if schedule.open_steps else [*counts, schedule.state_dict()]


def _new_row_schedule(room: Room) -> Call:
    options = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-15, "weight_decay": 0.0, "name": "sh0"}
    args = {
        "groups": [dict(options) for _ in range(room.between(1, 3))],
        "semantics": room.pick("deferred", "sparse"),
        "bias_correction": "global",
        "threads": room.pick(None, 2),
    }

    def make_and_begin(**given: Any) -> Any:
        schedule = gs_adam.RowSchedule(**given)
        schedule.end_step(schedule.begin_step())
        return _steps_of(schedule)

    return Call(make_and_begin, args, limits={"threads": 8})


def _of_row_schedule(name: str) -> Callable[[Room], Call]:
    """A method, and what the schedule has of its steps then."""

    def make(room: Room) -> Call:
        schedule = _row_schedule(room, room.between(1, 3))
        args: dict[str, Any] = {}
        if name == "begin_step":
            args["all_awake"] = room.chance()
        elif name == "end_step":
            args["step"] = schedule.begin_step()
        elif name == "load_state_dict":
            args["state_dict"] = schedule.state_dict()
            schedule.end_step(schedule.begin_step())

        def call(**given: Any) -> Any:
            return [getattr(schedule, name)(**given), _steps_of(schedule)]

        return Call(call, args, state=lambda: _steps_of(schedule))

    return make


def _device_rows(room: Room) -> Call:
    args: dict[str, Any] = {"device": "cpu"}
    if room.chance():
        args["adam"] = _row_schedule(room, 2)
        args["widths"] = [room.between(0, 5), 45]
    else:
        semantics = room.pick("deferred", "sparse")
        args["adam"] = gs_adam.HostAdam([torch.zeros(5, 3)], semantics=semantics)
    return Call(gs_adam.DeviceRows, args, show=lambda made: made.width)


def _visit(name: str) -> Callable[[Room], Call]:
    def make(room: Room) -> Call:
        n_rows, shapes = shapes_of(room)
        adam: gs_adam.HostAdam | gs_adam.RowSchedule
        if room.chance():
            adam = _row_schedule(room, len(shapes), steps=2)
            widths = [int(np.prod(shape)) for shape in shapes]
            rows = gs_adam.DeviceRows(adam, "cpu", widths=widths)
        else:
            semantics = room.pick("deferred", "sparse")
            adam = gs_adam.HostAdam([torch.zeros(n_rows, *s) for s in shapes], semantics=semantics)
            for _ in range(2):
                adam.end_step(adam.begin_step())
            rows = gs_adam.DeviceRows(adam, "cpu")
        n_slots, n = 20, room.between(1, min(20, n_rows))
        tables = [room.tensor(room.rng.random((n_slots, rows.width)), np.float32) for _ in range(3)]
        args: dict[str, Any] = dict(zip(("param", "exp_avg", "exp_avg_sq"), tables, strict=True))
        args |= {
            "slots": room.tensor(room.rng.permutation(n_slots)[:n], np.int64),
            "last_step": room.tensor(np.ones(n_rows), np.int32),
            "ids": room.tensor(room.rng.permutation(n_rows)[:n], np.int64),
        }
        if name == "lookahead":
            return Call(rows.lookahead, args)
        if name != "flush":
            args["step"] = adam.begin_step()
        if name == "update":
            args["grads"] = room.tensor(room.rng.standard_normal((n, rows.width)), np.float32)
        if room.chance():
            args["marks"] = room.tensor(room.rng.random(n) < 0.7, np.bool_)
        writes = ("param", "exp_avg", "exp_avg_sq", "last_step")
        return Call(getattr(rows, name), args, writes=writes)

    return make


def _steps_together(room: Room) -> dict[str, Callable[[], Any]]:
    schedule, n_rows = _row_schedule(room, 2), 40
    rows = gs_adam.DeviceRows(schedule, "cpu", widths=[3, 45])
    tables = [torch.ones(n_rows, 48) for _ in range(3)]
    last_step, ids = torch.zeros(n_rows, dtype=torch.int32), torch.arange(n_rows)
    saved = schedule.state_dict()

    def step() -> None:
        number = schedule.begin_step()
        try:
            rows.wake(*tables, ids, last_step, ids, step=number)
        finally:
            schedule.end_step(number)

    return {
        "a step": step,
        "flush": lambda: rows.flush(*tables, ids, last_step, ids),
        "state_dict": schedule.state_dict,
        "load_state_dict": lambda: schedule.load_state_dict(saved),
        "open_steps": lambda: schedule.open_steps,
    }


class _Strategy:
    """What `gs_adam.follow` asks of one."""

    def step_post_backward(self, *arguments: Any, **options: Any) -> None:
        pass


def _follow(room: Room) -> Call:
    # Looked up when called: the name is newer than this table.
    args = {"strategy": _Strategy()}
    return Call(lambda **given: gs_adam.follow(**given), args, show=lambda _: None)


ENTRIES = (
    Entry("gs_adam.follow", _follow),
    Entry("gs_adam.update_rows", _update_rows),
    Entry("gs_adam.flush_rows", _flush_rows),
    Entry("gs_adam.Schedule", _schedule),
    Entry("gs_adam.Schedule.begin", _begin),
    Entry("gs_adam.Schedule.state_dict", _schedule_saved),
    Entry("gs_adam.Schedule.load_state_dict", _schedule_loaded),
    Entry("gs_adam.DeviceAdam", _device_adam),
    Entry("gs_adam.DeviceAdam.step", _device_step),
    Entry("gs_adam.DeviceAdam.state_dict", _device_state),
    Entry("gs_adam.DeviceAdam.load_state_dict", _device_loaded),
    Entry("gs_adam.DeviceAdam.add_param_group", _add_group(gs_adam.DeviceAdam)),
    Entry("gs_adam.HostAdam.add_param_group", _add_group(gs_adam.HostAdam)),
    Entry("gs_adam.DeviceRows", _device_rows),
    Entry("gs_adam.DeviceRows.wake", _visit("wake")),
    Entry("gs_adam.DeviceRows.update", _visit("update")),
    Entry("gs_adam.DeviceRows.flush", _visit("flush")),
    Entry("gs_adam.DeviceRows.lookahead", _visit("lookahead")),
    Entry("gs_adam.RowSchedule", _new_row_schedule),
    Entry("gs_adam.RowSchedule.begin_step", _of_row_schedule("begin_step")),
    Entry("gs_adam.RowSchedule.end_step", _of_row_schedule("end_step")),
    Entry("gs_adam.RowSchedule.state_dict", _of_row_schedule("state_dict")),
    Entry("gs_adam.RowSchedule.load_state_dict", _of_row_schedule("load_state_dict")),
    Entry("gs_adam.build_info", lambda room: Call(gs_adam.build_info, {})),
)

SHARED = (Shared("gs_adam.RowSchedule", _steps_together),)
