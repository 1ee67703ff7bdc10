# SPDX-License-Identifier: Apache-2.0
"""Adam over rows in host memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gs_adam import _checkpoint, _core, _tensors

SEMANTICS = ("dense", "deferred", "sparse")


@dataclass
class _OpenStep:
    """A step that has begun and not ended."""

    plan: _core.StepPlan


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
        self._threads = threads or 0
        self._skip_nonfinite = skip_nonfinite
        self._lock = threading.Lock()
        self._open: dict[int, _OpenStep] = {}
        self._last_step: torch.Tensor | None = None
        self._done = 0  # every row has had all steps up to this one (dense)
        self._all_awake = True  # no row sleeps (deferred)
        self._adopted = False
        self._nonfinite_rows = 0
        self._plain: _core.Rows | None = None
        self._marked: _core.Rows | None = None
        self._places: list[Any] = []
        self._known: list[torch.Tensor] = []
        self._native: _core.Schedule | None = None
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            # Read by torch.optim.Adam when it loads a state dict of this optimizer.
            "decoupled_weight_decay": True,
        }
        super().__init__(params, defaults)
        self._native = _core.Schedule(
            len(self.param_groups), semantics, bias_correction == "global"
        )
        if semantics == "deferred":
            self._last_step = torch.zeros(self.n_rows, dtype=torch.int32)
        if state is not None:
            self._adopt(state)

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
        return self._nonfinite_rows

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    @property
    def _schedule(self) -> _core.Schedule:
        assert self._native is not None
        return self._native

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group before the first step, as torch's optimizers do."""
        if self._native is not None:
            raise RuntimeError("groups must be given at construction, got another one afterwards")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check_options(group)
        params = self._params()
        try:
            first = len(params) - len(group["params"])
            for k, param in enumerate(group["params"], start=first):
                _tensors.check_param(param, f"params[{k}]")
            _tensors.check_same_rows(params, "params")
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    # ------------------------------------------------------------------ binding

    def _bind(self) -> None:
        """Follow the tensors to where they are now, allocating moments that do not exist yet."""
        params = self._params()
        if len(params) == len(self._known):
            for old, new in zip(self._known, params, strict=True):
                # Others' code replaces Parameter objects; their state moves along unless it was
                # moved already.
                if new is not old and not self.state.get(new) and old in self.state:
                    self.state[new] = self.state.pop(old)
        states = [self.state.get(param, {}) for param in params]
        places = [
            _tensors.place(tensor)
            for param, state in zip(params, states, strict=True)
            for tensor in (param, *(state[key] for key in _tensors.MOMENTS if key in state))
        ]
        if places == self._places and self._plain is not None:
            self._known = params
            return
        for k, (param, state) in enumerate(zip(params, states, strict=True)):
            _tensors.check_param(param, f"params[{k}]")
            if state:
                _tensors.check_state(param, state, f"params[{k}]")
        _tensors.check_same_rows(params, "params")
        n_rows = len(params[0])
        if self._semantics == "deferred":
            assert self._last_step is not None
            if len(self._last_step) != n_rows:
                raise ValueError(
                    f"params must have {len(self._last_step)} rows as the optimizer's state, got "
                    f"{n_rows}; call append_rows, keep_rows or rebind when rows change"
                )
        elif self._last_step is not None and len(self._last_step) != n_rows:
            self._last_step = None
        for param in params:
            if not self.state.get(param):
                self.state[param] = {
                    "step": torch.tensor(float(self._schedule.step)),
                    "exp_avg": torch.zeros(param.shape),
                    "exp_avg_sq": torch.zeros(param.shape),
                }
        self._known = params
        self._marked = None
        self._plain = self._native_rows(self._last_step if self._semantics == "deferred" else None)
        self._places = [
            _tensors.place(tensor)
            for param in params
            for tensor in (param, *(self.state[param][key] for key in _tensors.MOMENTS))
        ]

    def _native_rows(self, last_step: torch.Tensor | None) -> _core.Rows:
        groups = [g for g, group in enumerate(self.param_groups) for _ in group["params"]]
        return _tensors.bind(
            self._known,
            [self.state[param] for param in self._known],
            groups,
            last_step,
            self._schedule,
            skip_nonfinite=self._skip_nonfinite,
            threads=self._threads,
        )

    def _rows_with_marks(self) -> _core.Rows:
        """The binding that remembers which rows a dense step has updated."""
        assert self._plain is not None
        if self._semantics != "dense":
            return self._plain
        if self._marked is None:
            if self._last_step is None:
                self._last_step = torch.zeros(len(self._known[0]), dtype=torch.int32)
            self._marked = self._native_rows(self._last_step)
        return self._marked

    def _adopt(self, state: dict[str, Any]) -> None:
        params = self._params()
        unknown = set(state) - {*_tensors.MOMENTS, "last_step"}
        if unknown:
            raise ValueError(
                f"state must hold exp_avg, exp_avg_sq and last_step, got {sorted(unknown)}"
            )
        for key in _tensors.MOMENTS:
            if len(state.get(key, ())) != len(params):
                raise ValueError(
                    f"state must hold {len(params)} tensors of {key}, got {len(state.get(key, ()))}"
                )
        moments = [
            dict(zip(_tensors.MOMENTS, pair)) for pair in zip(*map(state.get, _tensors.MOMENTS))
        ]
        for k, (param, tensors) in enumerate(zip(params, moments, strict=True)):
            _tensors.check_state(param, tensors, f"params[{k}]")
        if self._semantics == "deferred":
            last_step = state.get("last_step")
            shape = (len(params[0]),)
            if not isinstance(last_step, torch.Tensor) or (
                (last_step.dtype, tuple(last_step.shape)) != (torch.int32, shape)
            ):
                raise ValueError(
                    f"state must hold last_step of {shape} int32, got {_kind(last_step)}"
                )
            self._last_step = last_step
        for param, tensors in zip(params, moments, strict=True):
            step = torch.tensor(float(self._schedule.step))
            self.state[param] = {"step": step, **tensors}
        self._adopted = True
        self._places = []

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
        for group in self.param_groups:
            _check_options(group)
        if not self._open:
            self._bind()
        plan = self._schedule.begin([_options(g) for g in self.param_groups], self._all_awake)
        self._all_awake = False
        for param in self._known:
            self.state[param]["step"] = _filled(self.state[param]["step"], plan.step)
        self._open[plan.step] = _OpenStep(plan)
        # What torch's learning-rate schedulers ask before they warn.
        self._opt_called = True
        return plan.step

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
        with self._lock:
            opened = self._opened(step)
            native = self._rows_with_marks()
            done = self._done
        ids = _tensors.as_ids(rows, native.n_rows)
        grads = _as_list(grads)
        native.check(step, ids, grads, done)
        self._count(native.update(opened.plan, ids, grads))

    def end_step(self, step: int) -> None:
        """End a step. Dense: rows that it was not given get the update of a zero gradient.

        Steps end in the order in which they began.

        Raises:
            ValueError: the step is not open, or an earlier one is.
        """
        with self._lock:
            opened = self._opened(step)
            if step != min(self._open):
                raise ValueError(f"step must end after step {min(self._open)}, got {step}")
        if self._semantics == "dense":
            self._rows_with_marks().update_rest(opened.plan)
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
        gradients = self._own_gradients() if grads is None else list(grads)
        with self._lock:
            if self._open:
                raise RuntimeError(f"step() needs steps {list(self._open)} to end first")
            self._bind()
            # Whatever is wrong with the arguments shows before the step is counted.
            native = self._plain
            assert native is not None
            ids = _tensors.as_ids(rows, native.n_rows)
            native.check(self._schedule.step + 1, ids, gradients, self._done)
            step = self._begin()
            plan = self._open[step].plan
            if ids is not None:
                native = self._rows_with_marks()
        try:
            self._count(native.update(plan, ids, gradients))
            if ids is not None and self._semantics == "dense":
                native.update_rest(plan)
        finally:
            with self._lock:
                del self._open[step]
                self._done = step
                self._all_awake = ids is None

    def _own_gradients(self) -> list[torch.Tensor]:
        gradients = []
        for k, param in enumerate(self._params()):
            if param.grad is None:
                raise ValueError(f"grads must be given, got None and params[{k}].grad is None")
            gradients.append(param.grad)
        return gradients

    def _opened(self, step: int) -> _OpenStep:
        if step not in self._open:
            raise ValueError(f"step must be an open step (open: {list(self._open)}), got {step}")
        return self._open[step]

    def _count(self, nonfinite: int) -> None:
        if nonfinite:
            with self._lock:
                self._nonfinite_rows += nonfinite

    def _need_rest(self, what: str) -> None:
        if self._open:
            raise RuntimeError(f"{what} needs steps {list(self._open)} to end first")

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
                "last_step": self._last_step,
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
            _check_options(group)
        own = state_dict.get(_checkpoint.KEY)
        deferred = self._semantics == "deferred"
        if own is not None:
            _checkpoint.check_own(
                own,
                step=step,
                n_rows=self.n_rows,
                n_groups=len(self.param_groups),
                deferred=deferred,
            )
        adopted = dict(self.state) if self._adopted else {}
        super().load_state_dict(state_dict)
        for param, storage in adopted.items():
            loaded = self.state[param]
            for key in _tensors.MOMENTS:
                storage[key].copy_(loaded[key]) if key in loaded else storage[key].zero_()
            self.state[param] = {**storage, "step": torch.tensor(float(step))}
        for group in self.param_groups:
            if not group["weight_decay"]:
                group["decoupled_weight_decay"] = True
        self._places = []
        self._done = step
        if deferred:
            self._restore(step, own)
        else:
            self._schedule.restart(step)

    def _restore(self, step: int, own: dict[str, Any] | None) -> None:
        assert self._last_step is not None
        if own is None or not own["schedule"]:
            self._last_step.fill_(step)
            self._schedule.restart(step)
            self._all_awake = True
            return
        self._last_step.copy_(own["last_step"])
        self._schedule.restore(step, _checkpoint.unpack_schedule(own["schedule"]))
        self._all_awake = bool((self._last_step == step).all())

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("HostAdam must be saved with state_dict(), got a request to pickle it")


def _options(group: dict[str, Any]) -> tuple[float, float, float, float, float]:
    beta1, beta2 = group["betas"]
    return (
        float(group["lr"]),
        float(beta1),
        float(beta2),
        float(group["eps"]),
        float(group["weight_decay"]),
    )


def _check_options(group: dict[str, Any]) -> None:
    """Raise on what this optimizer does not do; ranges are checked where a step begins."""
    for option in ("amsgrad", "maximize"):
        if group.get(option):
            raise ValueError(f"{option} must be False, got True")
    if group["weight_decay"] and not group.get("decoupled_weight_decay", True):
        raise ValueError(
            "weight_decay must be decoupled (AdamW), got "
            f"{group['weight_decay']} to be added to the gradient"
        )
    lr, beta1, beta2, eps, weight_decay = _options(group)
    if not lr >= 0:
        raise ValueError(f"lr must be at least 0, got {lr}")
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"betas must be in [0, 1), got {(beta1, beta2)}")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay must be at least 0, got {weight_decay}")


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return type(value).__name__


def _filled(step: Any, value: int) -> torch.Tensor:
    """The step as torch.optim.Adam keeps it, in place where it is a tensor already."""
    if not isinstance(step, torch.Tensor):
        return torch.tensor(float(value))
    return step.fill_(value)


def _as_list(grads: Sequence[Any] | None) -> list[Any] | None:
    return None if grads is None else list(grads)
