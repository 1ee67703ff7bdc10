# SPDX-License-Identifier: Apache-2.0
"""Steps of a host optimizer, whole and in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gs_adam import _core
from gs_adam._host_base import HostBase
from gs_adam._options import options_of
from gs_adam._storage import Storage
from gs_adam._tensors import Closure, all_native, as_ids, as_native, evaluated, pending_parts


class Steps(HostBase):
    """`begin_step`, `update`, `end_step`, `step`, and for rows that sleep `flush`, `lookahead`."""

    def begin_step(self) -> int:
        """Begin the next step with the rates that the groups hold now.

        Several steps may be open: rows of one can be updated while the next has begun.

        Returns:
            The step's number, from 1 on.

        Raises:
            ValueError: a rate or beta is out of range or may not change while rows sleep; tensors
                or state changed shape without a row operation. Nothing is changed.
        """
        with self._lock:
            return self._begin()

    def now(self) -> _core.StepPlan:
        """The last step begun, for `Worker.lookahead` after later ones have begun."""
        with self._lock:
            return self._schedule.now()

    def _begin(self) -> int:
        options = [options_of(group) for group in self.param_groups]
        if not self._open:
            self._follow()
        if self._semantics == "dense":
            self._storage.marked()  # the end of the step writes where tensors are now
        plan = self._begin_plan(options)
        self._note_step(plan.step)
        return plan.step

    def _note_step(self, step: int) -> None:
        """Tell others' code that a step has been taken."""
        self._storage.count(step)
        # What torch's learning-rate schedulers ask before they warn.
        self._opt_called = True

    def update(self, rows: Any, grads: Sequence[Any] | None, *, step: int) -> None:
        """Update some rows in an open step.

        Args:
            rows: (R,) int32 or int64 on the CPU, sorted and unique, or an (N,) bool mask; None
                means all.
            grads: one float32 CPU tensor a parameter, (R, ...) in the order of ``rows`` or
                (N, ...); None means zero gradients (deferred: brought up to date).
            step: what `begin_step` returned.

        Raises:
            TypeError, ValueError, IndexError: ids not sorted, repeated or out of range; gradients
                of another shape; a row updated twice in the step or before its turn; a step not
                open. Nothing is changed.
            RuntimeError: a parameter has been given other memory since the step began.

        Cost: thread-safe for disjoint rows; the GIL is released.
        """
        with self._work_in(step) as (plan, native, done):
            self._storage.need_in_place()
            ids = as_ids(rows, native.n_rows)
            native.update(plan, ids, all_native(grads), done)

    def end_step(self, step: int) -> None:
        """End a step. Dense: rows that it was not given get the update of a zero gradient.

        Steps end in the order in which they began. Dense waits for the workers' tasks of the step;
        with the other semantics they may run later.

        Raises:
            ValueError: the step is not open, or an earlier one is.
            RuntimeError: a parameter has been given other memory since the step began, which has
                none of what the step wrote. The step has ended.
            Exception: what a worker's task raised; the step has ended, without what it left out.
        """
        with self._begin_end(step) as plan:
            step = plan.step  # a number, whatever stood for it
            try:
                if self._semantics == "dense":
                    for worker in list(self._workers):
                        worker.wait_step(step)
                    self._storage.marked().update_rest(plan)
            except BaseException:
                if self._has_failed():  # else tasks go on, and the step can still be ended
                    with self._lock:
                        self._close_step(step)
                raise
            with self._lock:
                self._close_step(step)
                self._storage.need_in_place()
                self._storage.note_written()
            self._raise_failures()

    def _has_failed(self) -> bool:
        """Whether a task of a worker has raised something."""
        try:
            self._raise_failures()
        except BaseException:
            return True
        return False

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, rows: Any = None, grads: Sequence[Any] | None = None, *, closure: Closure = None
    ) -> Any:
        """One whole step: `begin_step`, `update`, `end_step`.

        Args:
            rows: as for `update`; or a closure as torch's optimizers take it.
            grads: as for `update`, but None means each parameter's ``.grad``. Where one is None it
                counts as zero; where all are, nothing happens, as with torch's optimizers.
            closure: makes the gradients; called first, once, with gradients enabled.

        Returns:
            What the closure returned, else None.

        Raises:
            RuntimeError: another step is open.
            TypeError, ValueError, IndexError: as `update`, or gradients beside a closure; the step
                is then not counted.
        """
        rows, loss = evaluated(rows, grads, closure, "rows")
        if grads is None:
            grads = self._own_gradients()
            if grads is None:
                return loss
        with self._lock:
            self._need_rest("step()")
            self._storage.follow()
            with self._calls.call(self._storage) as storage:
                self._step(storage, rows, grads)
        return loss

    def _step(self, storage: Storage, rows: Any, grads: Sequence[Any]) -> None:
        native = storage.plain if rows is None else storage.marked()
        ids = as_ids(rows, native.n_rows)
        options = [options_of(group) for group in self.param_groups]
        plan = self._schedule.propose(options, self._all_awake)
        rest = ids is not None and self._semantics == "dense"
        gradients = all_native(grads)
        awake = self._all_awake
        try:
            self._all_awake = False
            # Counts the step once the arguments are right, and before Ctrl-C can be raised.
            native.step(self._schedule, plan, ids, gradients, rest=rest)
        finally:
            is_taken = self._schedule.step == plan.step
            self._all_awake = ids is None if is_taken else awake
            if is_taken:
                self._note_step(plan.step)
                storage.note_written()

    def _own_gradients(self) -> list[torch.Tensor] | None:
        params = self._params()
        if all(param.grad is None for param in params):
            return None
        # Others' code replaces single parameters, with moments of zero, before it steps.
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]

    def flush(self, rows: Any = None) -> None:
        """Bring rows up to date with the last step begun.

        Where a step is open, a row that it has not updated counts as updated with a zero gradient.
        Dense and sparse rows are always up to date between steps.

        Args:
            rows: as for `update`; None means all, which needs open steps to end first.

        Raises:
            RuntimeError: all rows while a step is open.
            TypeError, ValueError, IndexError: as `update`.

        Cost: 24 bytes of memory traffic a value of a row that sleeps. Thread-safe for disjoint
            rows.
        """
        if rows is not None:
            return self._flush(rows)
        with self._lock:
            self._need_rest("flush() of all rows")
            self._flush(None)
            self._all_awake = self._semantics == "deferred" or self._all_awake

    def _flush(self, rows: Any) -> None:
        with self._work(None) as (plan, native, _):
            self._storage.need_in_place()
            native.flush(plan, as_ids(rows, native.n_rows))
            if self._semantics == "deferred":
                self._storage.note_written()

    def lookahead(
        self,
        rows: Any,
        *,
        step: int | None = None,
        pending: tuple[Any, Sequence[Any]] | None = None,
        out: Sequence[Any] | None = None,
    ) -> Sequence[Any]:
        """Compute the values that `update` and `flush` will write, elsewhere.

        Args:
            rows: as for `update`.
            step: an open step; rows of ``pending`` are as it will leave them, and so are the
                others (dense, deferred: after a zero gradient). None: as `flush` would leave them.
            pending: (ids, grads) of the step, ids sorted and unique, grads one (len(ids), ...)
                tensor a parameter. Ids outside ``rows`` are passed over.
            out: one writable float32 CPU tensor (R, ...) a parameter, with contiguous rows;
                allocated when None.

        Returns:
            ``out``: bit for bit what will be written. Parameters and state are untouched.

        Raises:
            TypeError, ValueError, IndexError: as `update`; pending without an open step.

        Cost: 16 bytes of memory traffic a value, 4 more with a gradient; thread-safe.
        """
        pending_ids, grads = pending_parts(pending, step)
        with self._work(step) as (plan, native, done):
            self._storage.need_in_place()
            ids = as_ids(rows, native.n_rows)
            if out is None:
                # Ids without a dimension are refused below.
                count = native.n_rows if ids is None else (*ids.shape, 0)[0]
                shapes = [(count, *param.shape[1:]) for param in self._params()]
                out = [torch.empty(shape, dtype=torch.float32, device="cpu") for shape in shapes]
            native.lookahead(
                plan,
                step is not None,
                ids,
                as_native(pending_ids),
                all_native(grads),
                all_native(out, "out"),
                done,
            )
        return out
