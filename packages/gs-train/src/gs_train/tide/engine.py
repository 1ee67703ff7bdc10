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
from gs_train.tide.passes import BlockPasses
from gs_train.tide.placement import BlockCounts, BlockPlacement
from gs_train.tide.planner import BlockLookahead, BlockPlanner
from gs_train.tide.room import BatchRoom

MOST_LISTED = 1 << 20
"""Rows times views of a batch on CUDA that lists all rows of its blocks: to pass over those that no
view sees takes less than to wait for their number."""

WAIT = "wait for blocks"
"""The span of a wait for the drive."""


def block_engine(
    rows: StoredRows,
    renderer: Renderer,
    *,
    named: str | None = None,
    room: BatchRoom | None = None,
    most_listed: int | None = None,
) -> Engine:
    """An engine that trains rows in blocks.

    Args:
        rows: in blocks.
        renderer: draws them, on the device of their tables.
        named: the store's folder as checkpoints name it; None: within the folder of the run.
        room: for the rows of a batch. Batches that see more come view by view, and views that see
            more in parts. None: for any number.
        most_listed: rows times views of a batch that lists all rows of its blocks and marks those
            that are seen, so that nothing waits for the device; other batches list the rows that
            are seen, whose number is waited for. Changes no result. None: `MOST_LISTED` on CUDA, 0
            on the CPU.
    """
    if most_listed is None:
        most_listed = MOST_LISTED if rows.device.type == "cuda" else 0
    lanes = Lanes(renderer.device)
    tools = Tools(lanes, Trace(lanes), BatchStats())
    counts = BlockCounts(rows, tools.stats)
    whole = BlockPlacement(rows, tools, counts)
    passes = None if room is None else BlockPasses(rows, tools, counts, room)
    placements: list[BlockPlacement | BlockPasses] = [whole]
    if passes is not None:
        placements.append(passes)
    # No caller changes the number of these rows, which is all that a model has more.
    model = cast(Model, StoredModel(rows, placements, counts, named=named, trace=tools.trace))
    rows.cache.waiting = lambda: tools.trace.host(WAIT)
    planning = Planning(
        BlockLookahead(rows, renderer),
        lambda costs: BlockPlanner(rows, renderer, whole, passes, room, most_listed, costs),
    )
    return Engine(model, renderer, placements, tools, planning=planning)
