# SPDX-License-Identifier: Apache-2.0
"""The door of the rows: arguments are checked once, then each kind of rows does what it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import row_shapes
from gs_train.rows.checks import (
    check_appended,
    check_capacity,
    check_ids,
    check_overwriting,
    check_permutation,
    check_range,
    check_sorted,
)
from gs_train.rows.replacement import Replacement


class CheckedRows(ABC):
    """Rows with the checked methods of `RowOperations`; a call that is refused changes nothing.

    A kind of rows adds what is done with arguments that have been checked: `whole`, `picked`,
    `reorder`, `write` and `forget`, which trust them. Rows in several parts are checked as a whole,
    and then call these of their parts.

    Args:
        names: the attributes that are held, in the order of `NAMES`.
        device: where ids and values are exchanged.
        capacity: the most rows ever; None for as many as memory holds.
    """

    def __init__(
        self, names: tuple[str, ...], *, device: torch.device | str, capacity: int | None
    ) -> None:
        self._names = names
        self._device = torch.device(device)
        self._capacity = capacity

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
        """Values of one attribute on `device`, caught up.

        Args:
            name: of the attribute.
            ids: (R,) rows in any order, repeats allowed; None means all.

        Returns:
            (R, ...) copied rows; with None (N, ...), the stored values themselves where they are
            on `device`, not to be written to.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids of another type
                or shape, or out of range, which is looked at on the CPU and by the host's rows.
        """
        self._check_names((name,))
        if ids is None:
            return self.whole(name)
        self._check_any(ids)
        return self.picked(ids, (name,))[name]

    def read_rows(self, ids: Tensor) -> dict[str, Tensor]:
        """Caught-up copies of all attributes of rows ``ids`` on `device`, by name. Nothing is
        changed, so training goes on to the same bits.

        Args:
            ids: (R,) rows in any order, repeats allowed.

        Raises:
            TypeError, ValueError, IndexError: as `read`.
        """
        self._check_any(ids)
        return self.picked(ids, self._names)

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` row i, with its moments and its sleep.

        Args:
            order: (N,) int32 or int64, a permutation.

        Raises:
            TypeError, ValueError: it is not one.

        Cost: one pass over the rows. Synchronises.
        """
        check_permutation(order, self.n_rows, self._device)
        self.reorder(order)

    def overwrite(self, ids: Tensor | None, rows: Rows) -> None:
        """Write values of some attributes; moments stay, and rows are up to date then.

        Args:
            ids: (R,) sorted and unique rows; None means all N.
            rows: any of the attributes, R rows each, on any device.

        Raises:
            TypeError, ValueError, IndexError: other names, types or shapes, ids not sorted and
                unique or out of range.
        """
        self._check_sorted(ids)
        n_expected = self.n_rows if ids is None else len(ids)
        check_overwriting(rows, self._names, n_rows=n_expected, k=self.k)
        self.write(ids, rows)

    def zero_moments(
        self, ids: Tensor | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """Forget what the optimizer gathered about some rows, which are up to date then; the step
        count stays.

        Args:
            ids: (R,) sorted and unique rows; None means all.
            names: attributes; None means all.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids as for `overwrite`.
        """
        chosen = self._names if names is None else tuple(names)
        self._check_names(chosen)
        self._check_sorted(ids)
        self.forget(ids, chosen)

    def _replacement(self, removed: Tensor, rows: Rows | None) -> tuple[Replacement, Rows]:
        """What `RowOperations.replace` is asked to do, checked.

        Args:
            removed: (R,) sorted and unique rows.
            rows: the attributes of A rows, float32, on any device, K as here; None for none.

        Raises:
            TypeError, ValueError, IndexError: other names, types or shapes; ids not sorted and
                unique or out of range.
            MemoryError: beyond the capacity.
        """
        self._check_sorted(removed)
        if rows is None:
            shapes = row_shapes(self.k)
            rows = {n: torch.empty((0, *shapes[n]), device=self._device) for n in self._names}
        check_appended(rows, self._names, self.k)
        change = Replacement.of(self.n_rows, removed, len(rows[self._names[0]]))
        check_capacity(change.n_after, self._capacity)
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
