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
            places: (R,) int64 of the rows in these.
        """
        param, exp_avg, exp_avg_sq = (tables[self._plane + moment][places] for moment in MOMENTS)
        if len(places):
            ids = torch.arange(len(places), device=places.device)
            last_step = tables["last_step"][places, 0]
            self._rows.flush(param, exp_avg, exp_avg_sq, ids, last_step, ids)
        parts = zip(self._shapes.items(), param.split(self._widths, 1), strict=True)
        n = len(places)
        return {name: part.reshape(n, *shape).contiguous() for (name, shape), part in parts}

    def begin(self, rates: Mapping[str, float]) -> None:
        """Begin a step."""
        for group, name in zip(self.schedule.param_groups, self._shapes, strict=True):
            group["lr"] = rates[name]
        self._step = self.schedule.begin_step()

    def update(self, tables: Mapping[str, Tensor], places: Tensor, gradients: Rows) -> None:
        """Take the step of some rows in their tables, catching up in the same pass."""
        widths = zip(self._shapes, self._widths, strict=True)
        parts = [gradients[name].reshape(len(places), width) for name, width in widths]
        own = [tables[self._plane + moment] for moment in MOMENTS]
        if not len(places):
            return
        ids = torch.arange(len(places), device=places.device)
        last_step = tables["last_step"][places, 0]
        self._rows.update(*own, places, last_step, ids, torch.cat(parts, 1), step=self._step)

    def end(self) -> None:
        """End the step."""
        self.schedule.end_step(self._step)


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
