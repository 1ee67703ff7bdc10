# SPDX-License-Identifier: Apache-2.0
"""Appearance of the Gaussians in the device's memory, updated where batches see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

import gs_adam
from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import APPEARANCE, Semantics, appearance_shapes, columns
from gs_train.rows.checks import (
    check_appended,
    check_capacity,
    check_ids,
    check_overwriting,
    check_permutation,
    check_range,
    check_rows,
    check_sorted,
)
from gs_train.rows.host_state import (
    LAST_STEP,
    MOMENTS,
    check_states,
    flat_schedule,
    schedule_of,
    split_state,
)
from gs_train.rows.host_tables import row_blocks
from gs_train.rows.replacement import Replacement, grown

_CHUNK = 1 << 22
"""Rows whose ids are made at a time where all are caught up."""


class DeviceAppearance:
    """N rows of ``sh0`` and ``shN``, 3 + 3K floats each, with their moments on one device.

    A `RowOperations` for these two attributes, with the values and the state of a
    `HostRows`: a step updates the rows that its batch sees, and rows that sleep are caught up when
    somebody reads or edits them.

    Args:
        rows: ``sh0`` (N, 1, 3) and ``shN`` (N, K, 3), float32, on any device; copied.
        semantics: ``deferred`` or ``sparse``, as `gs_adam.RowSchedule`'s.
        device: where the rows are, and where ids and values are exchanged.
        capacity: the most rows ever; None for as many as memory holds.

    Attributes:
        adam: the schedule of steps, with two groups named ``sh0`` and ``shN``.
        expected: see `Model`; at first the capacity.

    Raises:
        TypeError, ValueError: rows of other names, types or shapes.
    """

    worker = None

    def __init__(
        self,
        rows: Rows,
        *,
        semantics: Semantics,
        device: torch.device | str,
        capacity: int | None = None,
    ) -> None:
        check_rows(rows, APPEARANCE)
        self._device = torch.device(device)
        self._capacity = self.expected = capacity
        self._k = rows["shN"].shape[1]
        n_rows = len(rows["sh0"])
        self.adam = gs_adam.RowSchedule(
            [{"name": name} for name in APPEARANCE],
            semantics=semantics,
            # As gsplat's SelectiveAdam, which corrects nothing.
            bias_correction="off" if semantics == "sparse" else "global",
        )
        widths = [math.prod(shape) for shape in appearance_shapes(self._k).values()]
        self._rows = gs_adam.DeviceRows(self.adam, self._device, widths=widths)
        shape = n_rows, sum(widths)
        self._tables = [
            torch.empty(shape, device=self._device),
            *(torch.zeros(shape, device=self._device) for _ in MOMENTS),
        ]
        for name, values in columns(self.values).items():
            values.copy_(rows[name].detach())
        self._last_step: Tensor | None = None
        if semantics == "deferred":
            self._last_step = torch.zeros(n_rows, dtype=torch.int32, device=self._device)

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        kept = f"{self.n_rows} rows, K={self._k}, {self.adam.semantics}, device={self._device}"
        return f"DeviceAppearance({kept})"

    @property
    def values(self) -> Tensor:
        """(N, 3 + 3K) float32; rows may sleep."""
        return self._tables[0]

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._device

    @property
    def n_rows(self) -> int:
        """N."""
        return len(self.values)

    @property
    def k(self) -> int:
        """K, the width of ``shN``."""
        return self._k

    @property
    def width(self) -> int:
        """Floats of a row, 3 + 3K."""
        return self.values.shape[1]

    # ------------------------------------------------------------------ steps

    def set_rates(self, lr: Mapping[str, float], *, betas: tuple[float, float], eps: float) -> None:
        """Set learning rates by name and Adam's constants for the steps begun from now on."""
        for group in self.adam.param_groups:
            group.update(lr=lr[group["name"]], betas=betas, eps=eps)

    def begin(self) -> int:
        """Begin a step with the rates as they are."""
        return self.adam.begin_step()

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

    def end(self, step: int) -> None:
        """End a step."""
        self.adam.end_step(step)

    def rest(self) -> None:
        """End the steps that are open."""
        for step in self.adam.open_steps:
            self.end(step)

    # ------------------------------------------------------------------ reading

    def read(self, name: str, ids: Tensor | None = None) -> Tensor:
        """Values of one attribute, caught up.

        Args:
            name: ``sh0`` or ``shN``.
            ids: (R,) rows in any order, repeats allowed; None means all.

        Returns:
            (R, ...) copied rows, which stay as they are; with None the stored values themselves,
                not to be written to.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids of another type or
                shape, or (CPU) out of range.
        """
        _check_names((name,))
        if ids is not None:
            return self.read_rows(ids)[name]
        self.rest()
        self._catch_up(None)
        return columns(self.values)[name]

    def read_rows(self, ids: Tensor) -> dict[str, Tensor]:
        """Caught-up copies of rows; nothing is changed, so training goes on to the same bits.

        Args:
            ids: (R,) rows in any order, repeats allowed.

        Returns:
            ``sh0`` (R, 1, 3) and ``shN`` (R, K, 3).

        Raises:
            TypeError, ValueError, IndexError: ids of another type or shape, or (CPU) out of range.
        """
        check_ids(ids, self._device)
        if ids.device.type == "cpu" and len(ids):
            check_range(int(ids.min()), int(ids.max()), self.n_rows)
        self.rest()
        out = self.values.new_empty((len(ids), self.width))
        for part in row_blocks(len(ids), 3 * 4 * self.width):
            out[part] = self._copied(ids[part])
        return columns(out)

    def snapshot(self, ids: slice | Tensor | None = None) -> dict[str, Tensor]:
        """As `read_rows`.

        Args:
            ids: a slice of step 1, or (R,) ids as for `read_rows`, on any device; None means all.
        """
        if isinstance(ids, Tensor):
            return self.read_rows(ids.to(self._device))
        self.rest()
        return columns(self._copied(slice(None) if ids is None else ids))

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
    def replace(self, removed: Tensor, rows: Rows | None = None) -> None:
        """Remove some rows and add others, with zero moments and awake; see
        `RowOperations.replace`.

        Raises:
            TypeError, ValueError, IndexError: as the constructor; ids not sorted and unique or out
                of range; nothing is changed.
            MemoryError: beyond the capacity; nothing is changed.

        Cost: the rows that change; where memory grows, copies the tables, one at a time.
        """
        check_sorted(removed, self.n_rows, self._device, wait=True)
        rows = columns(self.values[:0]) if rows is None else rows
        check_appended(rows, APPEARANCE, self._k)
        change = Replacement.of(self.n_rows, removed, len(rows["sh0"]))
        check_capacity(change.n_after, self._capacity)
        self.rest()
        n, most = change.n_before, self.expected
        self._transform(lambda table: grown(table, change.n_after, most)[:n])
        if self._last_step is not None:
            last_step = grown(self._last_step, change.n_after, most)
            self._last_step = change.edited(last_step, self.adam.step_count)
        self._transform(lambda table: change.edited(table, 0))
        for name, values in columns(self.values).items():
            values.index_copy_(0, change.placed, rows[name].detach().to(self._device))

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` row i, with its moments and its sleep."""
        check_permutation(order, self.n_rows, self._device)
        self._select(order)

    @torch.no_grad()
    def overwrite(self, ids: Tensor | None, rows: Rows) -> None:
        """Write values of some attributes to rows ``ids`` (sorted, unique), or to all; moments
        stay. Brings these rows up to date."""
        if ids is not None:
            check_sorted(ids, self.n_rows, self._device, wait=True)
        n_expected = self.n_rows if ids is None else len(ids)
        check_overwriting(rows, APPEARANCE, n_rows=n_expected, k=self._k)
        self.rest()
        self._catch_up(ids)
        stored = columns(self.values)
        for name, values in rows.items():
            if ids is None:
                stored[name].copy_(values)
            else:
                stored[name].index_copy_(0, ids.long(), values.to(self._device))

    @torch.no_grad()
    def zero_moments(
        self, ids: Tensor | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """Forget moments of some rows and attributes; all of them when None. Brings these rows up
        to date."""
        chosen = APPEARANCE if names is None else tuple(names)
        _check_names(chosen)
        if ids is not None:
            check_sorted(ids, self.n_rows, self._device, wait=True)
        self.rest()
        self._catch_up(ids)
        for table in self._tables[1:]:
            moments = columns(table)
            for name in chosen:
                if ids is None:
                    moments[name].zero_()
                else:
                    moments[name].index_fill_(0, ids.long(), 0.0)

    # ------------------------------------------------------------------ checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Rows and optimizer state under flat names, not copied, as `HostRows.tensors`."""
        self.rest()
        flat = columns(self.values)
        if self.adam.step_count == 0:
            return flat
        for name in APPEARANCE:
            flat[f"{name}.step"] = torch.tensor(float(self.adam.step_count))
        flat |= self._moments()
        packed = self.adam.state_dict()["schedule"]
        if self._last_step is not None and packed:
            flat[LAST_STEP] = self._last_step
            flat |= flat_schedule(dict(zip(APPEARANCE, packed, strict=True)))
        return flat

    def targets(self, shapes: Iterable[str]) -> dict[str, Tensor]:
        """What values and states of these names are read into, as far as they are stored here."""
        stored = columns(self.values) | self._moments()
        if self._last_step is not None:
            stored[LAST_STEP] = self._last_step
        return {name: value for name, value in stored.items() if name in set(shapes)}

    def take(self, states: Mapping[str, Tensor]) -> None:
        """Go on from states that have been read, those of `targets` into their places.

        Raises:
            ValueError: something is missing, or rows sleep and may not.
        """
        check_states(states, {name: columns(self.values)[name].shape for name in APPEARANCE})
        if not states:
            return
        if LAST_STEP in states and self._last_step is None:
            raise ValueError("rows must be awake where semantics is sparse, got rows that sleep")
        step = int(states["sh0.step"])
        schedule = []
        if LAST_STEP in states:
            schedule = [schedule_of(states, name) for name in APPEARANCE]
        elif self._last_step is not None:
            self._last_step.fill_(step)
        self.adam.load_state_dict({"step": step, "schedule": schedule})

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        *,
        semantics: Semantics,
        device: torch.device | str,
        capacity: int | None = None,
    ) -> DeviceAppearance:
        """The rows whose `tensors` these were, or those of a `HostRows`, bit for bit.

        Raises:
            TypeError, ValueError: as `HostRows.from_tensors`.
        """
        rows, states = split_state(tensors, APPEARANCE)
        made = cls(rows, semantics=semantics, device=device, capacity=capacity)
        for name, target in made.targets(states).items():
            target.copy_(states[name])
        made.take(states)
        return made

    def close(self) -> None:
        """Nothing runs in the background."""

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": values
            for key, table in zip(MOMENTS, self._tables[1:], strict=True)
            for name, values in columns(table).items()
        }

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

    def _select(self, ids: Tensor) -> None:
        self.rest()
        self._transform(lambda table: table.index_select(0, ids))
        if self._last_step is not None:
            self._last_step = self._last_step.index_select(0, ids)

    def _transform(self, transform: Callable[[Tensor], Tensor]) -> None:
        """Replace the tables one by one: the memory of two is never needed beside them."""
        for k in range(len(self._tables)):
            self._tables[k] = transform(self._tables[k])


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in APPEARANCE:
            raise KeyError(f"name must be one of {', '.join(APPEARANCE)}, got {name}")
