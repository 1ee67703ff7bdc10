# SPDX-License-Identifier: Apache-2.0
"""How long a run takes: what is foretold, and what a run says once it has begun."""

import dataclasses
import itertools
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import tyro

from gs_train.densify import AdcConfig, McmcConfig
from gs_train.options.config import FitConfig
from gs_train.runs.expectation import Expectation
from gs_train.sizing.duration import (
    HOUR_S,
    StepTime,
    as_hours,
    command_of_run,
    rows_after,
    seconds_of_run,
    within_an_hour,
)


def _config(**options: Any) -> FitConfig:
    return FitConfig(data=Path("my data"), out=Path("run"), **options)


def test_adaptive_density_control_is_taken_to_add_rows_evenly() -> None:
    config = _config(cap=11_000, adc=AdcConfig(refine_start=500, refine_stop=1500))
    images = (0, 500, 1000, 1500, 30_000)
    assert [rows_after(config, 1000, n) for n in images] == [1000, 1000, 6000, 11_000, 11_000]
    never = _config(adc=AdcConfig(refine_stop=0))
    assert rows_after(never, 1000, 30_000) == 1000


def test_mcmc_multiplies_rows_up_to_its_cap() -> None:
    mcmc = McmcConfig(refine_start=500, refine_every=100, refine_stop=2500)
    config = _config(strategy="mcmc", cap=2000, mcmc=mcmc)
    assert rows_after(config, 1000, 500) == 1000
    assert rows_after(config, 1000, 700) == pytest.approx(1000 * 1.05**2)
    assert rows_after(config, 1000, 2500) == 2000


def test_a_run_takes_the_steps_at_the_rows_that_it_has_then() -> None:
    level = _config(steps=1000, cap=1000, batch_size=4)
    assert seconds_of_run(level, StepTime(0.5, 1e-3), 1000) == pytest.approx(1500)
    # 1000 rows up to step 500, then evenly to 11,000 in step 1500, then as many.
    growing = _config(steps=2000, cap=11_000, adc=AdcConfig(refine_start=500, refine_stop=1500))
    mean = (500 * 1000 + 1000 * 6000 + 500 * 11_000) / 2000
    assert seconds_of_run(growing, StepTime(0, 1e-3), 1000) == pytest.approx(2 * mean, rel=1e-3)


def test_step_times_follow_a_line_that_never_falls() -> None:
    line = StepTime.through(1000, 1.0, 3000, 2.0)
    assert (line.at(1000), line.at(3000), line.at(0)) == pytest.approx((1.0, 2.0, 0.5))
    assert StepTime.through(1000, 2.0, 3000, 1.0) == StepTime(1.0, 0.0)
    assert StepTime.through(1000, 1.0, 1000, 1.0).at(1000) == pytest.approx(1.0)


def test_hours_are_rounded_up_to_minutes() -> None:
    assert [as_hours(s) for s in (0, 1, 60, 61, 3600, 36_001)] == [
        *("0:00", "0:01", "0:01", "0:02", "1:00", "10:01"),
    ]


def test_what_is_suggested_ends_within_an_hour_and_can_be_typed() -> None:
    config, step = _config(renderer="cpu"), StepTime(0.5, 2e-6)
    smaller = within_an_hour(config, step, 15_000, longer_side=960)
    assert smaller is not None
    assert smaller.steps == 7000
    assert isinstance(smaller.max_side, int)
    assert smaller.max_side < 960
    fixed_s = step.fixed_s * (smaller.max_side / 960) ** 2
    assert seconds_of_run(smaller, StepTime(fixed_s, step.row_s), 15_000) < HOUR_S
    said = command_of_run(smaller)
    assert said == (
        "gs-train fit 'my data' --out run --steps 7000 --renderer cpu "
        f"--max-side {smaller.max_side} --cap 100000"
    )
    assert tyro.cli(FitConfig, args=shlex.split(said)[2:]) == smaller


_OTHER_WORDS = {
    "order": "tiles", "means_extent": "view",
    "renderer": "cpu", "strategy": "mcmc", "frame": "local", "image_cache": "1 GiB",
    "offload": "best", "device_memory": "2GiB", "host_memory": "3 GiB", "semantics": "sparse",
    "regularise": "visible", "cut_views": "never", "decay_steps": 7, "mask": "carve",
    "slots": 5, "arena": "1 GiB",
    "background": "white",
}  # fmt: skip


def _all_other(config: Any, **given: Any) -> Any:
    """``config`` with another value for each option, those of its parts included."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.name in given:
            continue
        if dataclasses.is_dataclass(value):
            given[item.name] = _all_other(value)
        elif isinstance(value, bool):
            given[item.name] = not value
        elif isinstance(value, (int, float)):
            given[item.name] = value + 1 if isinstance(value, int) else value * 0.9
        else:
            given[item.name] = _OTHER_WORDS[item.name]
    return replace(config, **given)


def test_the_command_names_every_option_that_differs_from_its_default() -> None:
    plain = _config()
    assert command_of_run(plain) == "gs-train fit 'my data' --out run"
    other = _all_other(
        plain,
        data=plain.data,
        out=plain.out,
        resume=False,  # excludes overwrite
        sh_degree=1,
        tile_views=64,
        max_side=640,
        cap=7000,
        init=Path("a cloud.ply"),
        test_list=Path("test.txt"),
        gpus="2",
        scratch=Path("a disk"),
        store=None,  # of another preset
        trace=Path("trace.json"),
        init_opacity=0.3,
        init_scale=1e-7,
        depth_weight="1:0.01",
        opacity_reg=0.02,
        scale_reg=0.03,
        lpips_backbone=Path("alex.pth"),
        adc=_all_other(AdcConfig(), cap=6000),
    )
    said = command_of_run(other)
    assert tyro.cli(FitConfig, args=shlex.split(said)[2:]) == other
    for words in ("--no-scale-with-batch", "--adc.absgrad", "--lr.shN", "--init 'a cloud.ply'"):
        assert f" {words} " in said


def test_images_are_not_reduced_where_fewer_steps_will_do() -> None:
    smaller = within_an_hour(_config(), StepTime(0.1, 2e-6), 15_000, longer_side=320)
    assert smaller is not None
    assert (smaller.steps, smaller.max_side) == (7000, 1600)
    assert "--max-side" not in command_of_run(smaller)


def test_nothing_is_suggested_where_the_run_is_short_or_nothing_helps() -> None:
    assert within_an_hour(_config(), StepTime(0.01, 1e-8), 15_000, longer_side=960) is None
    assert within_an_hour(_config(), StepTime(0.0, 1.0), 15_000, longer_side=960) is None


def _trainer(config: FitConfig, device: str = "cpu", step: int = 0) -> Any:
    return SimpleNamespace(
        config=config,
        step=step,
        n_rows=10_000,
        n_ranks=1,
        renderer=SimpleNamespace(device=torch.device(device)),
        backend=SimpleNamespace(stats=SimpleNamespace(batches=1, visible=8000, seen=8000)),
    )


_SCENE: Any = SimpleNamespace(views=(SimpleNamespace(width=800, height=400),) * 3)


def _said(trainer: Any, step_s: float, n_steps: int = 100, *, suggests: bool = True) -> list[str]:
    ticks = itertools.count()
    expectation = Expectation(
        trainer, _SCENE, suggests=suggests, clock=lambda: next(ticks) * step_s / 2
    )
    return [line for _ in range(n_steps) for line in expectation.after_step()]


def test_a_run_says_once_how_long_it_will_take() -> None:
    # 8,000 rows cost as much as 80,000 of the 320,000 pixels: a fifth of a step.
    config = _config(steps=3000, cap=50_000, adc=AdcConfig(refine_start=0, refine_stop=3000))
    (line,) = _said(_trainer(config, "cuda"), 1.0)
    assert line.startswith("3,000 steps will take about ")
    assert line.endswith(", with 10,000 Gaussians that become up to 50,000")
    assert _said(_trainer(replace(config, cap=10_000), "cuda"), 1.0, 12) == []


def test_on_a_cpu_it_adds_a_command_that_ends_within_an_hour() -> None:
    lines = _said(_trainer(_config()), 2.0)
    assert len(lines) == 2
    assert lines[1].startswith("within an hour on this CPU: gs-train fit 'my data' --out run --st")
    assert lines[1].endswith(" --overwrite")
    assert _said(_trainer(_config()), 2.0, suggests=False) == lines[:1]


def test_short_and_resumed_runs_say_nothing() -> None:
    assert _said(_trainer(_config()), 0.01) == []
    assert _said(_trainer(_config(), step=50), 10.0) == []
