# SPDX-License-Identifier: Apache-2.0
"""The simplest offloading: the optimizer is on the host, and every batch moves everything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_train.rows.attributes import ADAM_EPS
from gs_train.rows.host_tables import row_blocks

_CPU = torch.device("cpu")


class HostMirrorAdam(torch.optim.Optimizer):
    """torch.optim.Adam whose state and copies of the parameters are in host memory.

    The baseline that the CLM paper measures against. A step copies the gradients of all rows to
    page-locked memory, updates page-locked copies of the parameters there, and copies all of them
    back. Moments are CPU tensors under torch.optim.Adam's keys, so whoever edits rows edits them
    as any optimizer's, and state dicts can be exchanged with it.

    A parameter that was edited between two steps is copied to the host anew: one whose memory,
    shape or version (as torch counts changes in place) is another.

    Args:
        params: float32 tensors or groups, contiguous, all on one CPU or CUDA device and with equal
            first dimension N.
        lr, betas, eps: as torch.optim.Adam's.

    Attributes:
        state_device: the CPU, where `load_state_dict` keeps moments.

    Cost: on the device nothing beyond parameters and gradients; on the host 4 values for each of
        them, parameters and gradients page-locked. Each value crosses the link once each way a
        step. On a machine without CUDA host memory is pageable.
    """

    state_device = _CPU

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = ADAM_EPS,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._mirrors: dict[Tensor, _Mirror] = {}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all rows from their gradients. Synchronises.

        Raises:
            ValueError: a parameter has no gradient, or state of another shape. Nothing is changed.
            TypeError, ValueError: parameters of another kind or length, options out of range.
            MemoryError: the host's memory is not there.
        """
        params = [param for group in self.param_groups for param in group["params"]]
        for k, param in enumerate(params):
            if param.grad is None:
                raise ValueError(f"params[{k}].grad must be set before a step, got None")
        for gone in self._mirrors.keys() - set(params):
            del self._mirrors[gone]
        mirrors = [self._mirrors.setdefault(param, _Mirror(param)) for param in params]
        for mirror in mirrors:
            mirror.fetch()
        for mirror in mirrors:
            mirror.wait()
        self._update(mirrors)
        for mirror in mirrors:
            mirror.send()
        for mirror in mirrors:
            mirror.wait()

    def _update(self, mirrors: list[_Mirror]) -> None:
        masters = iter(mirrors)
        # On CPU tensors this is HostAdam's kernel. It takes the step from the state it is given,
        # which is shared here and edited by others between steps, and holds on to nothing.
        adam = gs_adam.DeviceAdam(
            [
                {**group, "params": [next(masters).values() for _ in group["params"]]}
                for group in self.param_groups
            ]
        )
        values = [param for group in adam.param_groups for param in group["params"]]
        for mirror, master in zip(mirrors, values, strict=True):
            if not self.state[mirror.param]:
                self.state[mirror.param] = mirror.new_state()
            adam.state[master] = self.state[mirror.param]
        adam.step(grads=[mirror.gradients() for mirror in mirrors])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from this optimizer's or torch.optim.Adam's state dict.

        Tensors of state on the CPU are taken over, not copied; others are copied there.

        Raises:
            ValueError: other groups.
        """
        # The base class would move the state to the parameters' device.
        super().load_state_dict({**state_dict, "state": {}})
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(saved, params, strict=True):
            state = state_dict["state"].get(index)
            if state:
                self.state[param] = {key: torch.as_tensor(v).to(_CPU) for key, v in state.items()}


class _Mirror:
    """A parameter's copy and its gradient's, in host memory that grows with it."""

    def __init__(self, param: Tensor) -> None:
        self.param = param
        self._values: gs_pinned.Table | None = None
        self._gradients: gs_pinned.Table | None = None
        self._seen: tuple[Any, ...] = ()

    def fetch(self) -> None:
        """Begin to copy the gradient, and the parameter where it was edited, to the host."""
        if not self.param.shape[1:].numel():
            return  # shN of degree 0: a table has at least one column
        assert self.param.grad is not None
        self._gradients = self._stored(self.param.grad, self._gradients)
        if self._seen != self._version():
            self._values = self._stored(self.param.detach(), self._values)

    def send(self) -> None:
        """Begin to copy the updated values back."""
        if self._values is not None:
            values = self.param.detach()
            for part in row_blocks(len(values), self._values.layout.row_bytes):
                gs_pinned.gather(self._values, part, values[part])
            torch.autograd.graph.increment_version(self.param)
        self._seen = self._version()

    def wait(self) -> None:
        """Return when what `fetch` or `send` began is done."""
        for table in (self._values, self._gradients):
            if table is not None:
                table.wait()

    def values(self) -> Tensor:
        """The copy of the parameter, of its shape, on the CPU."""
        return self._view(self._values)

    def gradients(self) -> Tensor:
        """The copy of the gradient, of its shape, on the CPU."""
        return self._view(self._gradients)

    def new_state(self) -> dict[str, Tensor]:
        """State before the first step, in large pages."""
        state = {"step": torch.tensor(0.0)}
        for key in ("exp_avg", "exp_avg_sq"):
            table = None if self._values is None else self._made(len(self.param), locked=False)
            state[key] = self._view(table)
        return state

    def _version(self) -> tuple[Any, ...]:
        return self.param.data_ptr(), self.param.shape, self.param._version

    def _view(self, table: gs_pinned.Table | None) -> Tensor:
        if table is None:
            return torch.empty(self.param.shape)
        return table.torch().view(self.param.shape)

    def _made(self, n_rows: int, *, locked: bool) -> gs_pinned.Table:
        width = self.param.shape[1:].numel()
        return gs_pinned.Table(n_rows, width, pinned="auto" if locked else False)

    def _stored(self, source: Tensor, table: gs_pinned.Table | None) -> gs_pinned.Table:
        """Make a table hold the rows of ``source``, in its stream's order."""
        n = len(source)
        if table is None:
            table = self._made(n, locked=source.device.type == "cuda")
        if table.rows > n:
            table.keep(torch.arange(n, dtype=torch.int32))
        n_old = table.rows
        for part in row_blocks(n_old, table.layout.row_bytes):
            gs_pinned.scatter(source[part].contiguous(), part, table)
        if n > n_old:
            table.append(source[n_old:].contiguous())
        return table
