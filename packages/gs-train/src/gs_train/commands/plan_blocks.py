# SPDX-License-Identifier: Apache-2.0
"""What ``gs-train plan`` says of the preset whose Gaussians are on a drive."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.runs.metrics import NOT_AVAILABLE
from gs_train.sizing.block_plans import BlockPlan, largest_on_drive, plan_blocks, problem_of
from gs_train.sizing.drive_rates import DriveRates, measure_drive, place_of
from gs_train.sizing.duration import StepTime
from gs_train.sizing.memory import Caps
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

OPTION = "--drive-rates"


def planned_on_drive(
    run: FitConfig,
    work: Workload,
    caps: Caps,
    rates: Rates,
    *,
    folder: Path | None,
    given: DriveRates | None,
) -> dict[str, Any]:
    """What ``tide`` takes and moves, and how fast it is, with the keys of the other presets.

    The drive is measured where its speed matters and nobody gave it.

    Args:
        run: the options of the run.
        work: of the Gaussians that are planned for, which come from a cloud of as many points:
            training adds none here.
        folder: on the drive of the store; None where that drive is not here.
        given: its rates; None: not given.
    """
    block_rows = run.block_rows
    try:
        plan = plan_blocks(run, work, caps, block_rows=block_rows)
    except InputError as error:
        return {"fits": False, "reason": str(error)}
    free = None if folder is None else shutil.disk_usage(place_of(folder)).free
    drive, trouble = given, None
    if drive is None and plan.needs_drive:
        drive, trouble = _measured(folder, plan.record_bytes)
    problem = problem_of(plan, caps, free)
    return {
        "batch_size": work.batch_size,
        "fits": problem is None,
        "reason": problem,
        "device_bytes": plan.need.device_bytes,
        "pinned_bytes": plan.need.pinned_bytes,
        "host_bytes": plan.need.host_bytes,
        "drive_bytes": plan.drive_bytes,
        "snapshot_bytes": plan.snapshot_bytes,
        "drive_free": free,
        "parts": asdict(plan.need),
        "views_whole": plan.views_whole,
        "residents": 0,
        **_speed(run, plan, rates, drive),
        "largest_n": largest_on_drive(run, work, caps, block_rows=block_rows, free=free),
        "slots": plan.room.slots,
        "places": plan.room.places,
        "block_rows": block_rows,
        "batch_rows": plan.room.batch_rows,
        "blocks": {
            "all": plan.n_blocks,
            "used": plan.traffic.used,
            "loaded": plan.traffic.loaded,
            "read": plan.traffic.read,
        },
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "drive": None if drive is None else asdict(drive),
        "drive_trouble": trouble,
    }


def _speed(
    run: FitConfig, plan: BlockPlan, rates: Rates, drive: DriveRates | None
) -> dict[str, Any]:
    """``n/a`` where nobody knows the drive."""
    speed = plan.speed(rates, drive)
    if speed is None:
        names = ("images_per_second", "images_per_second_first", "seconds_of_run", "bound")
        return {**dict.fromkeys(names, NOT_AVAILABLE), "step": None, "seconds": None}
    step = StepTime(run.batch_size / speed.images_per_second, 0.0)
    return {
        "images_per_second": speed.images_per_second,
        "images_per_second_first": speed.images_per_second,
        "seconds_of_run": run.steps * step.fixed_s,
        "step": asdict(step),
        "bound": speed.bound,
        "seconds": {"device": speed.device_s, "link": speed.link_s, "drive": speed.drive_s},
    }


def _measured(folder: Path | None, record_bytes: int) -> tuple[DriveRates | None, str | None]:
    """The drive's rates, or why there are none."""
    remedy = f"{OPTION} READ:WRITE says how fast it is"
    if folder is None:
        return None, f"its drive is not here: {remedy}"
    try:
        return measure_drive(folder, record_bytes), None
    except OSError as error:
        place = place_of(folder)
        return None, f"the drive of {place} cannot be measured ({error.strerror}): {remedy}"
