# SPDX-License-Identifier: Apache-2.0
"""Seconds that views cost on the device, as the backends spend them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gs_train.engine.backend import Backend, StepSettings
from gs_train.engine.limits import UNLIMITED, Limits
from gs_train.engine.pipeline import Engine
from gs_train.options.presets import PRESETS
from gs_train.published.in_device import InDevice
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import ADAM_EPS, GEOMETRY, GEOMETRY_WIDTH, NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.tiered import TieredGaussians
from gs_train.sizing.timed import free_bytes, line, seconds_of, table_rows

_AWAY_ROWS = 20  # times the rows that the view sees are culled
_BATCH = 8
_RENDERED_ROWS = {"cuda": 2_000_000, "cpu": 400_000}
_RENDERED_BYTES = 4096  # of memory, there and on the host, for each row rendered, generously
_BY_HOST = Limits(residents=0)
Begin = Callable[[str], None]
"""Told what is measured next."""

_LEAST_CULL_S = 1e-13  # for each row: what is less cannot be told from nothing


class ViewRates(NamedTuple):
    """See the attributes of `Rates` of these names."""

    cull_rows: float
    cull_more_rows: float
    view_s: float
    row_s: float
    batch_view_s: float
    batch_row_s: float
    batch_s: float
    streamed_view_s: float
    streamed_row_s: float


def measure_views(
    renderer: Renderer,
    rows: Rows,
    view: View,
    n_visible: int,
    n_first: int | None = None,
    *,
    begin: Begin = lambda _: None,
) -> ViewRates:
    """Cull, and run batches of one view through a backend that has all rows on the device and
    through the engine, whose rows stay there or come for the batch; see `measure_rates`."""
    device = renderer.device
    free = min(free_bytes(device), free_bytes(torch.device("cpu")))
    most = max(min(n_visible, _RENDERED_ROWS[device.type], free // _RENDERED_BYTES), 8)
    begin("culling")
    cull_row_s, cull_more_row_s = _culling(renderer, rows, view)

    few = most // 4
    # A line between two measured numbers of rows is exact at both. On a CPU a run begins in the
    # middle of it, where on a GPU launching takes longest.
    if device.type == "cpu" and n_first is not None:
        few = max(1, min(few, n_first))
    begin("training on a view, which compiles kernels the first time")

    def measured(at_once: int, limits: Limits | None) -> tuple[float, float]:
        return line(lambda n: seconds_a_view(renderer, rows, view, n, at_once, limits), few, most)

    alone = together = streamed = measured(1, None)
    batch_s = 0.0
    # Without a device to hand work to, nothing runs beside anything.
    if device.type == "cuda":
        (view_s, row_s), streamed = measured(_BATCH, UNLIMITED), measured(_BATCH, _BY_HOST)
        single_s = seconds_a_view(renderer, rows, view, few, 1, UNLIMITED)
        batch_s = max(0.0, single_s - view_s - row_s * few) * _BATCH / (_BATCH - 1)
        together = max(0.0, view_s - batch_s / _BATCH), row_s
    return ViewRates(
        1 / max(cull_row_s, _LEAST_CULL_S), 1 / max(cull_more_row_s, _LEAST_CULL_S),
        *alone, *together, batch_s, *streamed,
    )  # fmt: skip


def seconds_a_view(
    renderer: Renderer,
    rows: Rows,
    view: View,
    n_visible: int,
    at_once: int,
    limits: Limits | None,
) -> float:
    """Seconds that a step takes for each view, no other rows being updated or moved.

    Args:
        rows: as `measure_rates`'s, of which ``n_visible`` are made.
        at_once: views a step.
        limits: the engine's: without residents the rows come and leave with each batch. None: the
            rows are all on the device, and nothing is culled before it is needed.
    """
    some = _repeated(rows, n_visible)
    truth = torch.full((view.height, view.width, 3), 128, dtype=torch.uint8, device=renderer.device)
    backend = _in_device(some, renderer) if limits is None else _engine(some, renderer, limits)
    batch, upcoming = [(view, truth)] * at_once, [[view] * at_once] * 2

    settings = StepSettings(
        backend.model.sh_degree,
        dict.fromkeys(NAMES, 0.0),
        (0.9, 0.999),
        eps=ADAM_EPS,
        ssim_lambda=0.2,
    )

    def step() -> None:
        backend.step(batch, settings, lambda ids, splats: None, upcoming=upcoming)

    try:
        # On a CPU others work too, and go on to.
        usual = statistics.median if renderer.device.type == "cpu" else min
        seconds = seconds_of(step, renderer.device, of_samples=usual)
        backend.finish()  # not after an error, whose place another one would take
        return seconds / at_once
    finally:
        if isinstance(backend, Engine):
            backend.model.close()


def _in_device(rows: Rows, renderer: Renderer) -> Backend:
    return InDevice(Gaussians(rows, device=renderer.device, make_optimizer=_no_optimizer), renderer)


def _engine(rows: Rows, renderer: Renderer, limits: Limits) -> Backend:
    travels = limits.residents != 0
    model = TieredGaussians(rows, device=renderer.device, semantics="deferred", travels=travels)
    # The views are all the same. To order them cuBLAS would keep 32 MiB for each stream that asks.
    preset = replace(PRESETS["best"], order="given")
    return Engine(model, renderer, preset, limits=limits)


def _no_optimizer(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.0)


def _culling(renderer: Renderer, rows: Rows, view: View) -> tuple[float, float]:
    """Seconds of each row more that a view is culled from, most of which it does not see, and the
    same of another view of a batch."""
    most = max(table_rows(renderer.device, 4 * GEOMETRY_WIDTH), 8)

    def seconds(n: int, n_views: int) -> float:
        at = torch.arange(n, device=renderer.device) % len(rows["means"])
        geometry = {name: rows[name][at] for name in GEOMETRY}
        away = torch.ones(n, dtype=torch.bool, device=renderer.device)
        away[::_AWAY_ROWS] = False
        geometry["means"][away] -= 1e3 * view.viewmat[2, :3]  # behind the camera

        cameras = cameras_of([view] * n_views)
        return seconds_of(lambda: cull(geometry, cameras, renderer), renderer.device)

    _, one = line(lambda n: seconds(n, 1), most // 4, most)
    _, several = line(lambda n: seconds(n, _BATCH), most // 4, most)
    return one, max(0.0, several - one) / (_BATCH - 1)


def _repeated(rows: Rows, n: int) -> dict[str, Tensor]:
    """``n`` rows: some of these, or all of them several times, smaller and moved within
    themselves."""
    n_given = len(rows["means"])
    if n <= n_given:
        at = torch.arange(n, device=rows["means"].device) * n_given // n
        return {name: values[at] for name, values in rows.items()}
    at = torch.arange(n, device=rows["means"].device) % n_given
    repeated = {name: values[at] for name, values in rows.items()}
    # The golden ratio spreads a row's copies evenly, and takes no random numbers.
    count = torch.arange(n, dtype=torch.float64, device=at.device)
    turn = ((count * 0.6180339887) % 1.0).float()
    angles = 2 * math.pi * turn[:, None] + torch.tensor([0.0, 2.1, 4.2], device=at.device)
    repeated["means"] = repeated["means"] + torch.exp(repeated["scales"]) * torch.cos(angles)
    repeated["scales"] = repeated["scales"] - 0.5 * math.log(n / n_given)
    return repeated
