# SPDX-License-Identifier: Apache-2.0
"""The door of the rows: arguments are checked once, then each kind of rows does what it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import row_shapes
from gs_train.rows.checks import (
    check_ids,
    check_overwriting,
    check_permutation,
    check_range,
    check_rows,
    check_sorted,
)
from gs_train.rows.replacement import Replacement


class CheckedRows(ABC):
    """Rows with the methods of `RowOperations`, of some of the attributes, which check arguments.

    A kind of rows adds what is done with arguments that have been checked: `whole`, `picked`,
    `reorder`, `write` and `forget`, which trust them. Rows in several parts are checked as a whole,
    and then call these of their parts.

    Args:
        names: the attributes that are held, in the order of `NAMES`.
        device: where ids and values are exchanged.
        capacity: the most rows ever; None for as many as memory holds.

    Attributes:
        before_replacing: see `Model`.
    """

    def __init__(
        self, names: tuple[str, ...], *, device: torch.device | str, capacity: int | None
    ) -> None:
        self._names = names
        self._device = torch.device(device)
        self._capacity = capacity
        self.before_replacing: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return self.n_rows

    @property
    def device(self) -> torch.device:
        """Where ids and values are exchanged."""
        return self._device

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """N."""

    @property
    @abstractmethod
    def k(self) -> int:
        """K, the width of ``shN``; 0 where it is kept elsewhere."""

    # ------------------------------------------------------------------ checked

    def read(self, name: str, ids: Tensor | None = None) -> Tensor:
        """See `RowOperations.read`."""
        self._check_names((name,))
        if ids is None:
            return self.whole(name)
        self._check_any(ids)
        return self.picked(ids, (name,))[name]

    def read_rows(self, ids: Tensor) -> dict[str, Tensor]:
        """See `RowOperations.read_rows`."""
        self._check_any(ids)
        return self.picked(ids, self._names)

    def permute(self, order: Tensor) -> None:
        """See `RowOperations.permute`."""
        check_permutation(order, self.n_rows, self._device)
        self.reorder(order)

    def overwrite(self, ids: Tensor | None, rows: Rows) -> None:
        """See `RowOperations.overwrite`."""
        self._check_sorted(ids)
        n_expected = self.n_rows if ids is None else len(ids)
        check_overwriting(rows, self._names, n_rows=n_expected, k=self.k)
        self.write(ids, rows)

    def zero_moments(
        self, ids: Tensor | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """See `RowOperations.zero_moments`."""
        chosen = self._names if names is None else tuple(names)
        self._check_names(chosen)
        self._check_sorted(ids)
        self.forget(ids, chosen)

    def _replacement(self, removed: Tensor, rows: Rows | None) -> tuple[Replacement, Rows]:
        """What `RowOperations.replace` is asked to do, checked; but for the keys."""
        self._check_sorted(removed)
        if rows is None:
            shapes = row_shapes(self.k)
            rows = {n: torch.empty((0, *shapes[n]), device=self._device) for n in self._names}
        check_rows(rows, self._names)
        if "shN" in self._names and rows["shN"].shape[1] != self.k:
            raise ValueError(f"shN must be (R, {self.k}, 3), got {tuple(rows['shN'].shape)}")
        change = Replacement.of(self.n_rows, removed, len(rows[self._names[0]]))
        if self._capacity is not None and change.n_after > self._capacity:
            raise MemoryError(
                f"host memory is there for {self._capacity:,} rows, not {change.n_after:,}"
            )
        self.before_replacing()
        return change, rows

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._names:
                raise KeyError(f"name must be one of {', '.join(self._names)}, got {name}")

    def _check_any(self, ids: Tensor) -> None:
        """In any order; looking at values on a GPU would make the host wait for it."""
        check_ids(ids, self._device)
        if ids.device.type == "cpu" and len(ids):
            check_range(int(ids.min()), int(ids.max()), self.n_rows)

    def _check_sorted(self, ids: Tensor | None) -> None:
        if ids is not None:
            check_sorted(ids, self.n_rows, self._device, wait=True)

    # ------------------------------------------------------------------ trusting

    @abstractmethod
    def whole(self, name: str) -> Tensor:
        """(N, ...) present values of one attribute on `device`, see `read`."""

    @abstractmethod
    def picked(self, ids: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Copies of attributes of rows, see `read_rows`."""

    @abstractmethod
    def reorder(self, order: Tensor) -> None:
        """See `permute`."""

    @abstractmethod
    def write(self, ids: Tensor | None, rows: Rows) -> None:
        """See `overwrite`."""

    @abstractmethod
    def forget(self, ids: Tensor | None, names: tuple[str, ...]) -> None:
        """See `zero_moments`."""


def write_rows(stored: Mapping[str, Tensor], ids: Tensor | None, rows: Rows) -> None:
    """Write values, on any device, of some attributes of rows ``ids``, or of all."""
    for name, values in rows.items():
        if ids is None:
            stored[name].copy_(values)
        else:
            stored[name].index_copy_(0, ids.long(), values.to(stored[name].device))


def zero_rows(tensors: Iterable[Tensor], ids: Tensor | None) -> None:
    """Zero rows ``ids`` of tensors on any device, or all."""
    for tensor in tensors:
        if ids is None:
            tensor.zero_()
        else:
            tensor.index_fill_(0, ids.long().to(tensor.device), 0.0)


def _nothing() -> None:
    """Nobody keeps memory."""
