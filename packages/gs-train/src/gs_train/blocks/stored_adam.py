# SPDX-License-Identifier: Apache-2.0
"""Adam for rows in the tables of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gs_adam import DeviceRows, RowSchedule
from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.stored_state import within
from gs_train.renderers import Rows
from gs_train.rows.attributes import GEOMETRY, row_shapes


class StoredAdam:
    """Steps of the attributes that lie side by side in a table, and looks at what they will be.

    Args:
        names: of the attributes: those of geometry, or of appearance.
        k: harmonics of a row beside the first.
        betas, eps: of all steps.
        state: of the schedule, from a snapshot; empty before the first step.
        device: of the tables.

    Attributes:
        schedule: of the steps so far.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        k: int,
        betas: tuple[float, float],
        eps: float,
        state: dict[str, np.ndarray],
        device: torch.device,
    ) -> None:
        self._plane = "geometry" if names == GEOMETRY else "appearance"
        self._shapes = {name: row_shapes(k)[name] for name in names}
        self._widths = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes.values()]
        options = {"lr": 0.0, "betas": betas, "eps": eps}
        self.schedule = RowSchedule([dict(options) for _ in names])
        if state:
            self.schedule.load_state_dict(_schedule_of(state))
        self._rows = DeviceRows(self.schedule, device, widths=self._widths)

    def lookahead(self, tables: Mapping[str, Tensor], places: Tensor) -> dict[str, Tensor]:
        """Values of some rows after the last step, caught up out of place.

        Args:
            tables: by plane.
            places: (R,) int32 or int64 of the rows in these, distinct.
        """
        own = [tables[self._plane + moment] for moment in MOMENTS]
        last_step = tables["last_step"].view(-1)
        parts = self._rows.lookahead(*own, places, last_step, places)
        return {
            name: part.view(len(places), *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def begin(self, rates: Mapping[str, float]) -> None:
        """Begin a step."""
        for group, name in zip(self.schedule.param_groups, self._shapes, strict=True):
            group["lr"] = rates[name]
        self._step = self.schedule.begin_step()

    def update(
        self,
        tables: Mapping[str, Tensor],
        places: Tensor,
        gradients: Rows,
        last_step: Tensor,
        ids: Tensor,
        marks: Tensor | None = None,
    ) -> None:
        """Take the step of some rows in their tables, catching up in the same pass.

        Args:
            tables: by plane.
            places: (R,) int32 or int64 of the rows in these, distinct.
            gradients: (R, ...) by attribute.
            last_step: int32, when each row was updated last; becomes the step.
            ids: (R,) where the rows are in ``last_step``.
            marks: (R,) bool, rows that take the step; None: all do.
        """
        if not len(places):
            return
        own = [tables[self._plane + moment] for moment in MOMENTS]
        grads = _side_by_side([gradients[name] for name in self._shapes], self._widths)
        self._rows.update(*own, places, last_step, ids, grads, step=self._step, marks=marks)

    def end(self) -> None:
        """End the step."""
        self.schedule.end_step(self._step)


def _side_by_side(parts: list[Tensor], widths: list[int]) -> Tensor:
    """(R, W) the parts of R rows one beside the other: the table that they are columns of, if they
    are all of its columns from one to another, in this order; else a copy."""
    flat = [part.reshape(len(part), width) for part, width in zip(parts, widths, strict=True)]
    flat = [part for part in flat if part.shape[1]]
    first, end = flat[0], flat[0].data_ptr()
    for part in flat:
        is_next = part.data_ptr() == end and part.stride() == (first.stride(0), 1)
        if not is_next or part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(flat, 1)
        end += part.shape[1] * part.element_size()
    return first.as_strided((len(first), sum(widths)), (first.stride(0), 1))


def _schedule_of(state: dict[str, np.ndarray]) -> dict[str, Any]:
    """A state dict of `RowSchedule` from its flat arrays."""
    groups: list[dict[str, Any]] = []
    while own := within(state, f"schedule/{len(groups)}"):
        groups.append(
            {
                name: float(array) if array.ndim == 0 else torch.from_numpy(array.copy())
                for name, array in own.items()
            }
        )
    return {"step": int(state["step"]), "schedule": groups}
