# SPDX-License-Identifier: Apache-2.0
"""What a run whose rows are on a drive was expected to take and to move, and what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from gs_train.options.config import FitConfig
from gs_train.renderers import Renderer, Rows
from gs_train.runs.metrics import NOT_AVAILABLE
from gs_train.runs.offload import training_views, workload_of
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.sizes import format_bytes
from gs_train.sizing.block_plans import BlockPlan, plan_blocks
from gs_train.sizing.choice import Choice
from gs_train.sizing.drive_rates import DriveRates, measure_drive
from gs_train.sizing.memory import Caps, caps_of
from gs_train.sizing.rates import Rates, measure_rates_for
from gs_train.sizing.workload import Workload
from gs_train.tide.model import StoredModel

READ, WRITTEN = "drive_read_a_step_bytes", "drive_written_a_step_bytes"

_SAMPLE_ROWS = 500_000


def expected_line(
    config: FitConfig, scene: Scene, rows: Rows | None, choice: Choice, renderer: Renderer
) -> str:
    """One line about the bytes of a run that begins, and about those that its steps move.

    Args:
        rows: the first ones; None where they are not in memory, so that nobody looks at what views
            see of them.
    """
    blocks = choice.blocks
    assert blocks is not None
    taken = (
        f"expected: {format_bytes(blocks.device_bytes)} of Gaussians on the device, "
        f"{format_bytes(blocks.host_bytes)} in host memory"
    )
    if rows is None:
        return f"{taken} and up to {format_bytes(blocks.drive_bytes)} on the drive"
    plan = _planned(
        config, workload_of(config, scene, rows, renderer), caps_of(config, renderer.device), choice
    )
    moved = "each and do not need the drive"
    if plan.needs_drive:
        read, written = (format_bytes(int(n)) for n in (plan.bytes_read, plan.bytes_written))
        moved = f"each, read {read} from the drive and write {written}"
    return (
        f"{taken} and up to {format_bytes(plan.drive_bytes)} on the drive, with up to "
        f"{format_bytes(plan.snapshot_bytes)} more for snapshots; once all are trained, steps use "
        f"{plan.traffic.used:,.0f} blocks {moved}"
    )


def moved_a_step(trainer: Trainer) -> dict[str, Any]:
    """Bytes that a step has read and written on average since the process began; what snapshots
    wrote is a part of it."""
    n = trainer.backend.stats.batches
    moved = trainer.model.traffic()
    if not n:
        return {READ: NOT_AVAILABLE, WRITTEN: NOT_AVAILABLE}
    return {READ: moved["bytes_read"] / n, WRITTEN: moved["bytes_written"] / n}


def planned_now(trainer: Trainer, scene: Scene, choice: Choice) -> tuple[BlockPlan, Rows]:
    """The plan of a run that has trained, from what its batches saw; and some of its rows.

    Cost: brings some hundred blocks, and culls their rows.

    Raises:
        InputError: the drive errs.
    """
    model, stats, config = trainer.model, trainer.backend.stats, trainer.config
    assert isinstance(model, StoredModel)
    rows = model.sample(_SAMPLE_ROWS)
    work = workload_of(config, scene, rows, trainer.renderer, n_rows=model.n_rows)
    union = stats.seen / stats.batches
    visible = min(stats.visible / stats.batches, union * config.batch_size)
    mean = replace(work.mean, visible=visible, union=union)
    work = replace(work, mean=mean)
    return _planned(config, work, caps_of(config, trainer.renderer.device), choice), rows


def images_per_second(trainer: Trainer, scene: Scene, plan: BlockPlan, rows: Rows) -> float | str:
    """That were to be expected of this machine, whose rates are measured: of the drive where steps
    need it."""
    model = trainer.model
    assert isinstance(model, StoredModel)
    drive: DriveRates | None = None
    if plan.needs_drive:
        try:
            drive = measure_drive(model.rows.store.path, plan.record_bytes)
        except OSError:
            return NOT_AVAILABLE

    def rows_of(ids: Tensor) -> Rows:
        return {name: values[ids.to(values.device)] for name, values in rows.items()}

    rates: Rates | None = measure_rates_for(
        plan.work, rows, training_views(scene), trainer.renderer, rows_of
    )
    speed = None if rates is None else plan.speed(rates, drive)
    return NOT_AVAILABLE if speed is None else speed.images_per_second


def _planned(config: FitConfig, work: Workload, caps: Caps, choice: Choice) -> BlockPlan:
    assert choice.blocks is not None
    block_rows = choice.blocks.block_rows
    return plan_blocks(config, work, caps, block_rows=block_rows, room=choice.blocks)
