# SPDX-License-Identifier: Apache-2.0
"""Parameters as a gsplat strategy edits them, and the same edits for host optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from gs_adam import _memory
from gs_adam._tensors import MOMENTS
from gs_adam.host import HostAdam

_READ = ("means", "scales", "quats", "opacities")
"""The parameters whose values strategies read and write; of all others they move rows alone."""

_NUMBERS = "gs_adam.numbers"
"""A parameter of no optimizer's: each row holds its number, wherever a strategy moves it."""


class _MomentNumbers:
    """As much of an optimizer as gsplat's edits touch. A row's moments are its number, from 1 on,
    so that zero stands for moments that an edit has dropped."""

    def __init__(self, param: torch.Tensor) -> None:
        # gsplat appends float32 zeros; together they stay float64, which holds every number.
        numbers = torch.arange(1, len(param) + 1, dtype=torch.float64, device=param.device)
        self.param_groups = [{"params": [param]}]
        self.state = {param: {"exp_avg": numbers}}

    @property
    def rows(self) -> torch.Tensor:
        """(M,) int64 on the CPU: whose moments each row has; -1 for zeros."""
        (state,) = self.state.values()
        return state["exp_avg"].cpu().long() - 1


class EditedParams(MutableMapping[str, torch.Tensor]):
    """A strategy's ``params`` while it runs: those of other optimizers as they are, those of host
    optimizers that it reads caught up and on its device, and the numbers of rows.

    Args:
        params, optimizers: the caller's.
        device: where the strategy computes.

    Raises:
        ValueError: a host optimizer has a tensor that ``params`` lack.
    """

    def __init__(
        self,
        params: MutableMapping[str, Any],
        optimizers: Mapping[str, torch.optim.Optimizer],
        device: torch.device,
    ) -> None:
        self._params = params
        self._device = device
        names = {id(param): name for name, param in params.items()}
        self._hosts: dict[HostAdam, list[str]] = {}
        for key, host in optimizers.items():
            if not isinstance(host, HostAdam):
                continue
            owned = [names.get(id(param)) for param in host._params()]
            if None in owned:
                raise ValueError(
                    f"optimizers[{key!r}] must have tensors of params, got another one; put "
                    "replaced parameters in both"
                )
            self._hosts[host] = [name for name in owned if name is not None]
        self._host_of = {name: host for host, own in self._hosts.items() for name in own}
        self._shown: dict[str, torch.Tensor] = {}
        self.optimizers: dict[str, Any] = {
            key: other for key, other in optimizers.items() if not isinstance(other, HostAdam)
        }

    # ------------------------------------------------------------------ what a strategy sees

    def __iter__(self) -> Iterator[str]:
        hidden = self._host_of.keys() - set(_READ)
        yield _NUMBERS  # the first to be edited, so that hosts which cannot be are found first
        yield from (name for name in self._params if name not in hidden)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._shown:
            return self._shown[name]
        if name == _NUMBERS:
            for host in self._hosts:
                host._need_editable("refinement")
                n_rows = host.n_rows
            numbers = torch.arange(n_rows, device=self._device)
            shown = torch.nn.Parameter(numbers, requires_grad=False)
        elif name in self._host_of:
            self._host_of[name].flush()
            shown = self._params[name]
            if shown.device != self._device:
                shown = _parameter(shown.detach().to(self._device), shown)
        else:
            return self._params[name]
        self._shown[name] = shown
        self.optimizers[name] = _MomentNumbers(shown)
        return shown

    def __setitem__(self, name: str, param: torch.Tensor) -> None:
        (self._shown if name in self._shown else self._params)[name] = param

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"params must be kept, got {name!r} to delete")

    def values(self) -> Any:
        """The tensors that there are, of which a strategy asks the length: none is caught up."""
        return [self._shown.get(name, self._params.get(name)) for name in self if name != _NUMBERS]

    # ------------------------------------------------------------------ what it has done

    @torch.no_grad()
    def apply(self) -> None:
        """Do with the rows of host optimizers what the strategy has done with their numbers."""
        numbers = self._shown.pop(_NUMBERS, None)
        for host, names in self._hosts.items():
            kept = torch.arange(host.n_rows)
            values = {name: self._shown[name] for name in names if name in self._shown}
            if numbers is not None:
                kept = self.optimizers[_NUMBERS].rows
                values |= self._moved(host, names, numbers.cpu(), kept)
                _edit_state(host, kept)
            self._replace(host, names, values)
            for name in names:
                if name in self._shown:
                    dropped = (self.optimizers[name].rows < 0) & (kept >= 0)
                    _zero_moments(host, self._params[name], dropped)

    def _moved(
        self, host: HostAdam, names: list[str], source: torch.Tensor, kept: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The tensors that the strategy has not seen, with the rows ``source`` in order."""
        passed_on = source != kept  # such a row has one's values and another's moments, or zeros
        awake = torch.cat([source[passed_on], kept[passed_on & (kept >= 0)]])
        if len(source) == host.n_rows:  # where rows are written over, those that go sleep no more
            awake = torch.cat([awake, (kept < 0).nonzero().flatten()])
        host.flush(awake.unique())
        tensors = {name: self._params[name].detach() for name in names if name not in self._shown}
        if len(source) == host.n_rows:
            to = (source != torch.arange(len(source))).nonzero().flatten()
            for tensor in tensors.values():
                tensor[to] = tensor[source[to]]
            return {}

        def select(table: torch.Tensor) -> torch.Tensor:
            selected = _memory.select(table, source)
            return selected.pin_memory() if table.is_pinned() else selected

        moved = _memory.edit_tables(list(tensors.values()), select)
        return dict(zip(tensors, moved, strict=True))

    def _replace(self, host: HostAdam, names: list[str], values: dict[str, torch.Tensor]) -> None:
        """Give the optimizer and the caller other tensors, or the old ones other values."""
        for name, value in values.items():
            old = self._params[name]
            if value is old:
                continue
            if value.device != old.device and value.shape == old.shape:
                old.copy_(value)
            else:
                self._params[name] = _parameter(value.detach().cpu(), old)
        params = [self._params[name] for name in names]
        if any(new is not old for new, old in zip(params, host._params(), strict=True)):
            host.rebind(params)


def _parameter(values: torch.Tensor, like: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values, requires_grad=like.requires_grad)


def _edit_state(host: HostAdam, kept: torch.Tensor) -> None:
    """Give each row the moments of an old row, or zeros."""
    is_new = kept < 0
    if len(kept) == host.n_rows and bool((is_new | (kept == torch.arange(len(kept)))).all()):
        if bool(is_new.any()):
            host.zero_rows(is_new)
        return
    old = kept[~is_new]
    if len(old) < host.n_rows:
        host.keep_rows(old.sort().values)
    if bool(is_new.any()):
        host.append_rows(int(is_new.sum()))
    order = torch.empty_like(kept)
    order[~is_new] = old.argsort().argsort()
    order[is_new] = torch.arange(len(old), len(kept))
    if bool((order != torch.arange(len(order))).any()):
        host.permute_rows(order)


def _zero_moments(host: HostAdam, param: torch.Tensor, rows: torch.Tensor) -> None:
    """Of one tensor, whose rows are up to date."""
    state = host.state.get(param)
    if state and bool(rows.any()):
        for key in MOMENTS:
            state[key][rows] = 0
