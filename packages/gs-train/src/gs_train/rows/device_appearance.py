# SPDX-License-Identifier: Apache-2.0
"""Appearance of the Gaussians in the device's memory, updated where batches see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import gs_adam
from gs_train.renderers.protocol import Rows
from gs_train.rows.appearance import AppearanceRows, by_name, columns_of, kind_of_adam
from gs_train.rows.attributes import APPEARANCE, Semantics, appearance_shapes, columns
from gs_train.rows.checked import write_rows, zero_rows
from gs_train.rows.checks import check_slice
from gs_train.rows.host_tables import row_blocks
from gs_train.rows.replacement import Replacement, apart, grown
from gs_train.rows.saved_state import LAST_STEP, MOMENTS

_CHUNK = 1 << 22
"""Rows whose ids are made at a time where all are caught up."""


class DeviceAppearance(AppearanceRows):
    """`AppearanceRows` with their moments on one device.

    Values and state are those of a `HostRows`: a step updates the rows that its batch sees, and
    rows that sleep are caught up when somebody reads or edits them.

    Args:
        rows: as of `AppearanceRows`; copied.
        semantics: ``deferred`` or ``sparse``, as `gs_adam.RowSchedule`'s.
        device, capacity: as of `CheckedRows`; the rows are there, too.

    Attributes:
        adam: the schedule of steps, with two groups named ``sh0`` and ``shN``.
        expected: see `Model`; at first the capacity.

    Raises:
        TypeError, ValueError: rows of other names, types or shapes.
    """

    worker = None
    adam: gs_adam.RowSchedule

    def __init__(
        self,
        rows: Rows,
        *,
        semantics: Semantics,
        device: torch.device | str,
        capacity: int | None = None,
    ) -> None:
        super().__init__(rows, device=device, capacity=capacity)
        self.expected = capacity
        n_rows = len(rows["sh0"])
        self.adam = gs_adam.RowSchedule(
            [{"name": name} for name in APPEARANCE], **kind_of_adam(semantics)
        )
        widths = [math.prod(shape) for shape in appearance_shapes(self._k).values()]
        self._rows = gs_adam.DeviceRows(self.adam, self._device, widths=widths)
        shape = n_rows, self.width
        self._tables = [
            torch.empty(shape, device=self._device),
            *(torch.zeros(shape, device=self._device) for _ in MOMENTS),
        ]
        self._columns: Mapping[str, Tensor] | None = None
        for name, values in self.columns.items():
            values.copy_(rows[name].detach())
        self._last_step: Tensor | None = None
        if semantics == "deferred":
            self._last_step = torch.zeros(n_rows, dtype=torch.int32, device=self._device)

    def __repr__(self) -> str:
        kept = f"{self.n_rows} rows, K={self._k}, {self.adam.semantics}, device={self._device}"
        return f"DeviceAppearance({kept})"

    @property
    def values(self) -> Tensor:
        """(N, 3 + 3K) float32; rows may sleep."""
        return self._tables[0]

    @property
    def columns(self) -> Mapping[str, Tensor]:
        """(N, ...) ``sh0`` and ``shN``, the same; rows may sleep. The same tensors until rows
        change their number or order."""
        if self._columns is None:
            self._columns = columns(self.values)
        return self._columns

    @property
    def n_rows(self) -> int:
        """N."""
        return self.values.shape[0]

    # ------------------------------------------------------------------ steps

    def wake(
        self, ids: Tensor, step: int, marks: Tensor | None, counts: Tensor | None = None
    ) -> None:
        """Make rows what an open step begins with; see `gs_adam.DeviceRows.wake`."""
        self._rows.wake(
            *self._tables, ids, self._last_step, ids, step=step, marks=marks, counts=counts
        )

    def update(self, ids: Tensor, gradients: Tensor, step: int, marks: Tensor | None) -> None:
        """Take a step with the gradients, (U, W), of the rows that `wake` was given."""
        self._rows.update(
            *self._tables, ids, self._last_step, ids, gradients, step=step, marks=marks
        )

    def rest(self) -> None:
        """See `AppearanceRows.rest`."""
        for step in self.adam.open_steps:
            self.end(step)

    # ------------------------------------------------------------------ reading

    def whole(self, name: str) -> Tensor:
        """See `RowOperations.read`; the stored values."""
        self.rest()
        self._catch_up(None)
        return columns(self.values)[name]

    def picked(self, ids: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See `RowOperations.read_rows`."""
        self.rest()
        out = self.values.new_empty((len(ids), self.width))
        for part in row_blocks(len(ids), 3 * 4 * self.width):
            out[part] = self._copied(ids[part])
        read = columns(out)
        return {name: read[name] for name in names}

    def snapshot(self, ids: slice = slice(None)) -> dict[str, Tensor]:
        """See `AppearanceRows.snapshot`."""
        check_slice(ids, self.n_rows)
        self.rest()
        return columns(self._copied(ids))

    def _copied(self, ids: slice | Tensor) -> Tensor:
        """(R, W) caught-up values."""

        def copied(table: Tensor) -> Tensor:
            return table[ids].clone() if isinstance(ids, slice) else table.index_select(0, ids)

        tables = [copied(table) for table in self._tables]
        if self._last_step is not None and self.adam.step_count:
            last_step = copied(self._last_step)
            own = torch.arange(len(last_step), dtype=torch.int32, device=self._device)
            self._rows.flush(*tables, own, last_step, own)
        return tables[0]

    # ------------------------------------------------------------------ row operations

    @torch.no_grad()
    def put(self, change: Replacement, rows: Rows) -> None:
        """See `replace`. Cost: the rows that change; where memory grows, copies the tables, one at
        a time."""
        self.rest()
        new = {name: apart(rows[name], self.values) for name in APPEARANCE}
        n, most = change.n_before, self.expected
        self._transform(lambda table: grown(table, change.n_after, most)[:n])
        if self._last_step is not None:
            last_step = grown(self._last_step, change.n_after, most)
            self._last_step = change.edited(last_step, self.adam.step_count)
        self._transform(lambda table: change.edited(table, 0))
        for name, values in columns(self.values).items():
            values.index_copy_(0, change.placed, new[name])

    def reorder(self, order: Tensor) -> None:
        """See `RowOperations.permute`."""
        self.rest()
        self._transform(lambda table: table.index_select(0, order))
        if self._last_step is not None:
            self._last_step = self._last_step.index_select(0, order)

    @torch.no_grad()
    def write(self, ids: Tensor | None, rows: Rows) -> None:
        """See `RowOperations.overwrite`."""
        self.rest()
        self._catch_up(ids)
        write_rows(columns(self.values), ids, rows)

    @torch.no_grad()
    def forget(self, ids: Tensor | None, names: tuple[str, ...]) -> None:
        """See `RowOperations.zero_moments`."""
        self.rest()
        self._catch_up(ids)
        zero_rows(columns_of(self._tables[1:], names), ids)

    # ------------------------------------------------------------------ checkpoints

    def _stored(self) -> tuple[list[Tensor], Tensor | None]:
        return self._tables, self._last_step

    def _schedule(self) -> list[dict[str, Any]]:
        return self.adam.state_dict()["schedule"]

    def targets(self) -> dict[str, Tensor]:
        """See `AppearanceRows.targets`."""
        stored = by_name(self._tables)
        return stored if self._last_step is None else {**stored, LAST_STEP: self._last_step}

    def _restore(self, states: Mapping[str, Tensor], packed: list[dict[str, Any]]) -> None:
        if packed and self._last_step is None:
            raise ValueError("rows must be awake where semantics is sparse, got rows that sleep")
        step = int(states["sh0.step"])
        if not packed and self._last_step is not None:
            self._last_step.fill_(step)
        self.adam.load_state_dict({"step": step, "schedule": packed})

    def close(self) -> None:
        """Nothing runs in the background."""

    def _catch_up(self, ids: Tensor | None) -> None:
        if self._last_step is None or not self.adam.step_count:
            return
        if ids is not None:
            self._rows.flush(*self._tables, ids, self._last_step, ids)
            return
        for first in range(0, self.n_rows, _CHUNK):
            last = min(first + _CHUNK, self.n_rows)
            part = torch.arange(first, last, dtype=torch.int32, device=self._device)
            self._rows.flush(*self._tables, part, self._last_step, part)

    def _transform(self, transform: Callable[[Tensor], Tensor]) -> None:
        """Replace the tables one by one: the memory of two is never needed beside them."""
        self._columns = None  # which would keep the replaced table alive
        for k in range(len(self._tables)):
            self._tables[k] = transform(self._tables[k])
