# SPDX-License-Identifier: Apache-2.0
"""gs_adam: good calls of the host optimizer and of its worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import gs_adam
from campaigns.misuse.calls import Call, Entry, Room
from campaigns.misuse.of_adam import shapes_of
from campaigns.misuse.threads import Shared

_THREADS = 2


def _adam(room: Room, *, steps: int = 2, semantics: str | None = None) -> gs_adam.HostAdam:
    """An optimizer some of whose rows have had a gradient."""
    n_rows, shapes = shapes_of(room)
    params = [room.tensor(room.rng.standard_normal((n_rows, *s)), np.float32) for s in shapes]
    semantics = semantics or room.pick("dense", "deferred", "sparse")
    adam = gs_adam.HostAdam(params, lr=0.1, semantics=semantics, threads=_THREADS)
    for _ in range(steps):
        rows = _ids(room, n_rows)
        adam.step(rows, _gradients(room, adam, len(rows)))
    return adam


def _params(adam: gs_adam.HostAdam) -> list[torch.Tensor]:
    return [param for group in adam.param_groups for param in group["params"]]


def _ids(room: Room, n_rows: int) -> torch.Tensor:
    chosen = np.sort(room.rng.permutation(n_rows)[: room.between(1, n_rows)])
    return torch.from_numpy(chosen.astype(room.pick(np.int32, np.int64)))


def _gradients(room: Room, adam: gs_adam.HostAdam, n: int) -> list[torch.Tensor]:
    shapes = [(n, *param.shape[1:]) for param in _params(adam)]
    return [room.tensor(room.rng.standard_normal(shape), np.float32) for shape in shapes]


def _state(adam: gs_adam.HostAdam) -> Any:
    """Parameters, and what is kept of each; of an optimizer with open steps parameters alone."""
    if adam.open_steps:
        return [adam.step_count, adam.open_steps, [param.detach() for param in _params(adam)]]
    saved = adam.state_dict()
    return [adam.step_count, [param.detach() for param in _params(adam)], saved["state"]]


def _new(room: Room) -> Call:
    n_rows, shapes = shapes_of(room)
    params: Any = [room.tensor(room.rng.standard_normal((n_rows, *s)), np.float32) for s in shapes]
    if room.chance(0.3):
        params = [{"params": [param], "lr": 0.2} for param in params]
    semantics = room.pick("dense", "deferred", "sparse")
    args: dict[str, Any] = {
        "params": params,
        "lr": 0.1,
        "betas": (0.9, 0.999),
        "eps": 1e-15,
        "weight_decay": 0.0,
        "semantics": semantics,
        "bias_correction": "global",
        "threads": _THREADS,
        "skip_nonfinite": room.chance(),
    }
    if room.chance(0.3):
        args["state"] = {
            name: [torch.zeros(n_rows, *shape) for shape in shapes]
            for name in ("exp_avg", "exp_avg_sq")
        }
        if semantics == "deferred":
            args["state"]["last_step"] = torch.zeros(n_rows, dtype=torch.int32)

    def make_and_step(params: Any, **given: Any) -> Any:
        if isinstance(params, list | tuple):  # torch adds the defaults to groups that it is given
            params = [dict(group) if isinstance(group, dict) else group for group in params]
        adam = gs_adam.HostAdam(params, **given)
        adam.step(None, [torch.ones_like(param) for param in _params(adam)])
        return _state(adam)

    writes = ("params", "state") if "state" in args else ("params",)
    return Call(make_and_step, args, writes=writes, limits={"threads": 8})


def _of_adam(name: str, args_of: Any, *, is_open: bool = False) -> Callable[[Room], Call]:
    """A method, and what the optimizer's state is then."""

    def make(room: Room) -> Call:
        adam = _adam(room)
        if is_open:
            adam.begin_step()
        method = getattr(adam, name)

        def call(**given: Any) -> Any:
            result = method(**given)
            return [list(result) if isinstance(result, list | tuple) else result, _state(adam)]

        args = args_of(room, adam)
        writes = ("out",) if "out" in args else ()
        return Call(call, args, writes=writes, state=lambda: _state(adam))

    return make


def _nothing(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {}


def _step(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    rows = room.pick(None, _ids(room, adam.n_rows))
    count = adam.n_rows if rows is None else len(rows)
    if rows is not None and room.chance(0.3):
        mask = torch.zeros(adam.n_rows, dtype=torch.bool)
        mask[rows.long()] = True
        rows = mask
    return {"rows": rows, "grads": _gradients(room, adam, count)}


def _update(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {**_step(room, adam), "step": adam.step_count}


def _end(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"step": adam.step_count}


def _rows(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"rows": room.pick(None, _ids(room, adam.n_rows))}


def _lookahead(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    rows = _ids(room, adam.n_rows)
    pending = (rows.clone(), _gradients(room, adam, len(rows)))
    out = _gradients(room, adam, len(rows))
    return {"rows": rows, "step": adam.step_count, "pending": pending, "out": out}


def _kept(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"rows": _ids(room, adam.n_rows)}


def _order(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"order": torch.from_numpy(room.rng.permutation(adam.n_rows))}


def _count(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"count": room.below(9)}


def _rebound(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"params": [param.clone() for param in _params(adam)], "state": None}


def _loaded(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    other = gs_adam.HostAdam([torch.zeros_like(p) for p in _params(adam)], semantics=adam.semantics)
    other.step(None, [torch.ones_like(param) for param in _params(adam)])
    return {"state_dict": other.state_dict()}


def _edit(name: str, args_of: Any) -> Callable[[Room], Call]:
    """An edit of rows, which must be made to the parameters as well before they fit."""

    def make(room: Room) -> Call:
        adam = _adam(room)
        adam.flush()
        method = getattr(adam, name)

        def moments() -> Any:
            return [[s["exp_avg"], s["exp_avg_sq"]] for s in adam.state.values()]

        def call(**given: Any) -> Any:
            method(**given)
            return moments()

        limits = {"count": 10**6}
        return Call(call, args_of(room, adam), state=moments, limits=limits)

    return make


# ---------------------------------------------------------------------- the worker


@contextlib.contextmanager
def _at_work(room: Room, *, is_open: bool = True) -> Iterator[tuple[Any, gs_adam.Worker]]:
    adam = _adam(room, semantics=room.pick("deferred", "sparse"))
    if is_open:
        adam.begin_step()
    yield adam, gs_adam.Worker(adam)


def _of_worker(name: str, args_of: Any) -> Callable[[Room], Call]:
    """A task, and the optimizer's state when it is done."""

    def make(room: Room) -> Call:
        with _at_work(room) as (adam, worker):
            pass
        method = getattr(worker, name)

        def call(**given: Any) -> Any:
            method(**given)
            worker.wait()
            return _state(adam)

        # Trusted as the documents say: any address is read, and unchecked ids fail in the task.
        fixed = ("ready", "checked", "apart")
        args = args_of(room, adam)
        writes = ("out",) if "out" in args else ()
        return Call(call, args, writes=writes, fixed=fixed, state=lambda: _state(adam))

    return make


def _submit(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {**_update(room, adam), "ready": None, "priority": room.below(3), "checked": False}


def _queued_flush(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    return {"rows": _ids(room, adam.n_rows), "ready": None, "priority": 0}


def _queued_lookahead(room: Room, adam: gs_adam.HostAdam) -> dict[str, Any]:
    more = {"ready": None, "priority": 0, "checked": False, "apart": False, "as_of": None}
    return {**_lookahead(room, adam), **more}


def _wait(room: Room) -> Call:
    with _at_work(room) as (adam, worker):
        ticket = worker.submit(**_update(room, adam))
    args = room.pick({"ticket": ticket}, {"rows": _ids(room, adam.n_rows)}, {"ticket": None})
    return Call(worker.wait, args)


def _worker(room: Room) -> Call:
    return Call(gs_adam.Worker, {"optimizer": _adam(room)}, show=lambda worker: worker.is_idle)


def _record(room: Room) -> Call:
    with _at_work(room) as (_, worker):
        return Call(worker.record, {"enabled": room.chance()})


def _spans(room: Room) -> Call:
    with _at_work(room) as (_, worker):
        return Call(worker.take_spans, {})


def _close(room: Room) -> Call:
    with _at_work(room) as (adam, worker):
        args = _update(room, adam)

    def submit_after(drain: Any) -> str:
        worker.close(drain=drain)
        worker.close(drain=drain)
        try:
            worker.submit(**args)
        except RuntimeError:
            return "closed"
        return "not refused"

    return Call(submit_after, {"drain": room.chance()})


ENTRIES = (
    Entry("gs_adam.HostAdam", _new),
    Entry("gs_adam.HostAdam.step", _of_adam("step", _step)),
    Entry("gs_adam.HostAdam.begin_step", _of_adam("begin_step", _nothing)),
    Entry("gs_adam.HostAdam.update", _of_adam("update", _update, is_open=True)),
    Entry("gs_adam.HostAdam.end_step", _of_adam("end_step", _end, is_open=True)),
    Entry("gs_adam.HostAdam.now", _of_adam("now", _nothing)),
    Entry("gs_adam.HostAdam.flush", _of_adam("flush", _rows)),
    Entry("gs_adam.HostAdam.lookahead", _of_adam("lookahead", _lookahead, is_open=True)),
    Entry("gs_adam.HostAdam.zero_rows", _of_adam("zero_rows", _rows)),
    Entry("gs_adam.HostAdam.rebind", _of_adam("rebind", _rebound)),
    Entry("gs_adam.HostAdam.state_dict", _of_adam("state_dict", _nothing)),
    Entry("gs_adam.HostAdam.load_state_dict", _of_adam("load_state_dict", _loaded)),
    Entry("gs_adam.HostAdam.append_rows", _edit("append_rows", _count)),
    Entry("gs_adam.HostAdam.keep_rows", _edit("keep_rows", _kept)),
    Entry("gs_adam.HostAdam.permute_rows", _edit("permute_rows", _order)),
    Entry("gs_adam.Worker", _worker),
    Entry("gs_adam.Worker.submit", _of_worker("submit", _submit)),
    Entry("gs_adam.Worker.flush", _of_worker("flush", _queued_flush)),
    Entry("gs_adam.Worker.lookahead", _of_worker("lookahead", _queued_lookahead)),
    Entry("gs_adam.Worker.wait", _wait),
    Entry("gs_adam.Worker.record", _record),
    Entry("gs_adam.Worker.take_spans", _spans),
    Entry("gs_adam.Worker.close", _close),
)


def _together(room: Room) -> dict[str, Any]:
    n_rows = 512
    params = [torch.zeros(n_rows, 3), torch.zeros(n_rows, 5)]
    adam = gs_adam.HostAdam(params, threads=_THREADS, semantics=room.pick("deferred", "dense"))
    adam.step(torch.arange(64), [torch.ones(64, 3), torch.ones(64, 5)])
    all_rows, some = np.arange(n_rows), torch.arange(0, n_rows, 3)
    gradients = [torch.ones(len(some), 3), torch.ones(len(some), 5)]
    return {
        "step": lambda: adam.step(some, gradients),
        "flush": adam.flush,
        "flush some": lambda: adam.flush(some),
        "lookahead": lambda: adam.lookahead(some),
        "keep_rows": lambda: adam.keep_rows(all_rows),
        "permute_rows": lambda: adam.permute_rows(all_rows[::-1].copy()),
        "append_rows": lambda: adam.append_rows(0),
        "zero_rows": lambda: adam.zero_rows(some),
        "state_dict": adam.state_dict,
        "rebind": lambda: adam.rebind([param.clone() for param in params]),
        "begin and end": lambda: adam.end_step(adam.begin_step()),
    }


SHARED = (Shared("gs_adam.HostAdam", _together),)
