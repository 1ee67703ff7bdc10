# SPDX-License-Identifier: Apache-2.0
"""What ``--offload`` and the caps on memory mean for a run: where its rows live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from gs_train.data.pixel_file import pixel_bytes
from gs_train.engine.together import Sharing
from gs_train.errors import InputError
from gs_train.losses.background import BACKGROUND_BYTES
from gs_train.losses.exposure import EXPOSURE_BYTES
from gs_train.machine.memory import resident_bytes
from gs_train.options.config import FitConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS, preset_named
from gs_train.renderers import Renderer, Rows, View
from gs_train.rows.strands import most_rows_of_rank
from gs_train.scene.scene import Scene
from gs_train.scene.view_order import view_sampler
from gs_train.sizing.blocks import block_room
from gs_train.sizing.census import measure_workload
from gs_train.sizing.choice import Choice, choose, statistics_bytes
from gs_train.sizing.forecasts import need, room_under
from gs_train.sizing.memory import caps_of
from gs_train.sizing.photographs import decoded_bytes
from gs_train.sizing.workload import Workload
from gs_train.tide.block_room import n_blocks
from gs_train.world import World


def choice_for(
    config: FitConfig,
    scene: Scene,
    rows: Rows,
    renderer: Renderer,
    *,
    before: Mapping[str, Any] | None = None,
    n_ranks: int = 1,
) -> Choice:
    """Choose where the rows live, from what views see of them and what memory there is.

    Args:
        config: of the run; ``--offload auto`` goes on with a resumed run's preset.
        scene: its training views are looked at.
        rows: the Gaussians as they are now, on any device; their geometry alone where ``before``
            is given.
        renderer: not a row is on its device yet.
        before: :meth:`Choice.to_plain` of the checkpoint that is resumed. With its preset, and
            where its limits still fit, views are cut as before, so that the run goes on to the same
            bits.
        n_ranks: of this host, among which rows and host memory are shared; ``rows`` are those of
            one of them.

    Raises:
        InputError: what was asked for does not fit, or cannot go on from the checkpoint.
    """
    reason = None
    if before is not None and config.offload == "auto":
        config = replace(config, offload=before["preset"])
        reason = "as before"
    caps = caps_of(config, renderer.device)
    if n_ranks > 1:
        config, caps = share_of(config, n_ranks), caps.share(n_ranks)
    work = replace(workload_of(config, scene, rows, renderer), n_ranks=n_ranks)
    choice = choose(config, work, caps)
    limits, reason = choice.limits, reason or choice.reason
    if before is not None and before["preset"] == choice.preset.name:
        saved = Limits(**before["limits"])
        if caps.hold(need(choice.preset, work, room_under(choice.preset, work, saved))):
            limits = replace(saved, capacity=limits.capacity)
        else:
            reason = f"{reason}, with fewer rows on the device than before"
    return Choice(choice.preset, limits, reason, _resident_without(rows))


def choice_of_blocks(
    config: FitConfig, scene: Scene, n_rows: int, device: torch.device, rows: Rows | None = None
) -> Choice:
    """Choose how much of the rows is in memory, of a preset that keeps them on a drive. What views
    see is not looked at.

    Args:
        config: of the run, whose ``offload`` names the preset.
        scene: whose training photographs take memory too.
        n_rows: of the scene.
        device: of the renderer.
        rows: that are in memory now, and leave it.

    Raises:
        InputError: there is no room for the blocks that a run needs at least.
    """
    preset, caps = preset_named(config.offload), caps_of(config, device)
    cache = config.bytes_of("image_cache")
    assert cache is not None
    room = block_room(
        config,
        n_rows,
        caps,
        block_rows=config.block_rows,
        photographs=min(cache, decoded_bytes(scene.capture)),
    )
    reason = (
        f"as --offload says, with {room.slots:,} blocks of {room.block_rows:,} on the device and "
        f"{room.places:,} in host memory, of {n_blocks(n_rows, room.block_rows):,}"
    )
    return Choice(preset, UNLIMITED, reason, _resident_without(rows or {}), room)


def choice_of_ranks(
    config: FitConfig,
    scene: Scene,
    rows: Rows,
    renderer: Renderer,
    world: World,
    *,
    before: Mapping[str, Any] | None = None,
) -> Choice:
    """:func:`choice_for` on each rank, with the same preset on all. A collective.

    Args:
        rows: of this rank.
    """

    def chosen(config: FitConfig) -> Choice:
        return choice_for(config, scene, rows, renderer, before=before, n_ranks=world.size)

    choice = chosen(config)
    names = list(PRESETS)
    if len(set(world.gather(names.index(choice.preset.name)).tolist())) == 1:
        return choice
    choice = chosen(replace(config, offload="best"))
    return replace(choice, reason="not all ranks have room for all of their rows")


def share_of(config: FitConfig, n_ranks: int) -> FitConfig:
    """The options of one of several ranks, which has a part of the cap and of the memory for
    photographs."""
    cap = config.row_cap
    if cap is not None:
        cap = max(4, most_rows_of_rank(cap, n_ranks))
    cache = config.bytes_of("image_cache")
    assert cache is not None
    return replace(config, cap=cap, image_cache=str(max(1, cache // n_ranks)))


def sharing_of(config: FitConfig, world: World) -> Sharing:
    """How the ranks of a run share its rows and views."""
    return Sharing(world, cuts_views=config.cut_views == "auto")


def few_views(config: FitConfig, n_ranks: int) -> str | None:
    """What to say of batches with fewer views than ranks; None where they have enough."""
    n = config.batch_size
    if n >= n_ranks:
        return None
    views = f"a batch of {n} view{'s' * (n > 1)}"
    what = f"{views} is cut for {n_ranks} processes, which may take longer than one takes"
    if config.cut_views == "never":
        what = f"{views} leaves {n_ranks - n} of {n_ranks} processes idle"
    return (
        f"{what}: --batch-size {n_ranks}, or a multiple of it, lets each draw whole views "
        f"(gs-train plan --gpus {n_ranks} foretells the rates)"
    )


def training_views(scene: Scene) -> list[View]:
    """Those that batches are drawn from."""
    return [scene.views[i] for i in scene.capture.train]


def workload_of(
    config: FitConfig, scene: Scene, rows: Rows, renderer: Renderer, *, n_rows: int | None = None
) -> Workload:
    """What the training views of a run see of its Gaussians.

    Args:
        rows: as :func:`choice_for`'s, or evenly some of them.
        n_rows: how many Gaussians there are, where ``rows`` are some of them.
    """
    cache = config.bytes_of("image_cache")
    assert cache is not None
    photographs = [view.pixel_size for view in scene.capture.views]
    work = measure_workload(
        rows,
        training_views(scene),
        renderer,
        n_rows=n_rows or len(rows["means"]),
        sh_degree=config.sh_degree,
        batch_size=config.batch_size,
        sampler=view_sampler(config, scene.capture),
        image_cache=min(cache, sum(map(pixel_bytes, photographs))),
        statistics_bytes=statistics_bytes(config),
    )
    return replace(
        work,
        channels=max(view.n_channels for view in scene.capture.views),
        carves=scene.capture.mask == "carve",
        depths=config.depth_weight is not None and scene.capture.has_depths,
        loss_bytes=BACKGROUND_BYTES * (config.background != "black")
        + EXPOSURE_BYTES * config.exposure,
    )


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
