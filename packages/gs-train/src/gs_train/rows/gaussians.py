# SPDX-License-Identifier: Apache-2.0
"""A model's rows on one device, with their gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import NAMES, SH_DEGREES
from gs_train.rows.checked import CheckedRows, write_rows, zero_rows
from gs_train.rows.checks import check_rows, check_sorted
from gs_train.rows.copies import add_rows, take_rows
from gs_train.rows.keys import RowKeys
from gs_train.rows.replacement import Replacement, apart, grown
from gs_train.rows.shown import RowsAtHand

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Builds an optimizer from groups ``{"params": [parameter], "name": name}``."""


class Gaussians(CheckedRows, RowsAtHand):
    """N Gaussians: their parameters, gradient buffers, and one optimizer over them.

    All six attributes, or those of ``names`` where the others are kept elsewhere.

    A `RowOperations`. The optimizer may be any whose per-parameter state is
    ``step`` and tensors whose first dimension is the row, as torch.optim.Adam's are; its state
    tensors follow the rows on whatever device they are, ``step`` is left alone. Parameters stay
    the same objects while their number of rows changes.

    Gradients are collected by hand (`leaves`, `add_gradients`): autograd through full-size
    indexing would write N rows for every view. Changing the number or order of rows drops the
    gradients.

    Row ids are (R,) int32 or int64 on `device`. On the CPU their values are checked. On a GPU
    `leaves`, `add_gradients` and `read` trust them, because looking would make the host wait.

    Attributes:
        keys: of the rows, which they take along; see `RowKeys`.
        params: parameters by name: means (N, 3), scales (N, 3), quats (N, 4), opacities (N,),
            sh0 (N, 1, 3), shN (N, K, 3), float32.
        optimizer: one group per name, ``group["name"]``.
        edits: grows with every row operation: what was derived from the rows before is stale.
        expected: see `Model`; at first the capacity.
    """

    edits = 0

    def __init__(
        self,
        rows: Rows,
        *,
        device: torch.device | str,
        make_optimizer: MakeOptimizer,
        names: tuple[str, ...] = NAMES,
        capacity: int | None = None,
        keys: RowKeys | None = None,
    ) -> None:
        """Copy rows to a device.

        Args:
            rows: the attributes ``names``, float32, on any device.
            device, capacity: as of `CheckedRows`; the model lives there.
            make_optimizer: called once with a list of one group a name; learning rates are its
                affair.
            names: what is held, some of the six names in their order.
            keys: of the rows, on ``device``, taken over; None numbers them from 0.

        Raises:
            TypeError: an attribute is not float32.
            ValueError: names or shapes are others, or the optimizer's groups are.
        """
        if not names or names != tuple(name for name in NAMES if name in names):
            raise ValueError(f"names must be some of {', '.join(NAMES)} in this order, got {names}")
        check_rows(rows, names)
        super().__init__(names, device=device, capacity=capacity)
        self.expected = capacity
        n_rows = len(rows[names[0]])
        self.keys = RowKeys.numbered(n_rows, self._device) if keys is None else keys
        if len(self.keys.values) != n_rows:
            raise ValueError(f"keys must be of {n_rows} rows, got {len(self.keys.values)}")
        self.params: dict[str, torch.nn.Parameter] = {
            name: torch.nn.Parameter(rows[name].detach().to(self._device, copy=True).contiguous())
            for name in names
        }
        self.optimizer = make_optimizer(
            [{"params": [p], "name": n} for n, p in self.params.items()]
        )
        self._columns: dict[str, Tensor] | None = None
        owned = [(g.get("name"), *g["params"]) for g in self.optimizer.param_groups]
        if [name for name, *_ in owned] != list(names) or any(len(group) != 2 for group in owned):
            raise ValueError(
                f"make_optimizer must keep one group for each of {', '.join(names)}, "
                f"got {[name for name, *_ in owned]}"
            )

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """(N, ...) by attribute, without gradients, in the parameters' memory: the same tensors
        until rows change their number or order."""
        if self._columns is None:
            self._columns = {name: param.detach() for name, param in self.params.items()}
        return self._columns

    def __repr__(self) -> str:
        has_sh = "shN" in self._names
        what = f"sh_degree={self.sh_degree}" if has_sh else ", ".join(self._names)
        return f"Gaussians({self.n_rows} rows, {what}, device={self._device})"

    @property
    def n_rows(self) -> int:
        """N."""
        return self.params[self._names[0]].shape[0]  # len() of a tensor takes four times as long

    @property
    def k(self) -> int:
        """K, the width of ``shN``; 0 where it is kept elsewhere."""
        return self.params["shN"].shape[1] if "shN" in self._names else 0

    @property
    def sh_degree(self) -> int:
        """The highest degree of spherical harmonics that ``shN`` has room for.

        Raises:
            KeyError: ``shN`` is kept elsewhere.
        """
        self._check_names(("shN",))
        return SH_DEGREES[self.k]

    def whole(self, name: str) -> Tensor:
        """See `RowOperations.read`; the parameter's own values."""
        return self.params[name].detach()

    def picked(self, ids: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See `RowOperations.read_rows`."""
        return {name: self.params[name].detach().index_select(0, ids) for name in names}

    def snapshot(
        self, ids: slice | Tensor, *, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """See `Model.snapshot`; ids in any order, as `read_rows`."""
        target = self._device if device is None else torch.device(device)
        if isinstance(ids, slice):
            return {n: p.detach()[ids].to(target, copy=True) for n, p in self.params.items()}
        return {name: values.to(target) for name, values in self.read_rows(ids).items()}

    def close(self) -> None:
        """Nothing is in the background."""

    def leaves(self, ids: Tensor) -> dict[str, Tensor]:
        """Copies of rows to render: fresh leaves of autograd, by name.

        Args:
            ids: sorted and unique rows.

        Returns:
            The attributes of the R rows, each requiring a gradient. Give them to
            `add_gradients` after the backward pass.
        """
        check_sorted(ids, self.n_rows, self._device, wait=False)
        taken = take_rows({name: p.detach() for name, p in self.params.items()}, ids)
        return {name: leaf.requires_grad_() for name, leaf in taken.items()}

    def add_gradients(self, ids: Tensor, leaves: Mapping[str, Tensor]) -> None:
        """Add the gradients of leaves to their rows' buffers.

        Args:
            ids: as given to `leaves`.
            leaves: what `leaves` returned, after the backward pass; one without a gradient
                counts as zero.

        Cost: reads and writes R rows. Does not synchronise.
        """
        check_sorted(ids, self.n_rows, self._device, wait=False)
        parts = {name: leaves[name].grad for name in self._names}
        for name, part in parts.items():
            if part is not None and len(part) != len(ids):
                raise ValueError(f"leaves must have {len(ids)} rows, got {len(part)} of {name}")
        ids = ids.long()  # torch's CPU index_add_ is five times slower with int32
        add_rows({name: self._gradient(name) for name in self._names}, parts, ids, ids)

    def zero_gradients(self) -> None:
        """Set all gradient buffers to zero, allocating them if needed."""
        for name in self._names:
            self._gradient(name).zero_()

    def drop_gradients(self) -> None:
        """Give the gradient buffers' memory back until somebody needs them."""
        for param in self.params.values():
            param.grad = None

    def reserve(self, n_rows: int) -> None:
        """Take memory for so many rows, which the capacity allows, and some ahead, where there is
        less.

        Cost: nothing where there is room; else copies the model, one tensor at a time: the peak is
            one tensor more.
        """
        n = self.n_rows
        if n_rows > n:
            self._transform(lambda name, key, old: grown(old, n_rows, self.expected)[:n])
            self.keys.reserve(n_rows, self.expected)

    def brought(self, rows: Rows) -> dict[str, Tensor]:
        """New rows where `put` takes no memory for them: on the device, apart from the others.

        Memory that runs out after one tensor has changed its length would leave others behind.
        """
        return {name: apart(rows[name], param) for name, param in self.params.items()}

    def replace(
        self,
        removed: Tensor,
        rows: Rows | None = None,
        keys: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        """See `RowOperations.replace`. Cost: R + A rows, and what `reserve` costs."""
        change, rows = self._replacement(removed, rows)
        self.keys.check_new(keys, labels, len(change.placed))
        self.put(change, rows, keys, labels)

    @torch.no_grad()
    def put(
        self, change: Replacement, rows: Rows, keys: Tensor | None, labels: Tensor | None
    ) -> None:
        """See `replace`; the arguments have been checked."""
        self.drop_gradients()
        rows = self.brought(rows)
        self.reserve(change.n_after)
        on = cache(change.on)  # an optimizer's state may be on the host
        self._transform(
            lambda name, key, old: on(old.device).edited(old, rows[name] if key is None else 0)
        )
        self.edits += 1
        keys = self.keys.born(len(change.placed)) if keys is None else keys
        self.keys.replace(change, keys, labels)

    @torch.no_grad()
    def reorder(self, order: Tensor) -> None:
        """See `RowOperations.permute`; copies one tensor at a time: the peak is one tensor more."""
        self.edits += 1
        self._transform(lambda name, key, old: old.index_select(0, order.to(old.device)))
        self.keys.select(order)

    @torch.no_grad()
    def write(self, ids: Tensor | None, rows: Rows) -> None:
        """See `RowOperations.overwrite`."""
        self.edits += 1
        write_rows(self.params, ids, rows)

    def in_place(self, name: str) -> Tensor:
        """See `RowOperations.in_place`; any attribute that is here."""
        self._check_names((name,))
        self.edits += 1
        return self.params[name].detach()

    @torch.no_grad()
    def forget(self, ids: Tensor | None, names: tuple[str, ...]) -> None:
        """See `RowOperations.zero_moments`."""
        for name in names:
            state = self._state(name)
            zero_rows((state[key] for key in _row_aligned(state)), ids)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and the optimizer's state under flat names, not copied.

        ``means`` is an attribute, ``means.exp_avg`` and ``means.step`` are what the optimizer
        keeps for it; before the first step there are only attributes. `RowKeys.tensors` are there.
        """
        flat: dict[str, Tensor] = self.keys.tensors()
        for name in self._names:
            flat[name] = self.params[name].detach()
            for key, value in self._state(name).items():
                flat[f"{name}.{key}"] = torch.as_tensor(value)
        return flat

    @torch.no_grad()
    def states(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Model.states`."""
        stored = self._stored_rows().items()
        return {n: v.index_select(0, ids.to(v.device)).to(self._device) for n, v in stored}

    @torch.no_grad()
    def write_states(self, ids: Tensor, states: Mapping[str, Tensor]) -> None:
        """See `Model.write_states`."""
        self.edits += 1
        for name, stored in self._stored_rows().items():
            stored.index_copy_(0, ids.long().to(stored.device), states[name].to(stored.device))

    def _stored_rows(self) -> dict[str, Tensor]:
        """Parameters and the optimizer's tensors that have rows, by the names of `tensors`."""
        stored: dict[str, Tensor] = {}
        for name, param in self.params.items():
            state = self._state(name)
            stored[name] = param.detach()
            stored |= {f"{name}.{key}": state[key] for key in _row_aligned(state)}
        return stored

    def take(self, states: Mapping[str, Tensor]) -> None:
        """Go on from an optimizer's state under flat names; tensors are taken over, not copied."""
        # The optimizer's own way in: it knows which device ``step`` belongs on.
        state_dict = self.optimizer.state_dict()
        state_dict["state"] = {}
        for group in state_dict["param_groups"]:
            prefix = f"{group['name']}."
            state = {n.removeprefix(prefix): v for n, v in states.items() if n.startswith(prefix)}
            if state:
                state_dict["state"][group["params"][0]] = state
        self.optimizer.load_state_dict(state_dict)

    def _state(self, name: str) -> dict[str, Any]:
        # get, because indexing the optimizer's defaultdict would create a state.
        return self.optimizer.state.get(self.params[name], {})

    def _gradient(self, name: str) -> Tensor:
        param = self.params[name]
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        return param.grad

    def _transform(self, transform: Callable[[str, str | None, Tensor], Tensor]) -> None:
        """Replace every tensor by ``transform(name, key, tensor)``; key None is the parameter."""
        self.drop_gradients()
        self._columns = None  # which would keep the replaced tensors alive
        for name, param in self.params.items():
            state = self._state(name)
            # By key: a loop over values would keep the replaced tensors alive to its end.
            for key in _row_aligned(state):
                state[key] = transform(name, key, state[key])
            param.data = transform(name, None, param.data)
            # torch does not count this as a change, and the address may be an old one again.
            torch.autograd.graph.increment_version(param)


def _row_aligned(state: Mapping[str, Any]) -> list[str]:
    """Keys of the tensors whose first dimension is the row."""
    return [
        key
        for key, value in state.items()
        if key != "step" and isinstance(value, Tensor) and value.ndim > 0
    ]
