# SPDX-License-Identifier: Apache-2.0
"""An argument of a wrong kind is answered by one line that names it, whatever kind it is."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gs_adam import (
    DeviceAdam,
    DeviceRows,
    HostAdam,
    RowSchedule,
    Schedule,
    Worker,
    flush_rows,
    follow,
    update_rows,
)

N = 8
ROWS = torch.arange(2)
KINDS = [
    None, 3, -1, 1.5, 2**70, True, "x", b"y", object(), [], {}, [1], (1, 2), {"a": 1}, [{}], [None],
    lambda: 3, np.zeros((2, 2)), np.zeros(0), torch.zeros(()), torch.zeros(2, 2),
]  # fmt: skip


def _grads() -> list[torch.Tensor]:
    return [torch.ones(2, 3)]


def _host(begun: bool = False) -> HostAdam:
    host = HostAdam([torch.zeros(N, 3)])
    host.step(ROWS, _grads())
    if begun:
        host.begin_step()
    return host


def _schedule() -> Schedule:
    schedule = Schedule()
    schedule.begin(0.1)
    return schedule


def _series(**changes: Any) -> None:
    (group,) = _schedule().state_dict()["groups"]
    Schedule().load_state_dict({"step": 1, "groups": [{**group, **changes}]})


def _plain() -> dict[str, Any]:
    tables = {key: np.zeros((N, 3), np.float32) for key in ("params", "exp_avg", "exp_avg_sq")}
    return {**tables, "last_step": np.zeros(N, np.int32), "rows": np.arange(2)}


def _adopted(**changes: Any) -> None:
    state = {key: [torch.zeros(N, 3)] for key in ("exp_avg", "exp_avg_sq")}
    state["last_step"] = torch.zeros(N, dtype=torch.int32)
    HostAdam([torch.zeros(N, 3)], state={**state, **changes})


def _load(change: Callable[[dict[str, Any]], None]) -> None:
    state_dict = copy.deepcopy(_host().state_dict())
    change(state_dict)
    _host().load_state_dict(state_dict)


def _on_worker(call: str, **arguments: Any) -> None:
    worker = Worker(_host(begun=True))
    try:
        getattr(worker, call)(**arguments)
    finally:
        worker.close(drain=False)


def _device_adam(**arguments: Any) -> None:
    DeviceAdam([torch.zeros(N, 3)]).step(**arguments)


def _tables() -> dict[str, Any]:
    tables = {key: torch.zeros(4, 3) for key in ("param", "exp_avg", "exp_avg_sq")}
    return {**tables, "slots": ROWS, "last_step": torch.zeros(N).int(), "ids": ROWS, "step": 2}


def _row_schedule(begun: bool = False) -> RowSchedule:
    schedule = RowSchedule([{}])
    for _ in range(2):
        schedule.end_step(schedule.begin_step())
    if begun:
        schedule.begin_step()
    return schedule


def _packed(**changes: Any) -> None:
    (group,) = _row_schedule().state_dict()["schedule"]
    _row_schedule().load_state_dict({"step": 2, "schedule": [{**group, **changes}]})


def _begin_with(groups: Any) -> None:
    schedule = RowSchedule([{}])
    schedule.param_groups = groups
    schedule.begin_step()


OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-15, "weight_decay": 0.0}
STEP = {"rows": ROWS, "grads": _grads(), "step": 2}
AHEAD = {"rows": ROWS, "step": 2, "pending": (ROWS, _grads()), "out": _grads()}

# A call, and the arguments of which each one in turn is replaced.
CALLS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "Schedule": (Schedule, {"n_groups": 1}),
    "begin": (lambda **a: Schedule(2).begin(**a), {**OPTIONS, "all_awake": False}),
    "a schedule's load_state_dict": (
        lambda **a: Schedule().load_state_dict(**a),
        {"state_dict": {}},
    ),
    "its step and groups": (
        lambda **a: Schedule().load_state_dict(a),
        {"step": 1, "groups": []},
    ),
    "a group's steps": (
        _series,
        dict.fromkeys(("beta1", "beta2", "known_since", "missed", "settled")),
    ),
    "update_rows": (
        lambda **a: update_rows(**{**_plain(), "schedule": _schedule(), **a}),
        {
            **_plain(),
            "grads": np.ones((2, 3), np.float32),
            "threads": None,
            "skip_nonfinite": False,
        },
    ),
    "update_rows by a schedule": (
        lambda schedule: update_rows(**_plain(), grads=None, schedule=schedule),
        {"schedule": None},
    ),
    "flush_rows by a schedule": (
        lambda schedule: flush_rows(**_plain(), schedule=schedule),
        {"schedule": None},
    ),
    "HostAdam": (
        HostAdam,
        {
            "params": [torch.zeros(N, 3)],
            **OPTIONS,
            **{"semantics": "dense", "bias_correction": "global", "threads": None, "state": None},
            **{"skip_nonfinite": False, "amsgrad": False, "capturable": False},
        },
    ),
    "adopted state": (_adopted, dict.fromkeys(("exp_avg", "exp_avg_sq", "last_step"))),
    "a group": (lambda **a: HostAdam([{"params": [torch.zeros(N, 3)], **a}]), OPTIONS),
    "step": (
        lambda **a: _host().step(**a),
        {"rows": ROWS, "grads": _grads(), "closure": None},
    ),
    "update": (lambda **a: _host(begun=True).update(**a), STEP),
    "end_step": (lambda **a: _host(begun=True).end_step(**a), {"step": 2}),
    "flush": (lambda **a: _host().flush(**a), {"rows": ROWS}),
    "lookahead": (lambda **a: _host(begun=True).lookahead(**a), AHEAD),
    "what is pending": (
        lambda ids, grads: _host(begun=True).lookahead(ROWS, step=2, pending=(ids, grads)),
        {"ids": ROWS, "grads": _grads()},
    ),
    "append_rows": (lambda **a: _host().append_rows(**a), {"count": 1}),
    "keep_rows": (lambda **a: _host().keep_rows(**a), {"rows": ROWS}),
    "permute_rows": (lambda **a: _host().permute_rows(**a), {"order": torch.arange(N)}),
    "zero_rows": (lambda **a: _host().zero_rows(**a), {"rows": ROWS}),
    "rebind": (
        lambda **a: _host().rebind(**{"params": [torch.zeros(N, 3)], **a}),
        {"params": [torch.zeros(N, 3)], "state": None},
    ),
    "load_state_dict": (lambda **a: _host().load_state_dict(**a), {"state_dict": {}}),
    "parts of a state dict": (
        lambda **a: _load(lambda d: d.update(a)),
        {"state": {}, "param_groups": []} | {"gs_adam": {}},
    ),
    "parts of gs_adam": (
        lambda **a: _load(lambda d: d["gs_adam"].update(a)),
        dict.fromkeys(("last_step", "schedule")),
    ),
    "a parameter's state": (
        lambda **a: _load(lambda d: d["state"][0].update(a)),
        dict.fromkeys(("step", "exp_avg", "exp_avg_sq")),
    ),
    "a parameter's whole state": (
        lambda whole: _load(lambda d: d["state"].update({0: whole})),
        {"whole": {}},
    ),
    "a group of a state dict": (
        lambda **a: _load(lambda d: d["param_groups"][0].update(a)),
        {**OPTIONS, "params": [0]},
    ),
    "Worker": (Worker, {"optimizer": None}),
    "Worker.submit": (
        lambda **a: _on_worker("submit", **a),
        {**STEP, "ready": None, "priority": 0, "checked": False},
    ),
    "Worker.flush": (
        lambda **a: _on_worker("flush", **a),
        {"rows": ROWS, "ready": None, "priority": 0},
    ),
    "Worker.lookahead": (
        lambda **a: _on_worker("lookahead", **a),
        {**AHEAD, "ready": None, "priority": 0, "checked": False, "apart": False},
    ),
    "Worker.lookahead as of a step": (
        lambda **a: _on_worker("lookahead", rows=ROWS, out=_grads(), **a),
        {"as_of": None},
    ),
    "Worker.wait": (lambda **a: _on_worker("wait", **a), {"ticket": None, "rows": None}),
    "Worker.record": (lambda **a: _on_worker("record", **a), {"enabled": True}),
    "Worker.close": (lambda **a: _on_worker("close", **a), {"drain": True}),
    "DeviceAdam": (DeviceAdam, {"params": [torch.zeros(N, 3)], **OPTIONS, "maximize": False}),
    "DeviceAdam.step": (
        _device_adam,
        {"ids": ROWS, "grads": _grads(), "penalties": [None], "closure": None},
    ),
    "a penalty": (
        lambda name, weight: _device_adam(ids=ROWS, grads=_grads(), penalties=[(name, weight)]),
        {"name": "exp", "weight": 0.1},
    ),
    "DeviceAdam.load_state_dict": (
        lambda **a: DeviceAdam([torch.zeros(N, 3)]).load_state_dict(**a),
        {"state_dict": {}},
    ),
    "DeviceRows": (
        lambda **a: DeviceRows(**{"adam": _host(), **a}),
        {"device": "cpu"},
    ),
    "DeviceRows of an optimizer": (lambda adam: DeviceRows(adam, "cpu"), {"adam": None}),
    "DeviceRows.wake": (
        lambda **a: DeviceRows(_host(begun=True), "cpu").wake(**a),
        {
            **_tables(),
            "marks": torch.ones(2, dtype=torch.bool),
            "counts": torch.zeros(2, dtype=torch.int64),
        },
    ),
    "DeviceRows.update": (
        lambda **a: DeviceRows(_host(begun=True), "cpu").update(**a),
        {**_tables(), "grads": torch.ones(2, 3), "marks": None},
    ),
    "DeviceRows.flush": (
        lambda **a: DeviceRows(_host(), "cpu").flush(**a),
        {**{k: v for k, v in _tables().items() if k != "step"}, "marks": None},
    ),
    "DeviceRows of a schedule": (
        lambda **a: DeviceRows(RowSchedule([{}]), "cpu", **a),
        {"widths": [3]},
    ),
    "RowSchedule": (
        RowSchedule,
        {"groups": [{}], "semantics": "sparse", "bias_correction": "off", "threads": None},
    ),
    "a group without tensors": (
        lambda **a: RowSchedule([{**OPTIONS, **a}]),
        {**OPTIONS, "name": "sh0"},
    ),
    "RowSchedule.begin_step": (
        lambda **a: RowSchedule([{}]).begin_step(**a),
        {"all_awake": False},
    ),
    "groups of a schedule": (_begin_with, {"groups": [{}]}),
    "RowSchedule.end_step": (lambda **a: _row_schedule(begun=True).end_step(**a), {"step": 3}),
    "RowSchedule.load_state_dict": (
        lambda **a: _row_schedule().load_state_dict(**a),
        {"state_dict": {}},
    ),
    "parts of a schedule's state": (
        lambda **a: _row_schedule().load_state_dict({**_row_schedule().state_dict(), **a}),
        {"step": 2, "schedule": []},
    ),
    "a group of a schedule's state": (
        _packed,
        dict.fromkeys(("beta1", "beta2", "known_since", "missed", "settled")),
    ),
    "follow": (follow, {"strategy": None}),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_a_wrong_kind_is_named(call: str) -> None:
    run, arguments = CALLS[call]
    for name in arguments:
        for value in KINDS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # numpy's and torch's, about the value
                    run(**{**copy.deepcopy(arguments), name: value})
            except (TypeError, ValueError, IndexError, RuntimeError) as error:
                message = str(error)
                clear = ("must", "needs", "empty parameter list", "unexpected keyword")
                assert any(word in message for word in clear), f"{name}={value!r}: {message}"
                assert "\n" not in message, f"{name}={value!r}: {message}"


def test_what_torchs_adam_takes_beside_is_ignored_or_refused() -> None:
    for kind in (HostAdam, DeviceAdam):
        kind([torch.zeros(N, 3)], fused=True, foreach=False, amsgrad=False, capturable=None)
        for name in ("amsgrad", "maximize", "capturable", "differentiable"):
            with pytest.raises(ValueError, match=f"{name} must be False, got True"):
                kind([torch.zeros(N, 3)], **{name: True})
        with pytest.raises(TypeError, match="unexpected keyword argument 'momentum'"):
            kind([torch.zeros(N, 3)], momentum=0.9)


@pytest.mark.parametrize("as_keyword", [False, True])
@pytest.mark.parametrize("kind", [HostAdam, DeviceAdam])
def test_a_closure_makes_the_gradients_of_a_step(kind: Any, as_keyword: bool) -> None:
    param, theirs = (torch.nn.Parameter(torch.ones(N, 3)) for _ in range(2))
    optimizer, adam = kind([param], lr=0.1), torch.optim.Adam([theirs], lr=0.1, eps=1e-15)

    def loss_of(values: torch.Tensor, optimizer: Any) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (values**2).sum()
            loss.backward()
            return loss

        return closure

    for _ in range(3):
        closure = loss_of(param, optimizer)
        with torch.no_grad():
            loss = optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
        torch.testing.assert_close(loss, adam.step(loss_of(theirs, adam)))
        torch.testing.assert_close(param, theirs)
    with pytest.raises(TypeError, match="must be ids or a mask beside grads, got a closure"):
        optimizer.step(closure, [torch.ones(N, 3)])


def test_moments_that_are_not_dense_are_refused() -> None:
    device = DeviceAdam([torch.zeros(2, 3)])
    state = device.state_dict()
    state["state"] = {0: {"step": 1.0, "exp_avg": torch.zeros(2, 3).to_sparse(), "exp_avg_sq": 0}}
    with pytest.raises(TypeError, match="exp_avg of parameter 0 must be a dense tensor, got"):
        device.load_state_dict(state)


def test_groups_are_left_as_they_were_given() -> None:
    groups = [{"params": [torch.zeros(2, 3)]}]
    with pytest.raises(ValueError, match="weight_decay must be at least 0 and finite, got -inf"):
        HostAdam(groups, weight_decay=-float("inf"))
    HostAdam(groups)
    assert groups[0].keys() == {"params"}


def test_a_step_at_the_end_of_its_range_is_one_clear_error() -> None:
    schedule = Schedule()
    schedule.begin(lr=0.1)
    state = schedule.state_dict() | {"step": 2**31 - 1}
    with pytest.raises(ValueError, match=r"missed must have shape \(2147483648, "):
        Schedule().load_state_dict(state)
