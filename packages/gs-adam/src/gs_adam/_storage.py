# SPDX-License-Identifier: Apache-2.0
"""The tensors that a host optimizer updates: following them, adopting them, editing their rows."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gs_adam import _core, _memory
from gs_adam._arguments import keyed, listed
from gs_adam._tensors import (
    MOMENTS,
    as_step,
    check_apart,
    check_keys,
    check_param,
    check_same_rows,
    check_state,
    note_written,
    on_cpu,
    place,
    write_step,
)

_NO_STATE: dict[str, Any] = {}


class Storage:
    """An optimizer's parameters, moments and ``last_step``, and the native views of them.

    ``state`` stays the optimizer's own mapping from parameter to state, so that others' code finds
    there what torch.optim.Adam would have.

    Args:
        params: returns the parameters as the groups hold them now, and each one's group.
        state: returns the optimizer's ``state``.
        schedule: counts its steps.
        skip_nonfinite: as `HostAdam`'s.
        threads: 0 means one per processor.
    """

    def __init__(
        self,
        params: Callable[[], tuple[list[torch.Tensor], list[int]]],
        state: Callable[[], dict[torch.Tensor, dict[str, Any]]],
        schedule: _core.Schedule,
        *,
        sleeps: bool,
        skip_nonfinite: bool,
        threads: int,
    ) -> None:
        self._params = params
        self._state = state
        self._schedule = schedule
        self._sleeps = sleeps
        self.skips_nonfinite = skip_nonfinite
        self._threads = threads
        self._known: list[torch.Tensor] = []
        self._groups: list[int] = []
        self._held: list[torch.Tensor] = []  # the memory that native views point to
        self._places: list[Any] = []
        self._plain: _core.Rows | None = None
        self._marked: _core.Rows | None = None
        self._marks: torch.Tensor | None = None
        self.is_adopted = False
        # (N,) int32: the step in which each row was last updated; only where rows sleep.
        self.last_step: torch.Tensor | None = None
        if sleeps:
            self.last_step = _memory.zeros((len(params()[0][0]),), torch.int32)

    # ------------------------------------------------------------------ binding

    @property
    def held(self) -> tuple[Any, ...]:
        """The memory that the native views point to, for tasks that may outlive all else."""
        return (self._held, self.last_step, self._marks)

    @property
    def plain(self) -> _core.Rows:
        """The rows where `follow` found them."""
        assert self._plain is not None
        return self._plain

    def marked(self) -> _core.Rows:
        """The same rows, remembering those that a dense step has updated."""
        if self._sleeps:
            return self.plain
        if self._marked is None:
            if self._marks is None or len(self._marks) != self.plain.n_rows:
                self._marks = _memory.zeros((self.plain.n_rows,), torch.int32)
            self._marked = self._native(self._marks)
        return self._marked

    def make_marks(self) -> None:
        """``last_step`` of as many rows as there are parameters': what it held is replaced next."""
        n_rows = len(self._params()[0][0])
        if self.last_step is not None and len(self.last_step) != n_rows:
            self.last_step = _memory.zeros((n_rows,), torch.int32)

    def forget_marks(self) -> None:
        """Steps are about to be counted from another number."""
        self._marks = None
        self._marked = None
        self._places = []

    def follow(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        """Find the tensors where they are now and allocate moments that do not exist yet.

        Args:
            is_busy: whether tasks are left that update them where they were.

        Raises:
            RuntimeError: they have moved while there are such tasks.
            TypeError, ValueError: a tensor changed its dtype, device, stride or number of rows, and
                its state did not follow; or two of them share memory.
        """
        params, groups = self._params()
        state = self._state()
        self._move_state(params, state)
        places = self._where(params, state)
        if places == self._places and groups == self._groups:
            self._known = params
            return
        self._check_groups(params, groups)
        if self._plain is not None and is_busy():
            raise RuntimeError(
                "params must stay where they are until the worker's tasks are done, got others; "
                "call its wait() first"
            )
        for k, param in enumerate(params):
            check_param(param, f"params[{k}]")
            if state.get(param):
                check_keys(state[param], f"params[{k}]")
                check_state(param, state[param], f"params[{k}]")
        check_same_rows(params, "params")
        check_apart(params, [state.get(param) or {} for param in params])
        if self.last_step is not None and len(self.last_step) != len(params[0]):
            raise ValueError(
                f"params must have {len(self.last_step)} rows as the optimizer's state, got "
                f"{len(params[0])}; call append_rows, keep_rows or rebind when rows change"
            )
        missing = [param for param in params if not state.get(param)]
        # Gigabytes perhaps: nothing is kept before there is memory for all of them.
        made = [_memory.zeros_like_rows(missing) for _ in MOMENTS]
        for param, *moments in zip(missing, *made, strict=True):
            step = as_step(self._schedule.step)
            state[param] = {"step": step, **dict(zip(MOMENTS, moments, strict=True))}
        self._known, self._groups = params, groups
        self._marked = None
        self._plain = self._native(self.last_step)
        self._places = self._where(params, state)
        # Whoever gives a tensor other memory while a step is open is told so by the step, which
        # writes nobody else's.
        self._held = [
            tensor.detach() for p in params for tensor in (p, *(state[p][key] for key in MOMENTS))
        ]

    def settle(self) -> None:
        """Let the state follow Parameter objects that others have replaced."""
        params, _ = self._params()
        self._move_state(params, self._state())
        if len(params) == len(self._known):
            self._known = params

    def note_written(self) -> None:
        """Tell autograd that the parameters have changed."""
        note_written(self._params()[0])

    def _check_groups(self, params: list[torch.Tensor], groups: list[int]) -> None:
        """Raise where a tensor whose rows may sleep has come to another group, whose rates it did
        not have so far."""
        if not self._sleeps or not self._schedule.step:
            return
        before = {place(param): g for param, g in zip(self._known, self._groups)}
        for k, (param, group) in enumerate(zip(params, groups, strict=True)):
            if before.get(place(param), group) != group:
                raise ValueError(
                    f"params[{k}] must stay in group {before[place(param)]} while rows may sleep, "
                    f"got group {group}"
                )

    def need_in_place(self) -> None:
        """Check that the tensors are where `follow` has found them; Parameter objects may be
        others.

        Raises:
            RuntimeError: one is elsewhere, where nobody would see what a step writes.
        """
        params, _ = self._params()
        state = self._state()
        # Keyed by the object that it was found with, until they are followed again.
        state = {p: state.get(p) or state.get(k) or {} for p, k in zip(params, self._known)}
        if self._where(params, state) != self._places:
            raise RuntimeError(
                "params and their state must stay where they are while a step is open, got others"
            )

    def _move_state(
        self, params: list[torch.Tensor], state: dict[torch.Tensor, dict[str, Any]]
    ) -> None:
        # Others' code replaces Parameter objects; their state moves along unless it has already.
        known = self._known
        if len(params) != len(known) or all(map(operator.is_, known, params)):
            return
        kept = set(map(id, params))
        for old, new in zip(known, params, strict=True):
            if id(old) not in kept and not state.get(new) and old in state:
                state[new] = state.pop(old)

    @staticmethod
    def _where(params: list[torch.Tensor], state: dict[torch.Tensor, dict[str, Any]]) -> list[Any]:
        tensors: list[torch.Tensor | None] = []
        for param in params:
            tensors += (param, *map(state.get(param, _NO_STATE).get, MOMENTS))
        return [None if tensor is None else place(tensor) for tensor in tensors]

    def _native(self, last_step: torch.Tensor | None) -> _core.Rows:
        states = self._known_states()
        exp_avg, exp_avg_sq = ([state[key] for state in states] for key in MOMENTS)
        return _core.Rows(
            self._known,
            exp_avg,
            exp_avg_sq,
            self._groups,
            last_step,
            self._schedule,
            self.skips_nonfinite,
            self._threads,
        )

    def count(self, step: int) -> None:
        """Write the step number where torch.optim.Adam keeps it, if there is state."""
        state, params = self._state(), self._params()[0]
        if len(params) != len(self._known) or not all(map(operator.is_, params, self._known)):
            params = list(dict.fromkeys([*params, *self._known]))
        for param in params:
            if own := state.get(param):
                write_step(own, step)

    def _known_states(self) -> list[dict[str, Any]]:
        """Of the parameters that `follow` has found, wherever others have moved it since."""
        params, state = self._params()[0], self._state()
        if len(params) != len(self._known):
            params = self._known
        pairs = zip(params, self._known, strict=True)
        return [state.get(param) or state[known] for param, known in pairs]

    @property
    def known(self) -> list[torch.Tensor]:
        """The parameters whose state there is, as `follow` found them."""
        return list(self._known)

    # ------------------------------------------------------------------ others' storage

    def adopt(self, tensors: dict[str, Any]) -> None:
        """Keep the moments, and where rows sleep ``last_step``, in the caller's tensors.

        Raises:
            TypeError, ValueError: a tensor is missing or of another shape or dtype.
        """
        params, _ = self._params()
        expected = {*MOMENTS, "last_step"} if self._sleeps else {*MOMENTS}
        if set(keyed(tensors, "state")) != expected:
            raise ValueError(f"state must hold {sorted(expected)}, got {sorted(map(str, tensors))}")
        for key in MOMENTS:
            if len(listed(tensors[key], f"{key} of state")) != len(params):
                raise ValueError(
                    f"state must hold {len(params)} tensors of {key}, got {len(tensors[key])}"
                )
        moments = [
            dict(zip(MOMENTS, pair, strict=True))
            for pair in zip(*(tensors[key] for key in MOMENTS), strict=True)
        ]
        for k, param in enumerate(params):
            check_state(param, moments[k], f"params[{k}]")
        check_apart(params, moments)
        if self._sleeps:
            # Before the first step a checkpoint may be what comes next.
            _check_last_step(tensors["last_step"], len(params[0]), self._schedule)
            self.last_step = tensors["last_step"]
        state = self._state()
        for param, own in zip(params, moments, strict=True):
            state[param] = {"step": as_step(self._schedule.step), **own}
        self.is_adopted = True
        self._known = params
        self._places, self._held = [], []

    def write_back(self, storage: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Copy loaded moments into adopted tensors, which ``storage`` remembers."""
        state = self._state()
        for param, own in storage.items():
            loaded = state.get(param, {})
            for key in MOMENTS:
                if key in loaded:
                    own[key].copy_(loaded[key])
                else:
                    own[key].zero_()
            own["step"] = as_step(float(loaded.get("step", 0.0)))
            state[param] = own

    # ------------------------------------------------------------------ rows

    def edit_rows(self, edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace every tensor of state by what ``edit`` makes of it."""
        self.check_own()
        # Nobody has tasks now, and rows come and go in the memory that there is. Should that fail,
        # the next call looks anew where everything is.
        self._places, self._held = [], []
        params, _ = self._params()
        state = self._state()
        self._move_state(params, state)
        known = [param for param in params if state.get(param)]
        edited = [
            _memory.edit_tables([state[param][key] for param in known], edit) for key in MOMENTS
        ]
        last_step = None if self.last_step is None else edit(self.last_step)
        edits = [dict(zip(MOMENTS, moments, strict=True)) for moments in zip(*edited, strict=True)]
        edits.append({"last_step": last_step, "_known": params, "_places": []})
        targets = [*(state[param] for param in known), vars(self)]
        # All in one call of C, in whose middle no Ctrl-C is raised.
        deque(map(dict.update, targets, edits), maxlen=0)

    def check_own(self) -> None:
        """Raise where the state is somebody else's."""
        text = "state must be edited by its owner, got a row operation on adopted storage; edit it"
        if self.is_adopted:
            raise RuntimeError(f"{text} and call rebind")

    def n_state_rows(self) -> int:
        """Rows of the state, which may differ from the parameters' between two edits."""
        if self.last_step is not None:
            return len(self.last_step)
        params, _ = self._params()
        self._move_state(params, self._state())
        state = self._state().get(params[0])
        return len(state["exp_avg"]) if state else len(params[0])


def _check_last_step(last_step: Any, n_rows: int, schedule: _core.Schedule) -> None:
    kind = type(last_step).__name__
    if isinstance(last_step, torch.Tensor):
        if last_step.dtype == torch.int32 and tuple(last_step.shape) == (n_rows,):
            least, most = schedule.known_since, schedule.step or None
            check_steps(last_step, "last_step", step=most, least=least)
            return
        kind = f"{tuple(last_step.shape)} {last_step.dtype}"
    raise ValueError(f"last_step must be ({n_rows},) int32, got {kind}")


def check_steps(
    last_step: torch.Tensor, name: str, *, step: int | None = None, least: int = 0
) -> None:
    """Raise unless these are steps from ``least`` on, none after ``step`` where that is known."""
    if not len(last_step):
        return
    first, last = int(last_step.min()), int(last_step.max())
    if first < least or (step is not None and last > step):
        most = "" if step is None else f" and at most {step}"
        raise ValueError(f"{name} must be at least {least}{most}, got {first} to {last}")


def row_ids(rows: Any, n_rows: int, name: str) -> torch.Tensor:
    """Ids in any order as int64.

    Raises:
        TypeError, ValueError, IndexError: a mask of another length, ids out of range or not ids.
    """
    ids = on_cpu(rows, name)
    if ids.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {ids.layout}")
    if ids.shape == (0,) and not isinstance(rows, torch.Tensor):
        ids = ids.long()  # an empty list has no type of its own
    if ids.dtype == torch.bool:
        if tuple(ids.shape) != (n_rows,):
            raise ValueError(f"{name} must be a mask of ({n_rows},), got {tuple(ids.shape)}")
        return ids.nonzero().flatten()
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32, int64 or bool, got {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(ids.shape)}")
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < n_rows):
        raise IndexError(
            f"{name} must be in [0, {n_rows}), got {int(ids.min())} to {int(ids.max())}"
        )
    return ids.long()


def check_params(params: Sequence[torch.Tensor], start: int) -> None:
    """Raise unless the tensors from ``start`` on are fit to be optimized with those before."""
    for k, param in enumerate(params[start:], start=start):
        check_param(param, f"params[{k}]")
    check_same_rows(params, "params")
