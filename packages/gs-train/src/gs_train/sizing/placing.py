# SPDX-License-Identifier: Apache-2.0
"""Which preset a run gets, and the cap on device memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gs_train.engine.limits import Limits
from gs_train.errors import InputError
from gs_train.machine.memory import resident_bytes
from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.options.config import FitConfig
from gs_train.options.presets import Preset
from gs_train.renderers import Renderer, Rows, View
from gs_train.scene.scene import Scene
from gs_train.sizing.budget import need
from gs_train.sizing.caps import caps_of
from gs_train.sizing.choose import Choice, choose, expected_rows, statistics_bytes
from gs_train.sizing.fitting import limits_within
from gs_train.sizing.rates import Rates, measure_rates_for
from gs_train.sizing.room import room_under
from gs_train.sizing.view_rates import Begin
from gs_train.sizing.workload import Workload, measure_workload

_SAMPLED_ROWS = 1_000_000
"""Rows that are on the device while rates are measured, at most."""


@dataclass(frozen=True)
class Placing:
    """Where the rows of a run live.

    Attributes:
        preset: which.
        limits: of rows, where memory sets them.
        reason: one line for the user.
        host_bytes_before: memory that the process had resident before its rows got there; None
            where that cannot be told.
    """

    preset: Preset
    limits: Limits
    reason: str
    host_bytes_before: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"preset": self.preset.name, "limits": self.limits.to_plain()}


def place(
    config: FitConfig,
    scene: Scene,
    rows: Rows,
    renderer: Renderer,
    *,
    before: Mapping[str, Any] | None = None,
) -> Placing:
    """Choose where the rows live, from what views see of them and what memory there is.

    Args:
        config: of the run; ``--offload auto`` goes on with a resumed run's preset.
        scene: its training views are looked at.
        rows: the Gaussians as they are now, on any device; their geometry alone where ``before``
            is given.
        renderer: not a row is on its device yet.
        before: :meth:`Placing.to_plain` of the checkpoint that is resumed. With its preset, and
            where its limits still fit, views are cut as before, so that the run goes on to the same
            bits.

    Raises:
        InputError: what was asked for does not fit, or cannot go on from the checkpoint.
    """
    reason = None
    if before is not None and config.offload == "auto":
        config = dataclasses.replace(config, offload=before["preset"])
        reason = "as before"
    work = workload_of(config, scene, rows, renderer)
    choice, limits = place_within(config, work, renderer.device)
    if before is not None and before["preset"] == choice.preset.name:
        saved = Limits(**before["limits"])
        kept = need(choice.preset, work, room_under(choice.preset, work, saved))
        if caps_of(config, renderer.device).hold(kept):
            limits = dataclasses.replace(saved, capacity=limits.capacity)
        else:
            reason = f"{reason or choice.reason}, with fewer rows on the device than before"
    return Placing(choice.preset, limits, reason or choice.reason, _resident_without(rows))


def training_views(scene: Scene) -> list[View]:
    """Those that batches are drawn from."""
    return [scene.views[i] for i in scene.capture.train]


def workload_of(config: FitConfig, scene: Scene, rows: Rows, renderer: Renderer) -> Workload:
    """What the training views of a run see of its Gaussians.

    Args:
        rows: as :func:`place`'s.
    """
    cache = config.bytes_of("image_cache")
    assert cache is not None
    image_bytes = sum(3 * view.width * view.height for view in scene.views)
    return measure_workload(
        rows,
        training_views(scene),
        renderer,
        n_rows=len(rows["means"]),
        sh_degree=config.sh_degree,
        batch_size=config.batch_size,
        image_cache=min(cache, image_bytes),
        statistics_bytes=statistics_bytes(config),
        seed=config.seed,
    )


def place_within(config: FitConfig, work: Workload, device: torch.device) -> tuple[Choice, Limits]:
    """The preset of a run and how many rows may be on the device, from the options' caps.

    Raises:
        InputError: nothing fits, or not what was asked for.
    """
    caps = caps_of(config, device)
    choice = choose(config, work, caps)
    return choice, limits_within(
        choice.preset,
        work.with_rows(choice.n_rows),
        caps,
        choice.room,
        grows_to=expected_rows(config, work.n_rows),
    )


def rates_for(
    work: Workload,
    rows: Rows,
    views: list[View],
    renderer: Renderer,
    *,
    begin: Begin = lambda _: None,
) -> Rates | None:
    """The machine's, in some seconds; None where that takes more memory than there is, or where no
    view sees any row.

    Args:
        work: of the scene as it will be.
        rows: as it is now, on any device.
        begin: see :func:`gs_train.sizing.rates.measure_rates`.
    """
    every = -(-len(rows["means"]) // _SAMPLED_ROWS)

    def sampled(ids: Tensor) -> dict[str, Tensor]:
        chosen = {name: values[ids] for name, values in some.items()}
        # As large as covers what all rows cover.
        chosen["scales"] = chosen["scales"] + 0.5 * math.log(every)
        return chosen

    try:
        some = {
            name: values.detach()[::every].to(renderer.device).contiguous()
            for name, values in rows.items()
        }
        n_first = len(rows["means"])
        return measure_rates_for(work, some, views, renderer, sampled, n_first=n_first, begin=begin)
    except (MemoryError, RuntimeError) as error:
        if memory_that_ran_out(error) is None:
            raise
        return None


def _resident_without(rows: Rows) -> int | None:
    """Memory that the process has resident for anything but these rows."""
    resident = resident_bytes()
    if resident is None:
        return None
    on_host = (values for values in rows.values() if values.device.type == "cpu")
    return resident - sum(values.untyped_storage().nbytes() for values in on_host)


def cap_device_memory(config: FitConfig, device: torch.device) -> None:
    """Make ``--device-memory`` hold: tensors beyond it are refused as on a device of that size.

    It covers all that torch's allocator takes in this process, which is everything that this
    project and gsplat allocate. It does not cover the CUDA context and loaded kernels (some hundred
    MiB), libraries that allocate by themselves, or other processes.

    Raises:
        InputError: the device has less.
    """
    wanted = config.bytes_of("device_memory")
    if wanted is None or device.type != "cuda":
        return
    # Setting a limit, unlike asking for one, takes no device without an index.
    index = torch.cuda.current_device() if device.index is None else device.index
    total = torch.cuda.get_device_properties(index).total_memory
    if wanted > total:
        raise InputError(
            f"--device-memory must be at most the {total:,} bytes that {device} has, got {wanted:,}"
        )
    torch.cuda.set_per_process_memory_fraction(wanted / total, index)
