# SPDX-License-Identifier: Apache-2.0
"""What every part of a host optimizer rests on: its groups, storage, open steps and workers."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from typing import Any

import torch

from gs_adam import _core
from gs_adam._arguments import flag, keyed, shown, whole
from gs_adam._options import check_torchs, options_of
from gs_adam._storage import Storage, check_params
from gs_adam._tensors import groups_of

_MOST_PARAMS = 32
"""One pass over a row updates all its tensors."""

SEMANTICS = ("dense", "deferred", "sparse")

made: weakref.WeakSet[HostBase] = weakref.WeakSet()
"""Optimizers that are in use."""


def _after_fork() -> None:
    # The threads that held a lock, or were inside a call, do not exist in the child.
    for optimizer in made:
        optimizer._lock = threading.RLock()
        optimizer._calls, optimizer._endings = _core.Calls(), _core.Calls()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class HostBase(torch.optim.Optimizer):
    """Options, facts and workers; see `HostAdam`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-15,
        weight_decay: float = 0.0,
        *,
        semantics: str = "deferred",
        bias_correction: str = "global",
        threads: int | None = None,
        state: dict[str, Any] | None = None,
        skip_nonfinite: bool = False,
        **torch_options: Any,
    ) -> None:
        check_torchs(torch_options, type(self).__name__)
        skip_nonfinite = flag(skip_nonfinite, "skip_nonfinite")
        for name, value in (("semantics", semantics), ("bias_correction", bias_correction)):
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a string, got {shown(value)}")
        if semantics not in SEMANTICS:
            raise ValueError(f"semantics must be one of {', '.join(SEMANTICS)}, got {semantics!r}")
        if bias_correction not in ("global", "off"):
            raise ValueError(f"bias_correction must be global or off, got {bias_correction!r}")
        if bias_correction == "off" and semantics != "sparse":
            raise ValueError(f"bias_correction must be global with {semantics}, got 'off'")
        if threads is not None:
            threads = whole(threads, "threads", least=1)
        self._semantics = semantics
        # Held to look at or change anything but rows; by a call that needs all rows, to its end.
        self._lock = threading.RLock()
        self._calls = _core.Calls()  # on some rows; each begins under the lock and goes on without
        self._endings = _core.Calls()  # of `end_step`, whose step this is
        self._ending = 0
        # Of steps that are open, and of the next one before the schedule counts it.
        self._plans: dict[int, _core.StepPlan] = {}
        self._all_awake = True  # deferred: no row sleeps
        self._workers: list[_core.Worker] = []
        self._is_made = False
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            # Read by torch.optim.Adam when it loads a state dict of this optimizer.
            "decoupled_weight_decay": True,
        }
        super().__init__(groups_of(params), defaults)
        self._is_made = True
        if not self._params():
            raise ValueError("params must hold at least one tensor, got none")
        if len(self._params()) > _MOST_PARAMS:
            raise ValueError(f"params must be at most {_MOST_PARAMS}, got {len(self._params())}")
        self._schedule = _core.Schedule(
            len(self.param_groups), semantics, bias_correction == "global"
        )
        self._storage = Storage(
            self._params_and_groups,
            lambda: self.state,
            self._schedule,
            sleeps=semantics == "deferred",
            skip_nonfinite=skip_nonfinite,
            threads=threads or 0,
        )
        if state is not None:
            self._storage.adopt(state)
        made.add(self)

    @property
    def semantics(self) -> str:
        """``"dense"``, ``"deferred"`` or ``"sparse"``."""
        return self._semantics

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self._params()[0])

    @property
    def step_count(self) -> int:
        """Steps begun so far."""
        return self._schedule.step

    @property
    def open_steps(self) -> tuple[int, ...]:
        """Steps begun and not ended, in the order in which they are to end."""
        return tuple(self._open)

    @property
    def nonfinite_rows(self) -> int:
        """How often a row's gradient held NaN or Inf."""
        return self._schedule.nonfinite_rows

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    def _params_and_groups(self) -> tuple[list[torch.Tensor], list[int]]:
        groups = [g for g, group in enumerate(self.param_groups) for _ in group["params"]]
        return self._params(), groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; only the constructor may.

        Raises:
            RuntimeError: called later.
            TypeError, ValueError: its tensors or options are not as the class asks.
        """
        if self._is_made:
            raise RuntimeError("groups must be given at construction, got another one afterwards")
        keyed(param_group, "param_group", "params")
        super().add_param_group(param_group)
        options_of(self.param_groups[-1])
        params = self._params()
        check_params(params, len(params) - len(self.param_groups[-1]["params"]))

    @property
    def _open(self) -> dict[int, _core.StepPlan]:
        """Steps that have begun and not ended; counting a step is what begins it."""
        plans = self._plans.copy().items()  # other threads begin and end steps
        return {step: plan for step, plan in plans if step <= self._schedule.step}

    @property
    def _done(self) -> int:
        """Every row has had all steps up to this one, or sleeps since."""
        return min(self._plans.copy(), default=self._schedule.step + 1) - 1

    def _attach(self, worker: _core.Worker) -> None:
        with self._lock:
            self._workers.append(worker)

    def _detach(self, worker: _core.Worker) -> None:
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)

    def _work(self, step: int | None) -> _core.Call[tuple[_core.StepPlan, _core.Rows, int]]:
        """A call on some rows, to be entered: calls that need all rows wait for it.

        Returns:
            What it needs: a step's plan (the last one for None), the rows, and `_done`.
        """
        with self._lock:
            if not self._open:
                self._follow()
            plan = self._schedule.now() if step is None else self._opened(step)
            marks = step is not None or self._semantics == "deferred"
            native = self._storage.marked() if marks else self._storage.plain
            return self._calls.call((plan, native, self._done))

    def _work_in(self, step: int) -> _core.Call[tuple[_core.StepPlan, _core.Rows, int]]:
        """The same for a step that must be open."""
        with self._lock:
            self._opened(step)
            return self._work(step)

    def _follow(self) -> None:
        self._storage.follow(self._is_busy)

    def _is_busy(self) -> bool:
        """Whether workers' tasks are left, once no call on rows is."""
        self._wait_for_calls("rebinding of params")
        return not all(worker.is_idle for worker in self._workers)

    def _wait_for_calls(self, what: str) -> None:
        """Return when no thread is inside a call on rows; the lock keeps others from beginning."""
        if not self._calls.wait():
            raise RuntimeError(f"{what} needs the call to end that this thread is inside of")

    def _opened(self, step: int) -> _core.StepPlan:
        plans = self._open
        if self._endings.count:
            plans.pop(self._ending, None)
        try:
            return plans[operator.index(step)]
        except (KeyError, TypeError):
            text = f"step must be an open step (open: {list(plans)}), got {shown(step)}"
            raise ValueError(text) from None

    def _need_rest(self, what: str) -> None:
        """Return when nobody else is at work on rows, nor will be while the lock is held."""
        if self._open:
            raise RuntimeError(f"{what} needs steps {list(self._open)} to end first")
        self._plans.clear()
        self._wait_for_calls(what)
        if not all(worker.is_idle for worker in self._workers):
            raise RuntimeError(f"{what} needs the worker to be idle; call its wait() first")
        self._raise_failures()

    def _raise_failures(self) -> None:
        """What a task raised: rows are not what the steps so far would have made them."""
        for worker in self._workers:
            worker.check()
