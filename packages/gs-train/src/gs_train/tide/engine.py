# SPDX-License-Identifier: Apache-2.0
"""The engine whose rows lie in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.engine import Engine
from gs_train.engine.placement import Tools
from gs_train.engine.planning import Planning
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.renderers import Renderer
from gs_train.tide.placement import BlockPlacement
from gs_train.tide.planner import BlockLookahead, BlockPlanner


class _BlockModel:
    """What drawing asks of a model: the keys of the batch's rows."""

    before_replacing: Callable[[], None]

    def __init__(self, placement: BlockPlacement, device: torch.device) -> None:
        self.device = device
        self._placement = placement
        self.keys = self

    @property
    def values(self) -> Tensor:
        return self._placement.keys


def block_engine(rows: StoredRows, renderer: Renderer) -> Engine:
    """An engine that trains rows in blocks.

    Args:
        rows: in blocks.
        renderer: draws them, on the device of their tables.
    """
    lanes = Lanes(renderer.device)
    tools = Tools(lanes, Trace(lanes), BatchStats())
    placement = BlockPlacement(rows, tools)
    model: Any = _BlockModel(placement, rows.device)
    planning = Planning(
        BlockLookahead(rows, renderer),
        lambda costs: BlockPlanner(rows, renderer, placement, costs),
    )
    return Engine(model, renderer, [placement], tools, planning=planning)
