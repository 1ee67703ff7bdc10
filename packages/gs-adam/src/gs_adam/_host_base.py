# SPDX-License-Identifier: Apache-2.0
"""What every part of a host optimizer rests on: its groups, storage and workers."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gs_adam import _core
from gs_adam._arguments import flag, keyed, whole
from gs_adam._open_steps import OpenSteps
from gs_adam._options import MOST_TENSORS, check_rule, check_torchs, options_of
from gs_adam._storage import Storage, check_params
from gs_adam._tensors import groups_of

SEMANTICS = ("dense", "deferred", "sparse")

made: weakref.WeakSet[HostBase] = weakref.WeakSet()
"""Optimizers that are in use."""


class HostBase(torch.optim.Optimizer, OpenSteps):
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
        check_rule(semantics, bias_correction, SEMANTICS)
        if threads is not None:
            threads = whole(threads, "threads", least=1)
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
        if len(self._params()) > MOST_TENSORS:
            raise ValueError(f"params must be at most {MOST_TENSORS}, got {len(self._params())}")
        OpenSteps.__init__(self, len(self.param_groups), semantics, bias_correction, threads or 0)
        self._storage = Storage(
            self._params_and_groups,
            lambda: self.state,
            self._schedule,
            sleeps=semantics == "deferred",
            skip_nonfinite=skip_nonfinite,
            threads=self._threads,
        )
        if state is not None:
            self._storage.adopt(state)
        made.add(self)

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self._params()[0])

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

    def _need_rest(self, what: str) -> None:
        """Return when nobody else is at work on rows, nor will be while the lock is held."""
        self._need_ended(what)
        self._wait_for_calls(what)
        if not all(worker.is_idle for worker in self._workers):
            raise RuntimeError(f"{what} needs the worker to be idle; call its wait() first")
        self._raise_failures()

    def _raise_failures(self) -> None:
        """What a task raised: rows are not what the steps so far would have made them."""
        for worker in self._workers:
            worker.check()
