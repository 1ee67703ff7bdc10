# SPDX-License-Identifier: Apache-2.0
"""Forecasts of memory and time, one for each way to keep rows."""

from __future__ import annotations

from gs_train.options.limits import Limits
from gs_train.options.presets import Placement, Preset
from gs_train.sizing.forecasts.forecast import Forecast, Speed
from gs_train.sizing.forecasts.split_rows import Resident, Streamed
from gs_train.sizing.forecasts.whole_scene import InPlace, Mirrored
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

__all__ = ["Forecast", "Speed", "forecast_of", "forecasts_of", "need", "predict", "room_under"]

_WAYS: dict[tuple[Placement, bool], tuple[type[Forecast], ...]] = {
    ("device", True): (InPlace,),
    ("mirror", False): (Mirrored,),
    ("split", False): (Streamed,),
    ("split", True): (Resident, Streamed),
}
"""By placement and whether rows reside: the ways that a preset has, the faster first."""


def forecasts_of(preset: Preset) -> tuple[Forecast, ...]:
    """One for each way that the preset has to keep rows, the faster first."""
    return tuple(way(preset) for way in _WAYS[preset.placement, preset.residents])


def forecast_of(preset: Preset, room: Limits | None = None) -> Forecast:
    """The forecast of the way that a room is for: the last one where no row may reside."""
    ways = forecasts_of(preset)
    return ways[0] if room is None or room.residents != 0 else ways[-1]


def need(preset: Preset, work: Workload, room: Room | None = None) -> Need:
    """Bytes by part; with the room that is wanted when None."""
    forecast = forecast_of(preset, room)
    return forecast.bytes(work, room or forecast.wanted(work))


def predict(preset: Preset, work: Workload, rates: Rates, room: Room | None = None) -> Speed:
    """The seconds of a mean batch; with the room that is wanted when None."""
    forecast = forecast_of(preset, room)
    return forecast.seconds(work, rates, room or forecast.wanted(work))


def room_under(preset: Preset, work: Workload, limits: Limits) -> Room:
    """What a run takes that respects ``limits``."""
    return forecast_of(preset, limits).under(work, limits)
