# SPDX-License-Identifier: Apache-2.0
"""What ``gs-train plan`` says of one preset, and of the preset that ``auto`` takes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import Preset
from gs_train.sizing.choice import choose
from gs_train.sizing.duration import StepTime, seconds_of_run
from gs_train.sizing.fitting import fit_into, largest_n, smallest_rooms
from gs_train.sizing.forecasts import forecast_of, need, predict
from gs_train.sizing.memory import Caps, Room
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload


def auto_choice(run: FitConfig, work: Workload, caps: Caps) -> dict[str, Any]:
    """What auto would take."""
    try:
        choice = choose(run, work, caps)
    except InputError as error:
        return {"preset": None, "reason": str(error)}
    return {"preset": choice.preset.name, "reason": choice.reason}


def seeing(view_rows: int, n_rows: int, work: Workload) -> Workload:
    """The same rows where views see so many once there are ``n_rows``.

    Raises:
        InputError: there are not so many, or no view sees any.
    """
    if not 1 <= view_rows <= n_rows:
        raise InputError(f"--view-rows must be from 1 to {n_rows:,} Gaussians, got {view_rows}")
    if not work.mean.visible:
        raise InputError("--view-rows needs views that see some of the points, got none")
    return work.seeing(view_rows * work.n_rows / n_rows)


def predicted(
    preset: Preset, first: Workload, n_rows: int, run: FitConfig, caps: Caps, rates: Rates
) -> dict[str, Any]:
    """A preset with so many Gaussians, of a run that starts with the ``first`` workload."""
    work = first.with_rows(n_rows)
    fitted = fit_into(preset, work, caps)
    room = _room(preset, work, caps)
    wanted, speed = need(preset, work, room), predict(preset, work, rates, room)
    at_first = predict(preset, first, rates, _room(preset, first, caps))
    step = StepTime.through(
        first.n_rows,
        work.batch_size / at_first.images_per_second,
        n_rows,
        work.batch_size / speed.images_per_second,
    )
    return {
        "batch_size": work.batch_size,
        "fits": fitted is not None,
        "device_bytes": wanted.device_bytes,
        "pinned_bytes": wanted.pinned_bytes,
        "host_bytes": wanted.host_bytes,
        "parts": asdict(wanted),
        "views_whole": fitted is not None and room.rows >= forecast_of(preset).wanted(work).rows,
        "residents": room.residents,
        "images_per_second": speed.images_per_second,
        "images_per_second_first": at_first.images_per_second,
        "seconds_of_run": seconds_of_run(
            replace(run, batch_size=work.batch_size), step, first.n_rows
        ),
        "step": asdict(step),
        "bound": speed.bound,
        "seconds": {
            "device": speed.device_s,
            "link": speed.link_s,
            "host": speed.host_s,
            "exchange": speed.exchange_s,
        },
        "largest_n": largest_n(preset, work, caps),
    }


def _room(preset: Preset, work: Workload, caps: Caps) -> Room:
    """What a preset gets, or the least that it gets along with where that does not fit."""
    return fit_into(preset, work, caps) or min(
        smallest_rooms(preset, work),
        key=lambda room: caps.taken_of_host(need(preset, work, room)),
    )
