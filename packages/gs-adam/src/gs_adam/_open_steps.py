# SPDX-License-Identifier: Apache-2.0
"""Steps that have begun and not ended, and the calls on rows that they wait for."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from typing import Any

from gs_adam import _core
from gs_adam._arguments import shown
from gs_adam._checkpoint import unpack_schedule
from gs_adam._options import GroupOptions

_in_use: weakref.WeakSet[OpenSteps] = weakref.WeakSet()


def _after_fork() -> None:
    # The threads that held a lock, or were inside a call, do not exist in the child.
    for steps in _in_use:
        steps._lock = threading.RLock()
        steps._calls, steps._endings = _core.Calls(), _core.Calls()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class OpenSteps:
    """What an optimizer of host rows and a schedule without rows have in common.

    Args:
        n_groups: sets of options.
        semantics, bias_correction: as `HostAdam`'s.
        threads: of the pool that updates rows; 0 means one per processor.
    """

    def __init__(self, n_groups: int, semantics: str, bias_correction: str, threads: int) -> None:
        self._semantics = semantics
        self._threads = threads
        # Held to look at or change anything but rows; by a call that needs all rows, to its end.
        self._lock = threading.RLock()
        self._calls = _core.Calls()  # on some rows; each begins under the lock and goes on without
        self._endings = _core.Calls()  # of `end_step`, whose step this is
        self._ending = 0
        # Of steps that are open, and of the next one before the schedule counts it.
        self._plans: dict[int, _core.StepPlan] = {}
        self._following: _core.StepPlan | None = None  # what rows miss up to the last step
        self._all_awake = True  # deferred: no row sleeps
        self._schedule = _core.Schedule(n_groups, semantics, bias_correction == "global")
        _in_use.add(self)

    @property
    def semantics(self) -> str:
        """What happens to rows that a step is not given."""
        return self._semantics

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

    @property
    def _open(self) -> dict[int, _core.StepPlan]:
        """Steps that have begun and not ended; counting a step is what begins it."""
        plans = self._plans.copy().items()  # other threads begin and end steps
        return {step: plan for step, plan in plans if step <= self._schedule.step}

    @property
    def _done(self) -> int:
        """Every row has had all steps up to this one, or sleeps since."""
        return min(self._plans.copy(), default=self._schedule.step + 1) - 1

    def _opened(self, step: int) -> _core.StepPlan:
        if type(step) is int and not self._endings.count:
            plan = self._plans.get(step)
            if plan is not None and step <= self._schedule.step:
                return plan
        plans = self._open
        if self._endings.count:
            plans.pop(self._ending, None)
        try:
            return plans[operator.index(step)]
        except (KeyError, TypeError):
            text = f"step must be an open step (open: {list(plans)}), got {shown(step)}"
            raise ValueError(text) from None

    # ------------------------------------------------------------------ steps

    def _begin_plan(self, options: list[GroupOptions]) -> _core.StepPlan:
        plan = self._schedule.propose(options, self._all_awake)
        self._plans[plan.step] = plan
        self._all_awake = False
        self._schedule.accept(plan)
        return plan

    def _begin_end(self, step: int) -> _core.Call[_core.StepPlan]:
        """The end of a step, to be entered: calls on its rows are refused until it is left."""
        with self._lock:
            plan = self._opened(step)
            first = min(self._plans.copy())  # other threads may begin a step
            if plan.step != first:
                raise ValueError(f"step must end after step {first}, got {step}")
            self._wait_for_calls("end_step()")
            self._ending = step
            return self._endings.call(plan)

    def _close_step(self, step: int) -> None:
        del self._plans[step]

    def _need_ended(self, what: str) -> None:
        """Raise where a step is open, and forget one that Ctrl-C kept from beginning."""
        if not self._plans:  # as between most calls; others begin under the lock
            return
        if self._open:
            raise RuntimeError(f"{what} needs steps {list(self._open)} to end first")
        self._plans.clear()

    def _restore_steps(self, step: int, packed: list[dict[str, Any]]) -> None:
        """Count from a step whose schedule was packed, or from one up to which no row sleeps."""
        self._following = None
        if packed:
            self._schedule.restore(step, unpack_schedule(packed))
        else:
            self._schedule.restart(step)

    # ------------------------------------------------------------------ calls on rows

    def _call_in(self, step: int) -> _core.Call[_core.StepPlan]:
        """A call on rows in an open step, to be entered: the end of the step waits for it."""
        with self._lock:
            return self._calls.call(self._opened(step))

    def _call_between(self, what: str) -> _core.Call[_core.StepPlan]:
        """A call on rows between two steps, to be entered; its rows wake after the last one."""
        with self._lock:
            self._need_ended(what)
            if self._following is None or self._following.step != self._schedule.step + 1:
                self._following = self._schedule.following()
            return self._calls.call(self._following)

    def _wait_for_calls(self, what: str) -> None:
        """Return when no thread is inside a call on rows; the lock keeps others from beginning."""
        if not self._calls.wait():
            raise RuntimeError(f"{what} needs the call to end that this thread is inside of")
