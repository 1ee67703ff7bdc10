# SPDX-License-Identifier: Apache-2.0
"""The engine of a run whose rows are in a store on a drive."""

from __future__ import annotations

from gs_train.engine.engine import Engine
from gs_train.renderers import Renderer, Rows
from gs_train.runs.step_schedule import StepSchedule
from gs_train.tide.engine import block_engine
from gs_train.tide.room import BatchRoom
from gs_train.tide.store_use import StoreUse


def stored_engine(
    store: StoreUse, rows: Rows | None, renderer: Renderer, schedule: StepSchedule
) -> Engine:
    """The engine of rows that are in a store, or are put there.

    Args:
        store: of a new run where it has no snapshot.
        rows: of a new run; None where ``store`` has a cloud of them.
        schedule: of the run's steps.
    """
    if store.snapshot is None:
        options = schedule.options
        store.create(rows, betas=options.betas, eps=options.eps, ceilings=schedule.ceilings)
    stored = store.open(renderer.device)
    own = store.room
    room = BatchRoom(own.batch_rows, own.device_memory, own.device_for)
    return block_engine(stored, renderer, named=store.named, room=room)
