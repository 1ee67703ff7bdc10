# SPDX-License-Identifier: Apache-2.0
"""Adam over rows in host memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gs_adam import _checkpoint, _core
from gs_adam._options import options_of
from gs_adam._storage import Storage, check_params, row_ids
from gs_adam._tensors import MOMENTS, as_ids

SEMANTICS = ("dense", "deferred", "sparse")


class HostAdam(torch.optim.Optimizer):
    """Adam on float32 CPU tensors whose first dimension is the row, touching only rows with work.

    All tensors have the same number of rows N; each group has its own lr, betas and eps. They may
    be strided views of one table (``table[:, :3]``), page-locked or not. One pass over a row
    updates all its tensors.

    Semantics:
        ``"dense"``: torch.optim.Adam (AdamW with weight decay). Rows not given to a step get the
            update of a zero gradient when it ends.
        ``"deferred"``: the same result, but rows not given to a step sleep and are caught up in
            closed form when they are next updated, flushed or looked ahead. Until then the stored
            values of a sleeping row are this object's own affair.
        ``"sparse"``: rows not given to a step stand still, moments included.

    State is as torch.optim.Adam's: ``step``, ``exp_avg``, ``exp_avg_sq``, made at the first step;
    state dicts can be exchanged with it (a deferred one after `flush`). Replaced Parameter objects
    in ``param_groups`` are followed. Learning-rate schedulers work; a rate holds from
    `begin_step` on.

    Args:
        params: tensors or groups, as for any torch optimizer.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: added to the root of the second moment; deferred needs at least 1e-30.
        weight_decay: decoupled (AdamW), never added to the gradient.
        semantics: what happens to rows that a step is not given.
        bias_correction: ``"global"`` counts the optimizer's steps; ``"off"`` (sparse only)
            corrects nothing, as gsplat's SelectiveAdam.
        threads: of the pool that updates rows, shared by all optimizers of that size; one per
            usable processor when None. torch's own threads are left alone.
        state: storage to adopt instead of allocating: a dict of ``exp_avg`` and ``exp_avg_sq``,
            lists aligned with the parameters and of their shapes, and for deferred ``last_step``,
            (N,) int32. Row operations are then the owner's affair, followed by `rebind`.
        skip_nonfinite: treat a row whose gradient holds NaN or Inf as if it had none. Such rows
            are counted in `nonfinite_rows` either way.

    Raises:
        TypeError, ValueError: options out of range, or tensors of another dtype, device, stride or
            number of rows.

    Cost: a row costs 28 bytes of memory traffic a value; nothing grows with N except dense
        semantics, bool masks and ``flush()`` of all rows. The GIL is released. `update`,
        `lookahead` and `flush` may run on several threads for disjoint rows; one SIMD level gives
        the same bits however rows are divided.
    """

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
    ) -> None:
        if semantics not in SEMANTICS:
            raise ValueError(f"semantics must be one of {', '.join(SEMANTICS)}, got {semantics!r}")
        if bias_correction not in ("global", "off"):
            raise ValueError(f"bias_correction must be global or off, got {bias_correction!r}")
        if bias_correction == "off" and semantics != "sparse":
            raise ValueError(f"bias_correction must be global with {semantics}, got 'off'")
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self._semantics = semantics
        self._lock = threading.RLock()
        self._open: dict[int, _core.StepPlan] = {}
        self._done = 0  # dense: every row has had all steps up to this one
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
        super().__init__(params, defaults)
        self._is_made = True
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

    # ------------------------------------------------------------------ facts

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
        super().add_param_group(param_group)
        options_of(self.param_groups[-1])
        params = self._params()
        check_params(params, len(params) - len(self.param_groups[-1]["params"]))

    # ------------------------------------------------------------------ stepping

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

    def _begin(self) -> int:
        options = [options_of(group) for group in self.param_groups]
        if not self._open:
            self._storage.follow()
        plan = self._schedule.propose(options, self._all_awake)
        self._accept(plan)
        self._open[plan.step] = plan
        return plan.step

    def _accept(self, plan: _core.StepPlan) -> None:
        self._schedule.accept(plan)
        self._all_awake = False
        self._storage.count(plan.step)
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

        Cost: thread-safe for disjoint rows; the GIL is released.
        """
        plan, native, done = self._work(step)
        ids = as_ids(rows, native.n_rows)
        native.update(plan, ids, grads, done)

    def end_step(self, step: int) -> None:
        """End a step. Dense: rows that it was not given get the update of a zero gradient.

        Steps end in the order in which they began. Dense waits for the workers' tasks of the step;
        with the other semantics they may run later.

        Raises:
            ValueError: the step is not open, or an earlier one is.
        """
        with self._lock:
            plan = self._opened(step)
            if step != min(self._open):
                raise ValueError(f"step must end after step {min(self._open)}, got {step}")
            workers = list(self._workers)
        if self._semantics == "dense":
            for worker in workers:
                worker.wait_step(step)
            self._storage.marked().update_rest(plan)
        with self._lock:
            del self._open[step]
            self._done = step

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, rows: Any = None, grads: Sequence[Any] | None = None
    ) -> None:
        """One whole step: `begin_step`, `update`, `end_step`.

        Args:
            rows: as for `update`.
            grads: as for `update`, but None means each parameter's ``.grad``.

        Raises:
            RuntimeError: another step is open.
            TypeError, ValueError, IndexError: as `update`; the step is then not counted.
        """
        if grads is None:
            grads = self._own_gradients()
        with self._lock:
            self._need_rest("step()")
            self._storage.follow()
            native = self._storage.plain if rows is None else self._storage.marked()
            ids = as_ids(rows, native.n_rows)
            options = [options_of(group) for group in self.param_groups]
            plan = self._schedule.propose(options, self._all_awake)
            # Whatever is wrong with the arguments shows before the step is counted.
            native.update(plan, ids, grads, self._done)
            self._accept(plan)
            if ids is not None and self._semantics == "dense":
                native.update_rest(plan)
            self._done = plan.step
            self._all_awake = ids is None

    def _own_gradients(self) -> list[torch.Tensor]:
        gradients = []
        for k, param in enumerate(self._params()):
            if param.grad is None:
                raise ValueError(f"grads must be given, got None and params[{k}].grad is None")
            gradients.append(param.grad)
        return gradients

    def _opened(self, step: int) -> _core.StepPlan:
        if step not in self._open:
            raise ValueError(f"step must be an open step (open: {list(self._open)}), got {step}")
        return self._open[step]

    def _need_rest(self, what: str) -> None:
        if self._open:
            raise RuntimeError(f"{what} needs steps {list(self._open)} to end first")
        if not all(worker.is_idle for worker in self._workers):
            raise RuntimeError(f"{what} needs the worker to be idle; call its wait() first")

    # ------------------------------------------------------------------ workers

    def _attach(self, worker: _core.Worker) -> None:
        with self._lock:
            self._workers.append(worker)

    def _detach(self, worker: _core.Worker) -> None:
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)

    def _work(self, step: int | None) -> tuple[_core.StepPlan, _core.Rows, int]:
        """What a task needs: a step's plan (the last one for None), the rows, and `_done`."""
        with self._lock:
            if not self._open:
                self._storage.follow()
            plan = self._schedule.now() if step is None else self._opened(step)
            marks = step is not None or self._semantics == "deferred"
            native = self._storage.marked() if marks else self._storage.plain
            return plan, native, self._done

    # ------------------------------------------------------------------ sleeping rows

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
        if rows is None:
            self._need_rest("flush() of all rows")
        plan, native, _ = self._work(None)
        ids = as_ids(rows, native.n_rows)
        if self._semantics == "deferred":
            native.flush(plan, ids)
            if rows is None:
                self._all_awake = True

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
        if step is None and pending is not None:
            raise ValueError("step must be given with pending gradients, got None")
        plan, native, _ = self._work(step)
        ids = as_ids(rows, native.n_rows)
        count = native.n_rows if ids is None else len(ids)
        if out is None:
            out = [torch.empty(count, *param.shape[1:]) for param in self._params()]
        pending_ids, grads = (None, None) if pending is None else pending
        native.lookahead(plan, step is not None, ids, pending_ids, grads, out)
        return out

    # ------------------------------------------------------------------ rows

    def append_rows(self, count: int) -> None:
        """Add rows with zero moments to the state; the parameters' new rows are the caller's.

        This and the other row operations edit the optimizer's own state. Make the same edit to
        the parameters (in place, as new tensors or as new Parameter objects) before or after; the
        next step checks that both fit. Values of rows that are copied or edited must be up to
        date: `flush` them first.

        Raises:
            RuntimeError: a step is open, or the storage is adopted.
            ValueError: ``count`` is negative.
        """
        if count < 0:
            raise ValueError(f"count must be at least 0, got {count}")
        now = self._schedule.step

        def edit(old: torch.Tensor) -> torch.Tensor:
            new = torch.zeros(count, *old.shape[1:], dtype=old.dtype)
            return torch.cat([old, new.fill_(now) if old.dtype == torch.int32 else new])

        self._edit_rows(edit)

    def keep_rows(self, rows: Any) -> None:
        """Drop the state of all rows but some, which keep their order. See `append_rows`.

        Args:
            rows: (R,) int32 or int64 ids, sorted and unique, or a mask.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: as `append_rows` and `update`; nothing
                is changed.
        """
        ids = row_ids(rows, self._storage.n_state_rows(), "rows")
        if bool((ids[1:] <= ids[:-1]).any()):
            raise ValueError("rows must be sorted and unique, got others")
        self._edit_rows(lambda old: old.index_select(0, ids))

    def permute_rows(self, order: Any) -> None:
        """Make the state of row ``order[i]`` that of row i. See `append_rows`.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: ``order`` is no permutation, else as
                `append_rows`; nothing is changed.
        """
        n_rows = self._storage.n_state_rows()
        ids = row_ids(order, n_rows, "order")
        if len(ids) != n_rows or not bool((torch.bincount(ids, minlength=n_rows) == 1).all()):
            raise ValueError(f"order must be a permutation of {n_rows} rows, got {len(ids)} others")
        self._edit_rows(lambda old: old.index_select(0, ids))

    @torch.no_grad()
    def zero_rows(self, rows: Any = None) -> None:
        """Bring rows up to date and forget their moments.

        Args:
            rows: ids in any order or a mask; None means all.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: a step is open; else as `update`.
        """
        with self._lock:
            self._need_rest("zero_rows()")
            self._storage.follow()
        ids = torch.arange(self.n_rows) if rows is None else row_ids(rows, self.n_rows, "rows")
        self.flush(None if rows is None else ids.unique())
        for param in self._params():
            for key in MOMENTS:
                self.state[param][key].index_fill_(0, ids, 0.0)

    def rebind(
        self, params: Sequence[torch.Tensor], *, state: dict[str, Any] | None = None
    ) -> None:
        """Continue with other tensors for the same parameters, after their storage has moved.

        Args:
            params: aligned with the parameters so far, of any number of rows.
            state: as the constructor's, when the storage is adopted; None keeps the state, which
                must fit (see `append_rows`).

        Raises:
            RuntimeError: a step is open.
            TypeError, ValueError: tensors do not fit. Nothing is changed.
        """
        with self._lock:
            self._need_rest("rebind()")
            old = self._params()
            if len(params) != len(old):
                raise ValueError(f"params must be {len(old)} tensors, got {len(params)}")
            check_params(params, 0)
            if state is None and len(params[0]) != self._storage.n_state_rows():
                raise ValueError(
                    f"params must have {self._storage.n_state_rows()} rows as the state, got "
                    f"{len(params[0])}"
                )
            self._replace(params)
            if state is None:
                return
            try:
                self._storage.adopt(state)
            except (TypeError, ValueError):
                self._replace(old)
                raise
            for param in old:
                if all(param is not other for other in params):
                    self.state.pop(param, None)

    def _replace(self, params: Sequence[torch.Tensor]) -> None:
        left = iter(params)
        for group in self.param_groups:
            group["params"] = [next(left) for _ in group["params"]]

    def _edit_rows(self, edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with self._lock:
            self._need_rest("a row operation")
            self._storage.edit_rows(edit)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """torch.optim.Adam's state dict; deferred adds ``last_step`` and the steps' rates.

        Tensors are not copied and sleeping rows not flushed: loading it continues bit for bit.

        Raises:
            RuntimeError: a step is open.
        """
        with self._lock:
            self._need_rest("state_dict()")
        state_dict = super().state_dict()
        if self._semantics == "deferred":
            state_dict[_checkpoint.KEY] = {
                "last_step": self._storage.last_step,
                "schedule": _checkpoint.pack_schedule(self._schedule, len(self.param_groups)),
            }
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from this optimizer's or torch.optim.Adam's state dict.

        As with torch's optimizers, tensors of fitting dtype are taken over, not copied; adopted
        storage is written to.

        Raises:
            RuntimeError: a step is open.
            ValueError: other groups, shapes or options. Nothing is changed.
        """
        with self._lock:
            self._need_rest("load_state_dict()")
        step = _checkpoint.check_fits(state_dict, self.param_groups)
        for group in state_dict["param_groups"]:
            options_of(group)
        own = state_dict.get(_checkpoint.KEY)
        if own is not None:
            _checkpoint.check_own(
                own,
                step=step,
                n_rows=self.n_rows,
                n_groups=len(self.param_groups),
                deferred=self._semantics == "deferred",
            )
        adopted = dict(self.state) if self._storage.is_adopted else {}
        super().load_state_dict(state_dict)
        self._storage.write_back(adopted)
        for group in self.param_groups:
            if not group["weight_decay"]:
                group["decoupled_weight_decay"] = True
        self._storage.forget_marks()
        self._restore(step, own if self._semantics == "deferred" else None)

    def _restore(self, step: int, own: dict[str, Any] | None) -> None:
        self._done = step
        self._all_awake = True
        last_step = self._storage.last_step
        if own is not None and own["schedule"]:
            assert last_step is not None
            last_step.copy_(own["last_step"])
            self._schedule.restore(step, _checkpoint.unpack_schedule(own["schedule"]))
            self._all_awake = bool((last_step == step).all())
            return
        if last_step is not None:
            last_step.fill_(step)
        self._schedule.restart(step)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("HostAdam must be saved with state_dict(), got a request to pickle it")
