# SPDX-License-Identifier: Apache-2.0
"""Geometry in blocks that sleeps: exact lists of a batch's rows, and updates of these rows alone.

The definition of what a tier of blocks does, on the CPU and with all rows at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gs_adam import DeviceRows, RowSchedule
from gs_cull import Visibility
from gs_train.blocks.boxes import BlockBoxes, SleepingValues
from gs_train.blocks.partition import Ids, kd_partition
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import GEOMETRY, GEOMETRY_WIDTH, SHAPES

_WIDTHS = [int(np.prod(SHAPES[name], dtype=np.int64)) for name in GEOMETRY]


@dataclass(frozen=True, eq=False)
class Sight:
    """What a batch sees.

    Attributes:
        candidates: the blocks that each view may see.
        places: (U,) int64 sorted places of the rows that some view sees.
        visible: the rows of each view; ids are positions among the rows of all `candidates`.
        geometry: of the U rows, after the last step.
    """

    candidates: Visibility
    places: Tensor
    visible: Visibility
    geometry: dict[str, Tensor]


class SleepingGeometry:
    """Rows of geometry by block, each with its moments and the last step that updated it.

    Between steps `look` finds what a batch sees; `update` takes a step of these rows.

    Args:
        rows: means, scales, quats and opacities of N rows, on the CPU.
        keys: (N,) int32, all different.
        block_rows: most rows of a block.
        betas, eps: Adam's, of all steps.
        ceilings: by attribute, no step has a larger rate.

    Attributes:
        keys: (N,) int32 by place.
        table, exp_avg, exp_avg_sq: (N, 11) by place: the values as the last step of each row left
            them.
        last_step: (N,) int32 by place.
        boxes: of the blocks.
    """

    def __init__(
        self,
        rows: Rows,
        keys: Tensor,
        *,
        block_rows: int,
        betas: tuple[float, float],
        eps: float,
        ceilings: Mapping[str, float],
    ) -> None:
        self.partition = kd_partition(
            rows["means"].numpy(), rows["scales"].numpy(), keys.numpy(), block_rows
        )
        order = torch.from_numpy(self.partition.rows)
        n = len(order)
        self.keys = keys[order]
        self.table = torch.cat([rows[name][order].reshape(n, -1) for name in GEOMETRY], 1)
        self.exp_avg, self.exp_avg_sq = torch.zeros((2, n, GEOMETRY_WIDTH))
        self.last_step = torch.zeros(n, dtype=torch.int32)
        groups = [{"lr": ceilings[name], "betas": betas, "eps": eps} for name in GEOMETRY]
        self.schedule = RowSchedule(groups, threads=1)
        self._rows = DeviceRows(self.schedule, "cpu", widths=_WIDTHS)
        self.reach = {name: SleepReach(betas, eps, ceilings[name]) for name in ("means", "scales")}
        self.boxes = BlockBoxes(len(self.partition))
        self.refit(np.arange(len(self.partition)))

    @torch.no_grad()
    def look(self, views: Sequence[View], renderer: Renderer) -> Sight:
        """What each view sees. Nothing that is stored changes.

        Args:
            views: at least one.
            renderer: by whose rules.
        """
        candidates = self.boxes.candidates(
            views, renderer.options, self.reach["means"], self.reach["scales"]
        )
        places = self.places_of(candidates.ids.astype(np.int64))
        geometry = self.lookahead(places)
        visible = cull(geometry, cameras_of(views), renderer)
        seen = visible.ids.long()
        values = {name: rows[seen] for name, rows in geometry.items()}
        return Sight(candidates, places[seen], visible, values)

    def lookahead(self, places: Tensor) -> dict[str, Tensor]:
        """Geometry of some rows after the last step, caught up out of place."""
        param, exp_avg, exp_avg_sq = (table[places] for table in self._tables)
        last_step, ids = self.last_step[places], torch.arange(len(places))
        if len(ids):
            self._rows.flush(param, exp_avg, exp_avg_sq, ids, last_step, ids)
        parts = param.split(_WIDTHS, 1)
        return {
            name: part.reshape(-1, *SHAPES[name]).contiguous()
            for name, part in zip(GEOMETRY, parts, strict=True)
        }

    def update(
        self, places: Tensor, gradients: Tensor, rates: Mapping[str, float], later: float = 1.0
    ) -> None:
        """Take a step of some rows, and fit the boxes of their blocks.

        Args:
            places: (U,) int64 sorted, of these rows.
            gradients: (U, 11).
            rates: by attribute.
            later: rates to come are at most ``later`` times ``rates``.
        """
        for group, name in zip(self.schedule.param_groups, GEOMETRY, strict=True):
            group["lr"] = rates[name]
        for name, reach in self.reach.items():
            reach.set_ceiling(max(rates[name], reach.ceiling))
            reach.record_step(rates[name])
            reach.set_ceiling(rates[name] * later)
        step = self.schedule.begin_step()
        if len(places):
            self._rows.update(*self._tables, places, self.last_step, places, gradients, step=step)
        self.schedule.end_step(step)
        starts = self.partition.offsets[1:]
        self.refit(np.unique(np.searchsorted(starts, places.numpy(), side="right")))

    def refit(self, blocks: Ids, until: int | None = None) -> None:
        """Fit the boxes of some blocks to the rows as they are stored."""
        places = self.places_of(blocks)
        self.boxes.fit(
            blocks,
            self.partition.counts[blocks],
            means=self._sleeping("means", slice(0, 3), places),
            scales=self._sleeping("scales", slice(3, 6), places),
            until=until,
        )

    def _sleeping(self, name: str, columns: slice, places: Tensor) -> SleepingValues:
        values, exp_avg, exp_avg_sq = (table[places, columns] for table in self._tables)
        last_step = self.last_step[places]
        return SleepingValues(values, exp_avg, exp_avg_sq, last_step, self.reach[name])

    def places_of(self, blocks: Ids) -> Tensor:
        """(R,) int64 places of all rows of some blocks, block after block."""
        offsets, counts = self.partition.offsets, self.partition.counts
        before = np.cumsum(counts[blocks]) - counts[blocks]
        starts = np.repeat(offsets[blocks] - before, counts[blocks])
        return torch.from_numpy(starts + np.arange(len(starts)))

    @property
    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.table, self.exp_avg, self.exp_avg_sq
