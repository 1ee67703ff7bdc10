# SPDX-License-Identifier: Apache-2.0
"""The engine whose rows lie in blocks."""

from __future__ import annotations

from typing import cast

from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.engine import Engine
from gs_train.engine.placement import Tools
from gs_train.engine.planning import Planning
from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.renderers import Renderer
from gs_train.rows.operations import Model
from gs_train.tide.model import StoredModel
from gs_train.tide.placement import BlockPlacement
from gs_train.tide.planner import BlockLookahead, BlockPlanner


def block_engine(rows: StoredRows, renderer: Renderer, *, named: str | None = None) -> Engine:
    """An engine that trains rows in blocks.

    Args:
        rows: in blocks.
        renderer: draws them, on the device of their tables.
        named: the store's folder as checkpoints name it; None: within the folder of the run.
    """
    lanes = Lanes(renderer.device)
    tools = Tools(lanes, Trace(lanes), BatchStats())
    placement = BlockPlacement(rows, tools)
    # No caller changes the number of these rows, which is all that a model has more.
    model = cast(Model, StoredModel(rows, placement, named=named))
    planning = Planning(
        BlockLookahead(rows, renderer),
        lambda costs: BlockPlanner(rows, renderer, placement, costs),
    )
    return Engine(model, renderer, [placement], tools, planning=planning)
