# SPDX-License-Identifier: Apache-2.0
"""Steps of rows in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.partition import Ids
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.slot_rows import ListedRows
from gs_train.blocks.stored_looks import SeenPart, StoredTables
from gs_train.renderers import Rows


class StoredSteps:
    """Takes steps of the rows that batches see.

    Args:
        stored: tables with the rows.
        boxes: of all blocks.
        reaches: of means and scales.

    Attributes:
        changed: blocks of the last step that ended.
    """

    def __init__(self, stored: StoredTables, boxes: BlockBoxes, reaches: ReachTables) -> None:
        self._stored = stored
        self._boxes = boxes
        self._reaches = reaches
        self._is_whole = True
        self._parts: list[Ids] = []
        self.changed: Ids = np.zeros(0, np.int64)

    def need_whole(self) -> None:
        """Raise where a step ended in the middle."""
        if not self._is_whole:
            raise RuntimeError(
                "an earlier step ended in the middle, some of its rows updated and others not: go "
                "on from the last snapshot"
            )

    def begin(self, rates: Mapping[str, float], later: float) -> None:
        """Begin a step. Until it ends, no other call may look at rows."""
        self.need_whole()
        self._is_whole = False
        self._parts = []
        for name, reach in (("means", self._reaches.means), ("scales", self._reaches.scales)):
            reach.set_ceiling(max(rates[name], reach.ceiling))
            reach.record_step(rates[name])
            reach.set_ceiling(rates[name] * later)
        for group in self._stored.groups.values():
            group.begin(rates)

    def update(
        self,
        blocks: Ids,
        places_in: Callable[[NDArray[np.int32], int], Tensor],
        gradients: Rows,
    ) -> None:
        """Take the step of some rows of some blocks, and fit the boxes of these. The blocks come,
        and are released.

        Args:
            blocks: (n,) that hold the rows, sorted.
            places_in: gives the places of the rows, from the slots of the blocks and the rows of
                a slot.
            gradients: of the rows, by attribute.
        """
        if not len(blocks):
            return
        stored = self._stored
        slots = stored.cache.bring(blocks)
        self._update(places_in(slots, stored.block_rows), gradients)
        rows = stored.rows_of(blocks, slots)
        self._boxes.fit_in_slots(blocks, rows, stored.tables, self._reaches)
        stored.cache.release(blocks, step=self._reaches.means.step)
        self._parts.append(blocks)

    def update_in_slots(self, part: SeenPart, gradients: Rows, marks: Tensor | None = None) -> None:
        """Take the step of the rows of a part whose blocks are in use, and stay so.

        Args:
            gradients: of the rows, by attribute.
            marks: (R,) bool, rows that take the step; None: all do.
        """
        if not part.holds.any():
            return
        self._update(part.places, gradients, marks, part.listed)
        # All blocks of the part are fitted: those without a row that is seen take a device less
        # time than the numbers of the chosen ones would take to get there.
        least = (part.rows, self._stored.tables, self._reaches)
        self._boxes.fit_in_slots(part.blocks, *least, chosen=part.holds)
        self._parts.append(part.blocks[part.holds])

    def end(self) -> None:
        """End the step."""
        for group in self._stored.groups.values():
            group.end()
        self.changed = np.concatenate([*self._parts, self.changed[:0]])
        self._is_whole = True

    def _update(
        self,
        places: Tensor,
        gradients: Rows,
        marks: Tensor | None = None,
        listed: ListedRows | None = None,
    ) -> None:
        tables, groups = self._stored.tables, self._stored.groups
        # What the first group writes to is a copy: the second one catches up from the same steps.
        last_step = tables["last_step"].view(-1)
        if listed is None:
            before = last_step.index_select(0, places)
            own = torch.arange(len(places), device=places.device)
        else:
            before, own = listed.last_step, listed.ids
        groups["geometry"].update(tables, places, gradients, before, own, marks)
        groups["appearance"].update(tables, places, gradients, last_step, places, marks)
