# SPDX-License-Identifier: Apache-2.0
"""What rows of ``sh0`` and ``shN`` have in common, on the host and on the device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import gs_adam
from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import APPEARANCE, Semantics, columns
from gs_train.rows.checked import CheckedRows, write_rows
from gs_train.rows.checks import check_rows
from gs_train.rows.replacement import Replacement
from gs_train.rows.saved_state import LAST_STEP, MOMENTS, flat_schedule, schedule_of


class AppearanceRows(CheckedRows):
    """N rows of ``sh0`` and ``shN``, 3 + 3K floats each, with an optimizer that may let rows sleep.

    The methods of `RowOperations` for these two attributes, without keys: those are the
    geometry's. What is read or edited is caught up first, rows that only move are not.

    Args:
        rows: ``sh0`` (N, 1, 3) and ``shN`` (N, K, 3), float32, on any device; copied by subclasses.
        device, capacity: as of `CheckedRows`.

    Attributes:
        adam: the optimizer or its schedule of steps, with two groups named ``sh0`` and ``shN``.

    Raises:
        TypeError, ValueError: rows of other names, types or shapes.
    """

    adam: gs_adam.HostAdam | gs_adam.RowSchedule

    def __init__(self, rows: Rows, *, device: torch.device | str, capacity: int | None) -> None:
        check_rows(rows, APPEARANCE)
        super().__init__(APPEARANCE, device=device, capacity=capacity)
        self._k = rows["shN"].shape[1]

    @property
    def k(self) -> int:
        """K, the width of ``shN``."""
        return self._k

    @property
    def width(self) -> int:
        """Floats of a row, 3 + 3K."""
        return 3 + 3 * self._k

    def set_rates(self, lr: Mapping[str, float], *, betas: tuple[float, float], eps: float) -> None:
        """Set learning rates by name and Adam's constants for the steps begun from now on."""
        for group in self.adam.param_groups:
            group.update(lr=lr[group["name"]], betas=betas, eps=eps)

    def begin(self) -> int:
        """Begin a step with the rates as they are; its number goes with updates and to `end`."""
        return self.adam.begin_step()

    def end(self, step: int) -> None:
        """End a step: all its updates have been submitted.

        Raises:
            ValueError: it is not open (`rest` ends open steps too), or an earlier one is.
            Exception: what a task of a worker raised; the step has ended.
        """
        self.adam.end_step(step)

    def replace(self, removed: Tensor, rows: Rows | None = None) -> None:
        """See `RowOperations.replace`."""
        self.put(*self._replacement(removed, rows))

    @abstractmethod
    def rest(self) -> None:
        """End the steps that are open."""

    @abstractmethod
    def put(self, change: Replacement, rows: Rows) -> None:
        """See `replace`; the arguments have been checked."""

    @abstractmethod
    def snapshot(self, ids: slice = slice(None)) -> dict[str, Tensor]:
        """Caught-up copies of a slice of step 1, where the rows are: ``sh0`` (R, 1, 3) and ``shN``
        (R, K, 3). Nothing is changed, so training goes on to the same bits.

        Raises:
            ValueError: a slice of another step.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Rows and optimizer state under flat names, not copied, sleeping rows as they are.

        Names are those of `gs_train.rows.gaussians.Gaussians.tensors`. Deferred semantics adds
        ``appearance.last_step`` (N,) int32 and ``appearance.schedule.*``, without which the other
        values of a row that sleeps mean little. Before the first step there are only attributes.
        """
        self.rest()
        tables, last_step = self._stored()
        if self.adam.step_count == 0:
            return columns(tables[0])
        flat = by_name(tables)
        for name in APPEARANCE:
            flat[f"{name}.step"] = torch.tensor(float(self.adam.step_count))
        packed = self._schedule()
        if last_step is not None and packed:  # else no step since rows were all up to date
            flat[LAST_STEP] = last_step
            flat |= flat_schedule(dict(zip(APPEARANCE, packed, strict=True)))
        return flat

    @torch.no_grad()
    def states(self, ids: Tensor) -> dict[str, Tensor]:
        """See `gs_train.rows.operations.Model.states`."""
        self.rest()
        tables, last_step = self._stored()
        ids = ids.to(tables[0].device)
        states = by_name([table.index_select(0, ids) for table in tables])
        if last_step is not None:
            states[LAST_STEP] = last_step.index_select(0, ids)
        return {name: values.to(self._device) for name, values in states.items()}

    @torch.no_grad()
    def write_states(self, ids: Tensor, states: Mapping[str, Tensor]) -> None:
        """See `gs_train.rows.operations.Model.write_states`."""
        self.rest()
        tables, last_step = self._stored()
        stored = by_name(tables)
        if last_step is not None:
            stored[LAST_STEP] = last_step
        write_rows(stored, ids.to(tables[0].device), states)

    @abstractmethod
    def _stored(self) -> tuple[list[Tensor], Tensor | None]:
        """(N, W) values, first and second moments; (N,) int32 last steps, None where rows do not
        sleep."""

    @abstractmethod
    def _schedule(self) -> list[dict[str, Any]]:
        """The steps of each group, as `gs_adam` packs them; empty where all rows are up to date."""

    @abstractmethod
    def targets(self) -> dict[str, Tensor]:
        """Tensors of this object, by the names of `tensors`, that a checkpoint may be read into."""

    def take(self, states: Mapping[str, Tensor]) -> None:
        """Go on from states that have been read, those of `targets` into their places.

        Rows without last steps, of dense or sparse semantics, are taken as up to date.

        Raises:
            ValueError: something is missing, rows sleep and may not, or a row's last step is none
                of those that were taken.
        """
        for name in APPEARANCE:
            keys = [key for key in ("step", *MOMENTS) if f"{name}.{key}" in states]
            if keys and len(keys) != 1 + len(MOMENTS):
                raise ValueError(f"tensors must hold step and moments of {name}, got {keys}")
        packed = [schedule_of(states, name) for name in APPEARANCE] if LAST_STEP in states else []
        if packed and "sh0.step" in states:
            _check_last_steps(states[LAST_STEP], int(states["sh0.step"]))
        if any(f"{name}.step" in states for name in APPEARANCE):
            self._restore(states, packed)

    @abstractmethod
    def _restore(self, states: Mapping[str, Tensor], packed: list[dict[str, Any]]) -> None:
        """See `take`; ``packed``: what `_schedule` gave, empty where no last steps were saved."""

    @abstractmethod
    def close(self) -> None:
        """End work in the background and give the host's memory back."""


def _check_last_steps(last_step: Tensor, step: int) -> None:
    if len(last_step):
        first, last = (int(end) for end in last_step.aminmax())
        if first < 0 or last > step:
            raise ValueError(f"{LAST_STEP} must be from 0 to {step}, got {first} to {last}")


def kind_of_adam(semantics: Semantics) -> dict[str, Any]:
    """Options of the optimizer: gsplat's SelectiveAdam, which is sparse, corrects no bias."""
    return {
        "semantics": semantics,
        "bias_correction": "off" if semantics == "sparse" else "global",
    }


def by_name(tables: Sequence[Tensor]) -> dict[str, Tensor]:
    """Views of values, first and second moments, (N, W) each, by the names of a checkpoint."""
    values, *moments = map(columns, tables)
    states = {
        f"{name}.{key}": part
        for key, table in zip(MOMENTS, moments, strict=True)
        for name, part in table.items()
    }
    return values | states


def columns_of(tables: Sequence[Tensor], names: Iterable[str]) -> Iterator[Tensor]:
    """Views of some attributes in (N, W) tables."""
    return (columns(table)[name] for table in tables for name in names)
