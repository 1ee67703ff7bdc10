# SPDX-License-Identifier: Apache-2.0
"""Deferred Adam for callers that own all storage: slots instead of ids, numpy or torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gs_adam import _core
from gs_adam._arguments import flag, keyed, listed, of_kind, series, whole
from gs_adam._options import options_of


class Schedule:
    """The steps of deferred Adam: each one's rates, and what rows miss that sleep through them.

    One schedule may serve any number of tables, pages or slots with `update_rows`; a row's
    ``last_step`` says how far it has come.

    Args:
        n_groups: sets of options, such as one for each tensor with a rate of its own.

    Raises:
        ValueError: ``n_groups`` is below 1.

    Cost: begin() takes some ten microseconds a group; 64 bytes a group and step are kept.

    >>> import numpy as np
    >>> schedule = Schedule()
    >>> table, exp_avg, exp_avg_sq = np.zeros((3, 100, 48), np.float32)
    >>> last_step = np.zeros(100, np.int32)
    >>> rows, grads = np.array([3, 7]), np.ones((2, 48), np.float32)
    >>> schedule.begin(lr=0.1)
    1
    >>> update_rows(table, exp_avg, exp_avg_sq, last_step, rows, grads, schedule)
    >>> schedule.begin(lr=0.1)
    2
    >>> flush_rows(table, exp_avg, exp_avg_sq, last_step, None, schedule)
    >>> table[3, 0].round(4), table[0, 0], last_step[3]
    (np.float32(-0.167), np.float32(0.0), np.int32(2))
    """

    def __init__(self, n_groups: int = 1) -> None:
        self._n_groups = n_groups = whole(n_groups, "n_groups", least=1)
        self._native = _core.Schedule(n_groups, "deferred", True)

    def __repr__(self) -> str:
        return f"Schedule(n_groups={self._n_groups}, step={self.step})"

    @property
    def n_groups(self) -> int:
        """Sets of options."""
        return self._n_groups

    @property
    def step(self) -> int:
        """Steps begun so far."""
        return self._native.step

    @property
    def nonfinite_rows(self) -> int:
        """How often a row's gradient held NaN or Inf."""
        return self._native.nonfinite_rows

    def begin(
        self,
        lr: float | Sequence[float],
        *,
        betas: tuple[float, float] | Sequence[tuple[float, float]] = (0.9, 0.999),
        eps: float | Sequence[float] = 1e-15,
        weight_decay: float | Sequence[float] = 0.0,
        all_awake: bool = False,
    ) -> int:
        """Begin the next step.

        Args:
            lr, betas, eps, weight_decay: as `HostAdam`'s; a value, or a list of one a group.
            all_awake: every row's ``last_step`` is this schedule's step, so that betas may change.

        Returns:
            The step's number, from 1 on.

        Raises:
            TypeError, ValueError: an option is no number or out of range, or betas change while
                rows sleep. Nothing is changed.
        """
        are_many = _is_list(betas) and len(betas) > 0 and _is_list(betas[0])
        columns = {
            "lr": self._each("lr", lr),
            "betas": self._each("betas", betas if are_many else [betas]),
            "eps": self._each("eps", eps),
            "weight_decay": self._each("weight_decay", weight_decay),
        }
        groups = (dict(zip(columns, each)) for each in zip(*columns.values(), strict=True))
        options = [options_of(group) for group in groups]
        plan = self._native.propose(options, flag(all_awake, "all_awake"))
        self._native.accept(plan)
        return plan.step

    def _each(self, name: str, value: Any) -> list[Any]:
        values = list(value) if _is_list(value) else [value]
        if len(values) == 1:
            values *= self._n_groups
        if len(values) != self._n_groups:
            raise ValueError(
                f"{name} must be one value or one a group ({self._n_groups}), got {len(values)}"
            )
        return values

    def state_dict(self) -> dict[str, Any]:
        """The steps so far, as numpy arrays; loading it continues bit for bit."""
        states = [self._native.state(group) for group in range(self._n_groups)]
        return {"step": self.step, "groups": [] if states[0] is None else states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`.

        Raises:
            TypeError, ValueError: not what `state_dict` returns, a step below 0, another number of
                groups, arrays of another shape. Nothing is changed.
        """
        keyed(state_dict, "state_dict", "step", "groups")
        step = whole(state_dict["step"], "state_dict's step")
        if step < 0:
            raise ValueError(f"state_dict must hold a step of at least 0, got {step}")
        if groups := listed(state_dict["groups"], "state_dict's groups"):
            self._native.restore(step, series(groups, "state_dict's groups"))
        else:
            self._native.restart(step)


def update_rows(
    params: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    last_step: Any,
    rows: Any,
    grads: Any,
    schedule: Schedule,
    *,
    threads: int | None = None,
    skip_nonfinite: bool = False,
) -> None:
    """The last step begun by ``schedule``, on some rows of the caller's storage.

    Args:
        params, exp_avg, exp_avg_sq: (N, ...) float32 on the CPU, rows contiguous, or lists of
            such: one for each group, or any number when there is one group.
        last_step: (N,) int32: the step each row was last updated in. A row that is new has zero
            moments and the present step; or 0 when it has never moved, unless the schedule goes on
            from a step up to which it knows no rates.
        rows: (R,) int32 or int64 positions (slots), sorted and unique; None means all.
        grads: as ``params``, (R, ...) or (N, ...); None means zero gradients.
        schedule: its step is applied.
        threads: of the shared pool; one per processor when None.
        skip_nonfinite: treat a row whose gradient holds NaN or Inf as if it had zeros.

    Raises:
        TypeError, ValueError, IndexError: arrays of other dtypes or shapes; rows unsorted,
            repeated, out of range or updated in this step before. Nothing is changed.

    Cost: 28 bytes of memory traffic a value. GIL released; thread-safe for disjoint rows.
    """
    native = _bind(
        params, exp_avg, exp_avg_sq, last_step, schedule, threads=threads, skip=skip_nonfinite
    )
    grads = None if grads is None else _listed(grads)
    native.update(schedule._native.now(), rows, grads, 0)


def flush_rows(
    params: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    last_step: Any,
    rows: Any,
    schedule: Schedule,
    *,
    threads: int | None = None,
) -> None:
    """Bring some rows of the caller's storage up to date with the last step begun.

    Args:
        params, exp_avg, exp_avg_sq, last_step, rows, schedule, threads: as `update_rows`.

    Raises:
        TypeError, ValueError, IndexError: as `update_rows`; up-to-date rows are left alone.
    """
    native = _bind(params, exp_avg, exp_avg_sq, last_step, schedule, threads=threads, skip=False)
    native.flush(schedule._native.now(), rows)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _listed(arrays: Any) -> list[Any]:
    return list(arrays) if isinstance(arrays, list | tuple) else [arrays]


def _bind(
    params: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    last_step: Any,
    schedule: Schedule,
    *,
    threads: int | None,
    skip: bool,
) -> _core.Rows:
    of_kind(schedule, "schedule", Schedule)
    tensors = _listed(params)
    if schedule.n_groups not in (1, len(tensors)):
        raise ValueError(
            f"params must be {schedule.n_groups} tensors as the schedule's groups, "
            f"got {len(tensors)}"
        )
    groups = [0 if schedule.n_groups == 1 else k for k in range(len(tensors))]
    return _core.Rows(
        tensors,
        _listed(exp_avg),
        _listed(exp_avg_sq),
        groups,
        last_step,
        schedule._native,
        flag(skip, "skip_nonfinite"),
        0 if threads is None else whole(threads, "threads", least=1),
    )
