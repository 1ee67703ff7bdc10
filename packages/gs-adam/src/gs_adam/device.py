# SPDX-License-Identifier: Apache-2.0
"""Dense Adam on all rows from gradients of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import torch

from gs_adam import _core
from gs_adam._arguments import listed, number, shown
from gs_adam._checkpoint import check_kinds
from gs_adam._hooks import unwrapped
from gs_adam._options import check_torchs, options_of
from gs_adam._step_numbers import Places, StepNumbers
from gs_adam._streams import current_handle
from gs_adam._tensors import (
    MOMENTS,
    STATE_KEYS,
    Closure,
    as_ids,
    as_step,
    check_keys,
    check_same_rows,
    evaluated,
    first_unsorted,
    groups_of,
    note_written,
    on_cpu,
)

_ROWS_A_WORD = 32  # of the native part's 8-byte words that say which rows have a gradient

Penalty = tuple[str, float]
"""``"exp"`` or ``"sigmoid"``, and the weight of the sum of that function of all values."""


class DeviceAdam(torch.optim.Optimizer):
    """torch.optim.Adam (AdamW with weight decay) for CUDA tensors whose gradients are compact.

    Rows without a gradient get the update of a zero gradient, in the same kernel: no gradient of N
    rows is ever made. CPU tensors are updated by the host kernel, to the same result within a few
    ulp. State keys and shapes are torch.optim.Adam's, and state dicts can be exchanged with it.

    Args:
        params: float32 tensors or groups, contiguous, all on one device and of equal first
            dimension N; their values are followed where they move.
        lr, betas, eps, weight_decay: as `HostAdam`'s.

    Raises:
        TypeError, ValueError: options out of range; tensors of another dtype, device or length.

    Cost: 24 bytes of memory traffic a value and 4 for each that has a gradient, in one kernel; a
        small one before it finds which rows have one.
    Asynchrony: on the current stream; never synchronises.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-15,
        weight_decay: float = 0.0,
        **torch_options: Any,
    ) -> None:
        check_torchs(torch_options, type(self).__name__)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            # Read by torch.optim.Adam when it loads a state dict of this optimizer.
            "decoupled_weight_decay": True,
        }
        super().__init__(groups_of(params), defaults)
        for group in self.param_groups:
            options_of(group)
        self._start_counting()
        self._check(self._params())

    def _start_counting(self) -> None:
        self._schedule = _core.Schedule(len(self.param_groups), "dense", True)
        self._marks: torch.Tensor | None = None
        self._words: tuple[tuple[int, int, torch.device], torch.Tensor] | None = None
        self._numbers = StepNumbers()
        # Of a step that is being taken: its number, the parameters, the state that it leaves, and
        # for which of them that is their first.
        self._taking: tuple[int, list[torch.Tensor], list[dict[str, Any]], list[int]] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_schedule" not in self.__dict__:  # a copy: steps are counted from its state's
            self._start_counting()
        self._taking = None

    def __getstate__(self) -> dict[str, Any]:
        self._note_step()
        return super().__getstate__()

    def state_dict(self) -> dict[str, Any]:
        """torch.optim.Adam's."""
        self._note_step()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from torch.optim.Adam's state dict, or this class's.

        Raises:
            TypeError, ValueError: it is none, or one of other groups.
        """
        super().load_state_dict(check_kinds(state_dict))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; only the constructor may.

        Raises:
            RuntimeError: called later.
        """
        if "_schedule" in self.__dict__:
            raise RuntimeError("groups must be given at construction, got another one afterwards")
        super().add_param_group(param_group)

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]

    @staticmethod
    def _check(params: list[torch.Tensor]) -> None:
        if not params:
            raise ValueError("params must hold at least one tensor, got none")
        device = params[0].device
        is_known = device.type in ("cpu", "cuda")
        for k, param in enumerate(params):
            if param.dtype is not torch.float32:
                raise TypeError(f"params[{k}] must be float32, got {param.dtype}")
            if param.device != device or not is_known:
                raise ValueError(
                    f"params[{k}] must be on one CPU or CUDA device with the others, "
                    f"got {param.device}"
                )
            if param.ndim == 0 or not param.is_contiguous():
                raise ValueError(
                    f"params[{k}] must have rows and be contiguous, got shape "
                    f"{tuple(param.shape)} and strides {param.stride()}"
                )
        check_same_rows(params, "params")

    @unwrapped
    def step(  # type: ignore[override]
        self,
        ids: Any = None,
        grads: Sequence[Any] | None = None,
        *,
        penalties: Sequence[Penalty | None] | None = None,
        closure: Closure = None,
    ) -> Any:
        """One optimizer step on all rows.

        Args:
            ids: (U,) int32 or int64 rows that have gradients, sorted and unique, on the tensors'
                device; an (N,) bool mask (its ids are found first, which synchronises); None means
                all. On CUDA they are trusted unless ``GS_CHECK_INDEX=1``.
            grads: one (U, ...) float32 tensor a parameter, rows contiguous; None means ``.grad``,
                which is (N, ...) and needs ``ids`` to be None.
            penalties: losses on every value of every row, whether it has a gradient or not, in the
                same pass: for each parameter None, or (``"exp"`` or ``"sigmoid"``, weight) for
                weight times the sum of that function of its values.
            closure: makes the gradients; called first, once, with gradients enabled. It may stand
                in place of ``ids``.

        Returns:
            What the closure returned, else None.

        Raises:
            TypeError, ValueError, IndexError: arguments of another dtype, shape, device or order.
                Nothing is changed.
            CudaError: the launch failed, or this build has no CUDA.
        """
        ids, loss = evaluated(ids, grads, closure, "ids")
        self._note_step()
        params = self._params()
        device = params[0].device
        if device.type != "cuda":  # there the native part looks at all of it
            self._check(params)
        n_rows = params[0].shape[0]
        gradients = self._gradients(params, ids, grads)
        if ids is not None and device.type == "cpu":
            ids = on_cpu(ids, "ids")
        ids = as_ids(ids, n_rows, "ids")
        losses = [_NO_PENALTY] * len(params)
        if penalties is not None:
            losses = _checked(penalties, params)
        states, first = self._states(params)
        if device.type != "cuda":
            _check_moments(params, states)
        options = [options_of(group) for group in self.param_groups]
        groups = [g for g, group in enumerate(self.param_groups) for _ in group["params"]]
        exp_avg = [state["exp_avg"] for state in states]
        exp_avg_sq = [state["exp_avg_sq"] for state in states]
        places = self._numbers.find(states)
        self._count_from(states, places)
        plan = self._schedule.propose(options)
        tensors = (params, exp_avg, exp_avg_sq, groups)
        self._taking = plan.step, params, states, first
        try:
            # Either counts the step when it has been taken, before Ctrl-C can be raised.
            if device.type == "cpu":
                if ids is not None:
                    ids = torch.as_tensor(ids, device="cpu")  # a mask's are numpy's
                    _check_ids(ids, n_rows)
                if any(weight for _, weight in losses):
                    _check_gradients(params, ids, gradients)
                    ids, gradients = None, _with_penalties(params, ids, gradients, losses)
                self._host_step(plan, *tensors, ids, gradients)
            else:
                if ids is not None and _core.checks_index():
                    _check_ids(ids, n_rows)
                stream = current_handle(device.index)
                words = None if ids is None else self._words_on(stream, n_rows, device)
                _core.device_step(
                    self._schedule, plan, *tensors, ids, gradients, losses, words,
                    device.index, stream,
                )  # fmt: skip
        finally:
            self._note_step(places)
        return loss

    def _words_on(self, stream: int, n_rows: int, device: torch.device) -> torch.Tensor:
        """Memory for a step to work in, which steps on one stream use one after the other."""
        n_words = -(-n_rows // _ROWS_A_WORD)
        place = stream, n_words, device
        if self._words is None or self._words[0] != place:
            self._words = place, torch.empty(n_words, dtype=torch.int64, device=device)
        return self._words[1]

    def _note_step(self, places: Places | None = None) -> None:
        """Keep the state of the step that has been taken, also of one that Ctrl-C cut short.

        Args:
            places: of the step's numbers, in the call that takes the step; None: later.
        """
        if self._taking is None:
            return
        step, params, states, first = self._taking
        if step == self._schedule.step:
            self._numbers.write(states, places or self._numbers.find(states), step)
            if first:
                kept = set(map(id, self._params()))  # others may have replaced some since
                self.state.update({params[k]: states[k] for k in first if id(params[k]) in kept})
            note_written(params)
        self._taking = None

    def _host_step(
        self,
        plan: _core.StepPlan,
        params: list[torch.Tensor],
        exp_avg: list[torch.Tensor],
        exp_avg_sq: list[torch.Tensor],
        groups: list[int],
        ids: Any,
        grads: list[Any],
    ) -> None:
        n_rows = params[0].shape[0]
        if self._marks is None or self._marks.shape[0] != n_rows:
            self._marks = torch.zeros(n_rows, dtype=torch.int32, device="cpu")
        marks = None if ids is None else self._marks
        rows = _core.Rows(params, exp_avg, exp_avg_sq, groups, marks, self._schedule, False, 0)
        rows.step(self._schedule, plan, ids, grads, rest=ids is not None)

    @staticmethod
    def _gradients(params: list[torch.Tensor], ids: Any, grads: Sequence[Any] | None) -> list[Any]:
        if grads is not None:
            return listed(grads, "grads")
        if ids is not None:
            raise ValueError("grads must be given with ids, got None")
        for k, param in enumerate(params):
            if param.grad is None:
                raise ValueError(f"grads must be given, got None and params[{k}].grad is None")
        return [param.grad for param in params]

    def _states(self, params: list[torch.Tensor]) -> tuple[list[dict[str, Any]], list[int]]:
        """The state of each parameter, and which of them have none yet: what is made here becomes
        theirs with their first step."""
        states, first = [], []
        for k, param in enumerate(params):
            state = self.state.get(param)
            if not state:
                first.append(k)
                state = {
                    "step": as_step(0),
                    **{key: torch.zeros_like(param) for key in MOMENTS},
                }
            if not state.keys() >= STATE_KEYS:
                check_keys(state, f"params[{k}]")
            states.append(state)
        return states, first

    def _count_from(self, states: list[dict[str, Any]], places: Places) -> None:
        """Follow a loaded state dict: the state's step is the truth."""
        step = self._numbers.read(states, places)
        if step != self._schedule.step:
            self._schedule.restart(step)
            self._marks = None


def _check_moments(params: list[torch.Tensor], states: list[dict[str, Any]]) -> None:
    for k, (param, state) in enumerate(zip(params, states)):
        for key in MOMENTS:
            if state[key].shape != param.shape:
                raise ValueError(
                    f"{key} of params[{k}] must have shape {tuple(param.shape)} as its "
                    f"parameter, got {tuple(state[key].shape)}"
                )


def _checked(penalties: Sequence[Penalty | None], params: list[torch.Tensor]) -> list[Penalty]:
    penalties = listed(penalties, "penalties")
    if len(penalties) != len(params):
        raise ValueError(f"penalties must be {len(params)}, one a parameter, got {len(penalties)}")
    for penalty in penalties:
        if penalty is not None and not _is_penalty(penalty):
            raise ValueError(
                f"penalties must be (one of {', '.join(_DERIVATIVES)}; a finite weight), "
                f"got {shown(penalty)}"
            )
    return [_NO_PENALTY if p is None else (p[0], float(p[1])) for p in penalties]


def _is_penalty(penalty: Any) -> bool:
    if not isinstance(penalty, list | tuple) or len(penalty) != 2:
        return False
    name, weight = penalty
    if not isinstance(name, str) or name not in _DERIVATIVES:
        return False
    return isfinite(number(weight, "weight of penalties"))


_NO_PENALTY: Penalty = ("exp", 0.0)
_DERIVATIVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "sigmoid": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
}


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    # torch's own may round a value otherwise beside other rows.
    return 1 / (1 + torch.exp(-x))


@torch.no_grad()
def _with_penalties(
    params: list[torch.Tensor], ids: Any, grads: Sequence[Any], penalties: list[Penalty]
) -> list[torch.Tensor]:
    """Gradients of all rows, penalties included: what the device kernel adds as it goes."""
    full = []
    for param, grad, (name, weight) in zip(params, grads, penalties):
        total = torch.zeros_like(param) if ids is not None else grad.clone()
        if ids is not None:
            total.index_copy_(0, ids.long(), grad)
        if weight:
            total += weight * _DERIVATIVES[name](param)
        full.append(total)
    return full


def _check_gradients(params: list[torch.Tensor], ids: Any, grads: Sequence[Any]) -> None:
    n_rows = len(params[0]) if ids is None else len(ids)
    if len(grads) != len(params):
        raise ValueError(f"grads must be {len(params)}, one a parameter, got {len(grads)}")
    for k, (param, grad) in enumerate(zip(params, grads)):
        wanted = (n_rows, *param.shape[1:])
        if not isinstance(grad, torch.Tensor) or grad.dtype != torch.float32:
            kind = grad.dtype if isinstance(grad, torch.Tensor) else type(grad).__name__
            raise TypeError(f"grads[{k}] must be a float32 tensor, got {kind}")
        if grad.layout != torch.strided:
            raise TypeError(f"grads[{k}] must be a dense tensor, got layout {grad.layout}")
        if tuple(grad.shape) != wanted or grad.device != param.device:
            raise ValueError(
                f"grads[{k}] must be {wanted} on {param.device}, got {tuple(grad.shape)} on "
                f"{grad.device}"
            )


def _check_ids(ids: torch.Tensor, n_rows: int) -> None:
    if ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64):
        kind = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise TypeError(f"ids must be (U,) int32 or int64, got {kind}")
    if bool((ids[1:] <= ids[:-1]).any()):
        raise ValueError(f"ids must be sorted and unique, got {first_unsorted(ids)}")
    if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < n_rows:
        raise IndexError(f"ids must be in [0, {n_rows}), got {int(ids[0])} to {int(ids[-1])}")
