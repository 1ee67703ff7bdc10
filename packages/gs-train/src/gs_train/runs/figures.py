# SPDX-License-Identifier: Apache-2.0
"""What training took and moved, beside what was to be expected: sections of metrics.json."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import gs_pinned
from gs_train.data.pixel_file import pixel_bytes
from gs_train.engine.trace import BATCH
from gs_train.machine.device_peaks import DevicePeaks
from gs_train.machine.memory import peak_host_bytes
from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.renderers import Rows, View
from gs_train.runs.block_figures import (
    READ,
    WRITTEN,
    images_per_second,
    moved_a_step,
    planned_now,
)
from gs_train.runs.metrics import NOT_AVAILABLE
from gs_train.runs.occupancy import device_idle_share, optimizer_tail_s
from gs_train.runs.offload import training_views, workload_of
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.sizing.choice import Choice
from gs_train.sizing.forecasts import need, predict, room_under
from gs_train.sizing.memory import Need
from gs_train.sizing.photographs import training_sizes
from gs_train.sizing.rates import Rates, measure_rates_for
from gs_train.sizing.workload import Workload
from gs_train.tide.trouble import StoreTroubleError

_WORTH_S = 250.0
"""Training that is shorter is not worth the seconds, five at most, that rates take to measure."""

_WARM_UP, _LEAST_STEPS = 10, 20

_FORETOLD = ("device_bytes", "pinned_bytes", "host_bytes", "images_per_second")


class Pace:
    """Images a second at the present number of Gaussians."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._n_rows = -1
        self._n_steps = self._n_all = 0
        self._started = 0.0

    def step(self, n_rows: int) -> None:
        """A step has ended, with so many rows. The first ones, in which kernels are compiled, do
        not count."""
        self._n_all += 1
        self._n_steps += 1
        if n_rows != self._n_rows or self._n_all <= _WARM_UP:
            self._n_rows, self._n_steps, self._started = n_rows, 0, time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """So long training stood still."""
        self._started += seconds

    def images_per_second(self) -> float | None:
        """Up to now; None where there have been too few steps to tell."""
        if self._n_steps < _LEAST_STEPS:
            return None
        return self._n_steps * self._batch_size / (time.perf_counter() - self._started)


def figures(
    trainer: Trainer,
    scene: Scene,
    choice: Choice,
    *,
    n_steps: int,
    seconds: float,
    pace: Pace,
    peaks: DevicePeaks,
) -> dict[str, Any]:
    """The sections ``predicted``, ``real`` and ``batches``, and ``store`` of rows on a drive.

    Bytes and rate are predicted for the Gaussians that there are now. A rate needs the machine's,
    which are measured where that takes less than a fiftieth of the training: on a GPU, after some
    minutes.

    Args:
        trainer: after its last step.
        n_steps, seconds: of this process.
        pace: of its steps.
        peaks: of its device memory. The bytes of training alone are compared: what is predicted
            holds no scores of held-out views.

    Synchronises.
    """
    device = trainer.renderer.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    stored = choice.blocks is not None
    moved = moved_a_step(trainer) if stored else {}
    real = (
        _real(device, choice, pace, peaks) | moved
    )  # before anything is measured that takes memory
    batches = _batches(trainer)
    traffic = trainer.model.traffic()
    foretold = _predicted_of_blocks if stored else _predicted
    try:
        predicted = foretold(trainer, scene, choice, n_steps, seconds)
    except (MemoryError, RuntimeError) as error:
        if memory_that_ran_out(error) is None:
            raise
        # A run may fill its memory to the brim.
        predicted = dict.fromkeys([*_FORETOLD, *moved], NOT_AVAILABLE)
    found = {"predicted": predicted, "real": real, "batches": batches}
    if choice.blocks is not None:
        found["store"] = {**choice.blocks.to_plain(), **traffic}
    return found


def _real(device: torch.device, choice: Choice, pace: Pace, peaks: DevicePeaks) -> dict[str, Any]:
    rate, before = pace.images_per_second(), choice.host_bytes_before
    is_gpu = device.type == "cuda"
    return {
        "device_bytes": peaks.training_bytes if is_gpu else NOT_AVAILABLE,
        "pinned_bytes": locked_bytes() if is_gpu else NOT_AVAILABLE,
        "host_bytes": NOT_AVAILABLE if before is None else peak_host_bytes() - before,
        "images_per_second": NOT_AVAILABLE if rate is None else rate,
    }


def locked_bytes() -> int:
    """Of all tables and rings that there are."""
    n_bytes = 0
    for held in gc.get_objects():
        if type(held) is gs_pinned.Table and not held.is_closed:
            n_bytes += held.stats.locked_bytes
        elif type(held) is gs_pinned.Ring and held.is_pinned:
            n_bytes += held.stats.bytes
    return n_bytes


def _batches(trainer: Trainer) -> dict[str, Any]:
    backend = trainer.backend
    means: dict[str, Any] = {"batches": backend.stats.batches, **backend.stats.means()}
    if trainer.config.trace is not None:
        backend.trace.write()
        spans = backend.trace.spans
        n_batches = sum(name == BATCH for _, name, _, _ in spans)
        means["device_idle_share"] = device_idle_share(spans)
        means["optimizer_tail_s"] = optimizer_tail_s(spans) / max(1, n_batches)
    return means


def _predicted(
    trainer: Trainer, scene: Scene, choice: Choice, n_steps: int, seconds: float
) -> dict[str, Any]:
    config, device = trainer.config, trainer.renderer.device
    work = _workload(trainer, scene, n_images=n_steps * config.batch_size)
    room = room_under(choice.preset, work, choice.limits)
    of = need(choice.preset, work, room)
    if not _is_resorted(trainer, n_steps):
        of.pageable.pop("re-ordering", None)
    bytes_of = _bytes_of(of, is_gpu=device.type == "cuda")
    rates = None
    if device.type == "cuda" and seconds >= _WORTH_S:
        rates = _rates(trainer, training_views(scene), work)
    speed = None if rates is None else predict(choice.preset, work, rates, room)
    return {
        **bytes_of,
        "images_per_second": NOT_AVAILABLE if speed is None else speed.images_per_second,
    }


def _predicted_of_blocks(
    trainer: Trainer, scene: Scene, choice: Choice, n_steps: int, seconds: float
) -> dict[str, Any]:
    """Of steps once all rows that views see have been trained."""
    names = (*_FORETOLD, READ, WRITTEN)
    if not trainer.backend.stats.batches:
        return dict.fromkeys(names, NOT_AVAILABLE)
    try:
        plan, rows = planned_now(trainer, scene, choice)
    except StoreTroubleError:  # the run itself has ended well, or says what is wrong
        return dict.fromkeys(names, NOT_AVAILABLE)
    is_gpu = trainer.renderer.device.type == "cuda"
    rate: float | str = NOT_AVAILABLE
    if is_gpu and seconds >= _WORTH_S:
        rate = images_per_second(trainer, scene, plan, rows)
    return {
        **_bytes_of(plan.need, is_gpu=is_gpu),
        "images_per_second": rate,
        READ: plan.bytes_read,
        WRITTEN: plan.bytes_written,
    }


def _workload(trainer: Trainer, scene: Scene, *, n_images: int) -> Workload:
    work = workload_of(trainer.config, scene, trainer.model.params, trainer.renderer)
    decoded = sorted(map(pixel_bytes, training_sizes(scene.capture).values()), reverse=True)
    cache = min(work.image_cache, sum(decoded[:n_images]))
    return replace(work, image_cache=cache, n_ranks=trainer.n_ranks)


def _bytes_of(of: Need, *, is_gpu: bool) -> dict[str, int | str]:
    """Without a GPU all of it is in the host's memory."""
    if is_gpu:
        on_device, pinned, on_host = of.device_bytes, of.pinned_bytes, of.host_bytes
        return {"device_bytes": on_device, "pinned_bytes": pinned, "host_bytes": on_host}
    return {
        "device_bytes": NOT_AVAILABLE,
        "pinned_bytes": NOT_AVAILABLE,
        "host_bytes": of.device_bytes + of.host_bytes,
    }


def _is_resorted(trainer: Trainer, n_steps: int) -> bool:
    """Whether rows have been re-ordered in the last steps."""
    return trainer.sorted_at > trainer.step - n_steps


def _rates(trainer: Trainer, views: list[View], work: Workload) -> Rates | None:
    model = trainer.model

    def rows_of(ids: Tensor) -> Rows:
        torch.cuda.empty_cache()
        return model.snapshot(ids)

    return measure_rates_for(work, model.params, views, trainer.renderer, rows_of)
