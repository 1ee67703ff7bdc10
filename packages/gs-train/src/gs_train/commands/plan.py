# SPDX-License-Identifier: Apache-2.0
"""``gs-train plan``: what fits on this machine and how fast it should train, without training."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from gs_train.commands.gpus import require_shareable
from gs_train.commands.plan_blocks import OPTION, planned_on_drive
from gs_train.commands.plan_capture import capture_without_photographs
from gs_train.commands.plan_presets import auto_choice, predicted, seeing
from gs_train.commands.plan_ranks import link_of, plan_ranks, planned_ranks, with_link
from gs_train.commands.plan_table import print_plan
from gs_train.errors import InputError
from gs_train.files.atomic import require_writable
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import Stages
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS
from gs_train.options.tide import TideConfig
from gs_train.renderers import Renderer, Rows
from gs_train.runs.offload import training_views, workload_of
from gs_train.runs.renderer import renderer_for
from gs_train.scene.scene import Scene
from gs_train.sizes import Count
from gs_train.sizing.choice import expected_rows
from gs_train.sizing.drive_rates import DriveRates
from gs_train.sizing.duration import StepTime, command_of_run, rows_after, within_an_hour
from gs_train.sizing.memory import caps_of
from gs_train.sizing.peer_link import measure_between_gpus
from gs_train.sizing.photographs import decoded_bytes, scratch_bytes
from gs_train.sizing.rates import STAGES, Rates, rates_for
from gs_train.sizing.timings import Begin
from gs_train.sizing.workload import Workload


@dataclass(frozen=True)
class PlanConfig:
    """Say what each --offload preset would need here, whether it fits, and how fast it should be.
    Reads cameras, points and the sizes of photographs, and trains nothing.

    Attributes:
        data: folder with a COLMAP model (sparse/0 or sparse) or a transforms.json, or that file.
        gaussians: number of Gaussians to plan for, as fit's cap; without it what auto expects from
            the capture's points.
        view_rows: Gaussians that a view sees on average when there are as many as planned for;
            without it views see the share of all that they do now.
        steps: optimizer updates.
        batch_size: images a step.
        order: of the training views in an epoch, as fit's.
        tile_views: most views of a tile, as fit's.
        device_memory: cap on device memory (all that is free).
        host_memory: cap on host memory, the process's own included (all that is available, less a
            tenth).
        mem_limit: gs-scale splits a view that sees more than this share of the scene.
        strategy: how Gaussians would be added: decides what is kept about each.
        sh_degree: spherical harmonics up to this degree, 0 to 3.
        max_side: images are made smaller until their longer side has at most so many pixels; off
            keeps the size of photographs.
        allow_missing: as of fit; photographs that are there are taken to be whole.
        mask: as of fit; a photograph with a mask takes a third more memory.
        depth_weight: as of fit; a photograph with a depth map takes two thirds more memory.
        background: as of fit; any but black takes memory for the largest image.
        exposure: as of fit; takes memory for the largest image.
        image_cache: memory for decoded photographs.
        renderer: raster and gsplat need a CUDA device; cpu runs anywhere; auto takes raster where
            possible, else gsplat, else cpu.
        gpus: also plan for so many GPUs of one machine that share the scene, or all of this
            machine's; with --renderer cpu for so many processes.
        gpu_link: bytes that a GPU sends to another one in a second, such as 200GB (measured where
            this machine has two GPUs; else what passes between a GPU and host memory).
        offload_rates: file for the measured rates: read when it exists, else written. One that was
            written on a machine with a GPU plans for that GPU where there is none, with
            device_memory.
        block_rows: Gaussians of a block of tide, as fit's.
        tide: how much of the Gaussians tide keeps in memory, as fit's.
        store: folder of tide's store, as fit's, or one on the same drive (the working directory).
        drive_rates: bytes a second that this drive reads and writes, such as 4GB:2.1GB; without it
            a second is spent on measuring, where tide would need the drive in each step.
        verbose: list bytes by part.
        json: print one JSON object instead of tables.
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    gaussians: Count | None = None
    view_rows: Count | None = None
    steps: Count = 30_000
    batch_size: int = 1
    order: Literal["shuffle", "tiles"] = "shuffle"
    tile_views: Count | None = None
    device_memory: str | None = None
    host_memory: str | None = None
    mem_limit: float = 0.3
    strategy: Literal["adc", "mcmc", "fixed"] = "adc"
    sh_degree: int = 3
    max_side: int | Literal["off"] = 1600
    allow_missing: bool = False
    mask: Literal["auto", "ignore", "carve", "off"] = "auto"
    depth_weight: str | None = None
    background: Literal["black", "white", "random"] = "black"
    exposure: bool = False
    image_cache: str = "4GiB"
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    gpus: str | None = None
    gpu_link: str | None = None
    offload_rates: Path | None = None
    block_rows: Count = 1024
    tide: TideConfig = field(default_factory=TideConfig)
    store: Path | None = None
    drive_rates: str | None = None
    verbose: bool = False
    json: bool = False

    def as_fit(self) -> FitConfig:
        """The options of a run that this plans.

        Raises:
            InputError: an option is out of range.
        """
        if self.gaussians is not None and not 4 <= self.gaussians < 2**31 - 1:
            raise InputError(f"--gaussians must be from 4 to 2^31 - 2, got {self.gaussians}")
        return FitConfig(
            data=self.data,
            out=Path("RUN"),  # never written to
            steps=self.steps,
            cap=self.gaussians,
            batch_size=self.batch_size,
            order=self.order,
            tile_views=self.tile_views,
            device_memory=self.device_memory,
            host_memory=self.host_memory,
            mem_limit=self.mem_limit,
            strategy=self.strategy,
            sh_degree=self.sh_degree,
            max_side=self.max_side,
            allow_missing=self.allow_missing,
            mask=self.mask,
            depth_weight=self.depth_weight,
            background=self.background,
            exposure=self.exposure,
            image_cache=self.image_cache,
            renderer=self.renderer,
            block_rows=self.block_rows,
            tide=self.tide,
        )


def plan(config: PlanConfig) -> dict[str, Any]:
    """Measure, predict and print; what --json prints is returned.

    What is counted of the capture is what :func:`gs_train.runs.offload.choice_for` counts for a run
    with the same options, so that both say the same of what fits.

    Raises:
        InputError: an option is out of range, or the capture or the rates cannot be read.
    """
    run = config.as_fit()
    n_ranks = planned_ranks(config.gpus, config.renderer)
    given_link = link_of(config.gpu_link)
    given_drive = config.drive_rates and DriveRates.parsed(config.drive_rates, option=OPTION)
    saved = _saved_rates(config)
    is_elsewhere = _is_elsewhere(config, saved)
    renderer = renderer_for(run, "cpu" if is_elsewhere else None)
    if n_ranks > 1:
        require_shareable(run.offload, run.renderer if is_elsewhere else renderer.name)
    device = torch.device("cuda") if is_elsewhere else renderer.device
    caps = caps_of(run, device, is_here=False)
    with Stages("planning", 2 if saved else 2 + STAGES) as stages:
        stages.begin("reading cameras and points")
        capture = capture_without_photographs(run)
        for line in capture.notes:
            stages.message(line)
        scene = Scene.load(capture, renderer.device)
        rows = scene.initial_rows(run, StopRequest())
        stages.begin("what views see")
        work = workload_of(run, scene, rows, renderer)
        alone = work
        if run.batch_size > 1:
            alone = workload_of(replace(run, batch_size=1), scene, rows, renderer)
        if is_elsewhere:  # where another renderer will draw what this one has counted
            work, alone = (replace(each, renderer=run.renderer) for each in (work, alone))
        first, n_later = work, expected_rows(run, work.n_rows)
        if config.view_rows is not None:
            work, alone = (seeing(config.view_rows, n_later, each) for each in (work, alone))
        later = work.with_rows(n_later)
        rates = saved or _measured(config, scene, rows, renderer, later, stages.begin)
    presets = {
        name: predicted(
            preset.splitting_above(run.mem_limit),
            alone if preset.single_view else work,
            later.n_rows,
            run,
            caps,
            rates,
        )
        for name, preset in PRESETS.items()
    }
    result = {
        "data": str(config.data),
        "n_rows": later.n_rows,
        "n_rows_first": work.n_rows,
        "n_rows_last": round(rows_after(run, work.n_rows, run.steps * run.batch_size)),
        "steps": run.steps,
        "caps": asdict(caps),
        "workload": asdict(later),
        "decoded_bytes": decoded_bytes(capture),
        "scratch_bytes": scratch_bytes(
            capture, run.bytes_of("image_cache") or 0, run.steps * run.batch_size
        ),
        "rates": asdict(rates),
        "auto": auto_choice(run, work, caps),
        "presets": presets,
        "tide": planned_on_drive(
            run,
            first.of_cloud(n_later, config.view_rows),
            caps,
            rates,
            folder=None if is_elsewhere else config.store or Path(),
            given=given_drive or None,
        ),
        "ranks": None,
        "within_an_hour": None,
    }
    if n_ranks > 1:
        result["ranks"] = plan_ranks(n_ranks, result, work, run, caps, with_link(rates, given_link))
    if caps.shared:
        smaller = within_an_hour(
            run,
            StepTime(**presets["none"]["step"]),
            work.n_rows,
            longer_side=max(work.width, work.height),
        )
        result["within_an_hour"] = None if smaller is None else command_of_run(smaller)
    if config.json:
        print(json.dumps(result, indent=2, allow_nan=False))
    else:
        print_plan(result, verbose=config.verbose, file=sys.stdout)
    return result


def _saved_rates(config: PlanConfig) -> Rates | None:
    path = config.offload_rates
    if path is not None and path.exists():
        return Rates.load(path)
    if path is not None:  # before some seconds are spent on them
        require_writable(path, option="--offload-rates")
    return None


def _is_elsewhere(config: PlanConfig, saved: Rates | None) -> bool:
    """Whether the plan is for a GPU that is not here.

    Raises:
        InputError: it is, and nothing says how much memory that GPU has.
    """
    if saved is None or not saved.is_of_gpu or config.renderer == "cpu":
        return False
    if torch.cuda.is_available():
        return False
    if config.device_memory is None:
        raise InputError(
            f"--device-memory must say how much {saved.device} has: the rates of "
            f"--offload-rates {config.offload_rates} are that GPU's, which is not here"
        )
    return True


def _measured(
    config: PlanConfig, scene: Scene, rows: Rows, renderer: Renderer, work: Workload, begin: Begin
) -> Rates:
    rates = rates_for(work, rows, training_views(scene), renderer, begin=begin)
    if rates is None:
        raise InputError(
            f"{config.data}: no camera sees any of the points, or memory is too short to measure "
            "how fast this machine is"
        )
    if planned_ranks(config.gpus, config.renderer) > 1 and rates.is_of_gpu:
        rates = replace(rates, between_gpus=measure_between_gpus())
    if config.offload_rates is not None:
        rates.save(config.offload_rates)
    return rates
