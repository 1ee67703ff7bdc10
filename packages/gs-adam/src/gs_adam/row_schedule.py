# SPDX-License-Identifier: Apache-2.0
"""The steps of an optimizer whose rows are elsewhere."""

from __future__ import annotations

from typing import Any

from gs_adam import _checkpoint
from gs_adam._arguments import flag, keyed, listed, shown, whole
from gs_adam._open_steps import OpenSteps
from gs_adam._options import DEFAULTS, MOST_TENSORS, check_rule, options_of

_SEMANTICS = ("deferred", "sparse")


class RowSchedule(OpenSteps):
    """Steps, rates and sleeps as a `HostAdam` has them, without rows of its own.

    For models whose rows all lie in tables of a device: `DeviceRows` updates rows there by this
    schedule. Whoever owns the tables also owns ``last_step`` of the rows.

    Args:
        groups: dicts of options, one for each tensor of a row: ``lr`` (default 1e-3), ``betas``
            (0.9, 0.999), ``eps`` (1e-15; deferred needs at least 1e-20), ``weight_decay`` (0.0,
            AdamW's), ``name``. Other keys are kept and not read. At most 32 groups.
        semantics: ``"deferred"`` or ``"sparse"``, as `HostAdam`'s.
        bias_correction: ``"global"`` counts the steps; ``"off"`` (sparse only) corrects nothing.
        threads: of the pool that updates rows on the CPU, shared by all of that size; one per
            usable processor when None.

    Attributes:
        param_groups: the groups, as dicts of this object: a step takes the options that they hold
            when it begins.

    Raises:
        TypeError, ValueError: options out of range, a group with tensors, or no group.

    Threads: all methods may be called from any thread. `end_step` waits for calls of `DeviceRows`
        on other threads; from its beginning on the step takes no further rows.
    Cost: `begin_step` takes some ten microseconds a group; deferred keeps 64 bytes a group and
        step.
    """

    def __init__(
        self,
        groups: Any,
        *,
        semantics: str = "deferred",
        bias_correction: str = "global",
        threads: int | None = None,
    ) -> None:
        check_rule(semantics, bias_correction, _SEMANTICS)
        self.param_groups = [_group(own, k) for k, own in enumerate(listed(groups, "groups"))]
        n_groups = len(self.param_groups)
        if not 0 < n_groups <= MOST_TENSORS:
            raise ValueError(f"groups must be 1 to {MOST_TENSORS}, got {n_groups}")
        pool = 0 if threads is None else whole(threads, "threads", least=1)
        super().__init__(n_groups, semantics, bias_correction, pool)
        self._n_groups = n_groups

    def __repr__(self) -> str:
        return f"RowSchedule({self._n_groups} groups, step {self.step_count}, {self.semantics})"

    def begin_step(self, *, all_awake: bool = False) -> int:
        """Begin the next step with the options that the groups hold now.

        Several steps may be open: rows of one can be updated while the next has begun.

        Args:
            all_awake: the owner's word that ``last_step`` of every row is `step_count`, as after
                `DeviceRows.flush` of all rows. Only then may betas of deferred rows change: a row
                that slept nevertheless would be caught up by other betas than it slept through.

        Returns:
            The step's number, from 1 on.

        Raises:
            TypeError, ValueError: an option is no number or out of range, or betas change while
                rows may sleep. Nothing is changed.
        """
        with self._lock:
            groups = listed(self.param_groups, "param_groups")
            options = [options_of(keyed(own, f"param_groups[{k}]")) for k, own in enumerate(groups)]
            self._all_awake = flag(all_awake, "all_awake")
            return self._begin_plan(options).step

    def end_step(self, step: int) -> None:
        """End a step; steps end in the order in which they began.

        Raises:
            ValueError: the step is not open, or an earlier one is.
            RuntimeError: this thread is inside a call on rows.
        """
        with self._begin_end(step) as plan, self._lock:
            self._close_step(plan.step)

    def state_dict(self) -> dict[str, Any]:
        """The steps so far: a schedule that loads it catches rows up bit for bit.

        Returns:
            ``step``, the number of steps, and ``schedule``, one dict of betas and tensors a group
            as in `HostAdam.state_dict` (empty where no row can sleep), all of it copied. Options
            of the groups and ``last_step`` are the owner's to keep.

        Raises:
            RuntimeError: a step is open.
        """
        with self._lock:
            self._need_ended("state_dict()")
            packed = _checkpoint.pack_schedule(self._schedule, self._n_groups)
            return {"step": self.step_count, "schedule": packed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        With an empty ``schedule`` the rates of the steps so far are not known: ``last_step`` of
        every row must be ``step``.

        Raises:
            RuntimeError: a step is open.
            TypeError, ValueError: not what `state_dict` returns, another number of groups, tables
                of another shape, or the schedule of rows that sleep where semantics is sparse.
                Nothing is changed.
        """
        keyed(state_dict, "state_dict", "step", "schedule")
        step = whole(state_dict["step"], "state_dict's step", least=0, most=2**31 - 2)
        packed = _checkpoint.check_schedule(state_dict["schedule"])
        if packed and self.semantics == "sparse":
            raise ValueError(
                f"state_dict must hold an empty schedule where semantics is sparse, got the steps "
                f"of {len(packed)} groups; flush all rows and load their step with schedule=[]"
            )
        with self._lock:
            self._need_ended("load_state_dict()")
            self._wait_for_calls("load_state_dict()")
            self._restore_steps(step, packed)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("RowSchedule must be saved with state_dict(), got a request to pickle it")


def _group(own: Any, k: int) -> dict[str, Any]:
    own = {**DEFAULTS, **keyed(own, f"groups[{k}]")}
    if "params" in own:
        raise ValueError(
            f"groups[{k}] must have no params, whose rows are elsewhere; got {shown(own['params'])}"
        )
    if not isinstance(own.get("name", ""), str):
        raise TypeError(f"name of groups[{k}] must be a string, got {shown(own['name'])}")
    options_of(own)
    return own
