# SPDX-License-Identifier: Apache-2.0
"""Timed micro-measurements of this machine: copies, optimizers, and batches of views."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_pinned import available_bytes
from gs_train.backends import make_backend, mirror_engine
from gs_train.engine.settings import StepSettings
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import (
    ADAM_EPS,
    GEOMETRY,
    GEOMETRY_WIDTH,
    NAMES,
    SHAPES,
    appearance_width,
)
from gs_train.rows.gaussians import Gaussians
from gs_train.sizing.memory import free_on

Begin = Callable[[str], None]
"""Told what is measured next."""

# What is timed is far larger than any cache, where there is memory for it.
_TABLE_BYTES = {"cuda": 768 << 20, "cpu": 96 << 20}
_TABLE_SHARE = 1 / 8  # of the memory that is free, at most

# Calls follow one another for so long that waiting for the last does not count.
_SAMPLE_S, _SAMPLES_S, _LEAST_SAMPLES = 5e-3, 0.1, 3

_WIDTH = appearance_width(3)
_SHARE = 0.05  # of the rows that sparse measurements touch
_ROUNDS = 4  # choices of these rows that take turns, so that no cache holds them all

_AWAY_ROWS = 20  # times the rows that the view sees are culled
_BATCH = 8
_RENDERED_ROWS = {"cuda": 2_000_000, "cpu": 400_000}
_RENDERED_BYTES = 4096  # of memory, there and on the host, for each row rendered, generously
_LEAST_CULL_S = 1e-13  # for each row: what is less cannot be told from nothing


def table_rows(device: torch.device, row_bytes: int) -> int:
    """Rows of a table that no cache holds, as far as memory is free for it."""
    return min(_TABLE_BYTES[device.type], int(_free_bytes(device) * _TABLE_SHARE)) // row_bytes


def _free_bytes(device: torch.device) -> int:
    """Memory that tensors can have both there and on the host."""
    available = available_bytes()
    return min(free_on(device), available) if device.type == "cuda" else available


def seconds_of(
    work: Callable[[], object],
    device: torch.device,
    *,
    of_samples: Callable[[Sequence[float]], float] = min,
) -> float:
    """Seconds of a call among many that follow one another, after some that warm up.

    Args:
        of_samples: picks one of several samples: the shortest is the least disturbed one, and the
            median has the disturbances that there are.
    """

    def each_of(n_calls: int) -> float:
        _finish(device)
        start = time.perf_counter()
        for _ in range(n_calls):
            work()
        _finish(device)
        return max((time.perf_counter() - start) / n_calls, 1e-9)

    each_of(1)  # compiles, loads libraries, takes memory
    once = each_of(1)
    n_calls = math.ceil(_SAMPLE_S / once)
    n_samples = max(_LEAST_SAMPLES, int(_SAMPLES_S / (n_calls * once)))
    samples = [once] if n_calls == 1 else []
    samples += [each_of(n_calls) for _ in range(n_samples - len(samples))]
    return of_samples(samples)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def line(seconds: Callable[[int], float], few: int, most: int) -> tuple[float, float]:
    """What no row costs and what each does, from the seconds of two numbers of rows."""
    short, long = seconds(few), seconds(most)
    each = max(0.0, (long - short) / (most - few))
    return max(0.0, long - each * most), each


def time_link(device: torch.device) -> dict[str, float]:
    """The attributes of `Rates` from ``to_device`` to ``gather``."""
    n = table_rows(device, 4 * _WIDTH)
    n_moved = n // 4
    ids = _some_rows(n).to(device)
    up, down = (torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(2))
    with gs_pinned.Table(n, _WIDTH) as table, gs_pinned.Table(n_moved, _WIDTH) as back:
        there, leaving = (torch.zeros(n_moved, _WIDTH, device=device) for _ in range(2))
        gathered = torch.empty(len(ids), _WIDTH, device=device)
        source, target = table.torch()[:n_moved], back.torch()

        def send() -> None:
            with torch.cuda.stream(up):  # None: it does nothing
                there.copy_(source, non_blocking=True)

        def fetch() -> None:
            with torch.cuda.stream(down):
                target.copy_(leaving, non_blocking=True)

        def exchange() -> None:
            send()
            fetch()

        def gather() -> None:
            gs_pinned.gather(table, ids, gathered)

        size = 4.0 * source.numel()
        return {
            "to_device": size / seconds_of(send, device),
            "to_host": size / seconds_of(fetch, device),
            "both": size / seconds_of(exchange, device),
            "gather": 4.0 * gathered.numel() / seconds_of(gather, device),
        }


def time_host_adam(device: torch.device) -> dict[str, float]:
    """``host_adam`` and ``host_rows`` of `Rates`."""
    n = table_rows(device, 4 * _WIDTH)
    rounds = [_some_rows(n, seed) for seed in range(_ROUNDS)]
    n_updated = sum(map(len, rounds)) / _ROUNDS
    turns = itertools.cycle(rounds)
    gradients = torch.full((max(map(len, rounds)), _WIDTH), 1e-3)
    # In large pages, as the engine's are. Moments of zero might cost less than others.
    values, *moments = (gs_pinned.Table(n, _WIDTH, pinned=False).torch() for _ in range(3))
    state = {"exp_avg": [moments[0].fill_(1.0)], "exp_avg_sq": [moments[1].fill_(1.0)]}
    dense = gs_adam.HostAdam([values], lr=1e-3, semantics="dense", state=state)
    sparse = gs_adam.HostAdam([values], lr=1e-3, semantics="sparse", state=state)

    def update_none() -> None:
        dense.end_step(dense.begin_step())

    def update_some() -> None:
        ids = next(turns)
        step = sparse.begin_step()
        sparse.update(ids, [gradients[: len(ids)]], step=step)
        sparse.end_step(step)

    host = torch.device("cpu")
    return {
        "host_adam": 24.0 * n * _WIDTH / seconds_of(update_none, host),
        "host_rows": 28.0 * n_updated * _WIDTH / seconds_of(update_some, host),
    }


def time_device_adam(device: torch.device) -> dict[str, float]:
    """``device_adam`` of `Rates`, on geometry."""
    n = table_rows(device, 3 * 4 * GEOMETRY_WIDTH)  # values and moments
    shapes = [SHAPES[name] for name in GEOMETRY]
    params = [torch.nn.Parameter(torch.zeros(n, *shape, device=device)) for shape in shapes]
    ids = _some_rows(n).to(device)
    gradients = [torch.full((len(ids), *p.shape[1:]), 1e-3, device=device) for p in params]
    optimizer = gs_adam.DeviceAdam(params, lr=1e-3)
    optimizer.step(ids, gradients)
    for state in optimizer.state.values():  # moments of zero might cost less than others
        state["exp_avg"].fill_(1.0)
        state["exp_avg_sq"].fill_(1.0)
    seconds = seconds_of(lambda: optimizer.step(ids, gradients), device)
    return {"device_adam": 24.0 * n * GEOMETRY_WIDTH / seconds}


def _some_rows(n: int, seed: int = 0) -> Tensor:
    """Sorted ids of about one row in twenty, in no pattern."""
    chosen = np.random.default_rng(seed).random(n) < _SHARE
    return torch.from_numpy(np.flatnonzero(chosen).astype(np.int32))


def time_views(
    renderer: Renderer,
    rows: Rows,
    view: View,
    n_visible: int,
    n_first: int | None = None,
    *,
    begin: Begin = lambda _: None,
) -> dict[str, float]:
    """Cull, and run batches of one view through a backend that has all rows on the device and
    through the engine, whose rows stay there or come for the batch: the attributes of `Rates` from
    ``cull_rows`` on."""
    device = renderer.device
    most = min(n_visible, _RENDERED_ROWS[device.type], _free_bytes(device) // _RENDERED_BYTES)
    most = max(most, 8)
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
        view_s, row_s = measured(_BATCH, UNLIMITED)
        streamed = measured(_BATCH, Limits(residents=0))
        single_s = seconds_a_view(renderer, rows, view, few, 1, UNLIMITED)
        batch_s = max(0.0, single_s - view_s - row_s * few) * _BATCH / (_BATCH - 1)
        together = max(0.0, view_s - batch_s / _BATCH), row_s
    return {
        "cull_rows": 1 / max(cull_row_s, _LEAST_CULL_S),
        "cull_more_rows": 1 / max(cull_more_row_s, _LEAST_CULL_S),
        **dict(zip(("view_s", "row_s"), alone)),
        **dict(zip(("batch_view_s", "batch_row_s"), together)),
        "batch_s": batch_s,
        **dict(zip(("streamed_view_s", "streamed_row_s"), streamed)),
    }


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
            rows are all on the device.
    """
    some, device = _repeated(rows, n_visible), renderer.device
    if limits is None:
        # An optimizer that costs nothing.
        still = partial(torch.optim.SGD, lr=0.0)
        model = Gaussians(some, device=device, make_optimizer=still)
        backend = mirror_engine(model, renderer)
    else:
        # The views are all the same. To order them cuBLAS would keep 32 MiB for each stream that
        # asks.
        preset = replace(PRESETS["best"], order="given")
        backend = make_backend(
            preset, some, None, renderer=renderer, semantics="dense", mem_limit=1.0, limits=limits
        )
    truth = torch.full((view.height, view.width, 3), 128, dtype=torch.uint8, device=device)
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
        usual = statistics.median if device.type == "cpu" else min
        seconds = seconds_of(step, device, of_samples=usual)
        backend.finish()  # not after an error, whose place another one would take
        return seconds / at_once
    finally:
        backend.model.close()


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
