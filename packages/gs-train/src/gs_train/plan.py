# SPDX-License-Identifier: Apache-2.0
"""``gs-train plan``: what fits on this machine and how fast it should train, without training."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gs_train.atomic import require_writable
from gs_train.config import FitConfig
from gs_train.engine.budget import largest_n, need
from gs_train.engine.caps import Caps, caps_of
from gs_train.engine.choose import choose, expected_rows
from gs_train.engine.fitting import fit_into
from gs_train.engine.presets import PRESETS, Preset
from gs_train.engine.rates import Rates, measure_rates_for
from gs_train.engine.room import room_least, room_wanted
from gs_train.engine.speed import predict
from gs_train.engine.workload import Workload
from gs_train.errors import InputError
from gs_train.plan_sample import Sample
from gs_train.plan_table import print_plan
from gs_train.renderers import Renderer
from gs_train.run import renderer_for


@dataclass(frozen=True)
class PlanConfig:
    """Say what each --offload preset would need here, whether it fits, and how fast it should be.
    Reads cameras and points, no photographs, and trains nothing.

    Attributes:
        data: folder with a COLMAP model (sparse/0 or sparse).
        gaussians: number of Gaussians to plan for, such as 50M; without it what auto expects from
            the capture's points.
        batch_size: images a step.
        device_memory: cap on device memory (all that is free).
        host_memory: cap on host memory (all that is available, less a tenth).
        mem_limit: gs-scale splits a view that sees more than this share of the scene.
        strategy: how Gaussians would be added: decides what is kept about each.
        sh_degree: spherical harmonics up to this degree, 0 to 3.
        max_side: images are made smaller until their longer side has at most so many pixels.
        image_cache: memory for decoded photographs.
        renderer: gsplat needs a CUDA device; cpu runs anywhere; auto takes gsplat where it can.
        offload_rates: file for the measured rates: read when it exists, else written.
        verbose: list bytes by part.
        json: print one JSON object instead of tables.
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    gaussians: str | None = None
    batch_size: int = 1
    device_memory: str | None = None
    host_memory: str | None = None
    mem_limit: float = 0.3
    strategy: Literal["adc", "mcmc"] = "adc"
    sh_degree: int = 3
    max_side: int | None = None
    image_cache: str = "4GiB"
    renderer: Literal["auto", "gsplat", "cpu"] = "auto"
    offload_rates: Path | None = None
    verbose: bool = False
    json: bool = False

    def as_fit(self) -> FitConfig:
        """The options of a run that this plans.

        Raises:
            InputError: an option is out of range.
        """
        return FitConfig(
            data=self.data,
            out=self.data,  # never written to
            batch_size=self.batch_size,
            device_memory=self.device_memory,
            host_memory=self.host_memory,
            mem_limit=self.mem_limit,
            strategy=self.strategy,
            sh_degree=self.sh_degree,
            max_side=self.max_side,
            image_cache=self.image_cache,
            renderer=self.renderer,
        )


def plan(config: PlanConfig) -> dict[str, Any]:
    """Measure, predict and print; what --json prints is returned.

    Raises:
        InputError: an option is out of range, or the capture cannot be read.
    """
    run = config.as_fit()
    wanted = None
    if config.gaussians is not None:
        wanted = parse_count(config.gaussians, option="--gaussians")
        if not 1 <= wanted < 2**31 - 1:
            raise InputError(f"--gaussians must be from 1 to 2^31 - 2, got {config.gaussians}")
    renderer = renderer_for(run)
    sample = Sample.of(run, renderer)
    n_rows = wanted or expected_rows(run, sample.n_points)
    caps = caps_of(run, renderer.device, is_here=False)
    work = sample.workload(run, renderer, n_rows)
    rates = _rates(config, sample, renderer, work)
    works = {preset.name: work for preset in PRESETS.values()}
    if config.batch_size > 1:
        alone = sample.workload(run, renderer, n_rows, batch_size=1)
        works |= {preset.name: alone for preset in PRESETS.values() if preset.single_view}
    result = {
        "data": str(config.data),
        "n_rows": n_rows,
        "caps": asdict(caps),
        "workload": asdict(work),
        "rates": asdict(rates),
        "auto": _auto(run, work, caps, rates),
        "presets": {
            name: _predict(PRESETS[name].splitting_above(run.mem_limit), of, caps, rates)
            for name, of in works.items()
        },
    }
    if config.json:
        print(json.dumps(result, indent=2, allow_nan=False))
    else:
        print_plan(result, verbose=config.verbose, file=sys.stdout)
    return result


def parse_count(text: str, *, option: str) -> int:
    """``50M``, ``1.5k`` or ``123456`` as a whole number.

    Raises:
        InputError: ``text`` is none of these; the message names ``option``.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmb]?)\s*", text.lower())
    if match is None:
        raise InputError(f"{option} must be a number such as 50M or 200k, got {text!r}")
    return round(float(match[1]) * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[match[2]])


def _rates(config: PlanConfig, sample: Sample, renderer: Renderer, work: Workload) -> Rates:
    path = config.offload_rates
    if path is not None and path.exists():
        return Rates.load(path)
    if path is not None:  # before some seconds are spent on them
        require_writable(path, option="--offload-rates")
    rows = sample.rows
    rates = measure_rates_for(
        work, rows, sample.views, renderer, lambda ids: {name: rows[name][ids] for name in rows}
    )
    if rates is None:
        raise InputError(f"{config.data}: no camera sees any of the points")
    if path is not None:
        rates.save(path)
    return rates


def _auto(run: FitConfig, work: Workload, caps: Caps, rates: Rates) -> dict[str, Any]:
    """What auto would take for these very rows."""
    fixed = replace(run, cap=max(work.n_rows, 4))
    try:
        choice = choose(fixed, work, caps, lambda _: rates)
    except InputError as error:
        return {"preset": None, "reason": str(error)}
    return {"preset": choice.preset.name, "reason": choice.reason}


def _predict(preset: Preset, work: Workload, caps: Caps, rates: Rates) -> dict[str, Any]:
    fitted = fit_into(preset, work, caps)
    room = fitted or room_least(preset, work)
    wanted = need(preset, work, room)
    speed = predict(preset, work, rates, room)
    return {
        "batch_size": work.batch_size,
        "fits": fitted is not None,
        "device_bytes": wanted.device_bytes,
        "pinned_bytes": wanted.pinned_bytes,
        "host_bytes": wanted.host_bytes,
        "parts": asdict(wanted),
        "views_whole": fitted is not None and room.rows >= room_wanted(preset, work).rows,
        "residents": room.residents,
        "images_per_second": speed.images_per_second,
        "bound": speed.bound,
        "seconds": {
            "device": speed.device_s,
            "link": speed.link_s,
            "host": speed.host_s,
        },
        "largest_n": largest_n(preset, work, lambda w: fit_into(preset, w, caps) is not None),
    }
