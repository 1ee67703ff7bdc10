# SPDX-License-Identifier: Apache-2.0
"""How long a run takes, from the seconds of its steps and from how its Gaussians grow in number."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gs_train.densify.mcmc import GROWTH as MCMC_GROWTH
from gs_train.options.config import FitConfig
from gs_train.sizing.choice import expected_rows

HOUR_S = 3600.0
_PIECES = 100  # that a run is added up from
_HEADROOM = 0.8  # of an hour: what is foretold is not exact

_STEPS, _SIDES, _CAPS = (7000, 3000, 1000), (1600, 1280, 960, 800, 640, 480, 320), 100_000


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step as a straight line: ``fixed_s + row_s * N`` with N Gaussians."""

    fixed_s: float
    row_s: float

    @classmethod
    def through(cls, n_few: int, few_s: float, n_many: int, many_s: float) -> StepTime:
        """The line through two points; level where both are the same or where more rows seem to
        take less time."""
        row_s = max(0.0, many_s - few_s) / max(1, n_many - n_few)
        return cls(max(0.0, many_s - row_s * n_many), row_s)

    def at(self, n_rows: float) -> float:
        """With so many Gaussians."""
        return self.fixed_s + self.row_s * n_rows


def rows_after(config: FitConfig, n_first: int, images: int) -> float:
    """Gaussians after so many images, of a run that starts with ``n_first``.

    MCMC multiplies them in each refinement, up to the cap. What adaptive density control adds
    depends on the photographs: it is taken to add the same number in each refinement, and to reach
    `expected_rows` in the last one.
    """
    if config.strategy == "fixed":
        return n_first
    last = expected_rows(config, n_first)
    of = config.mcmc if config.strategy == "mcmc" else config.adc
    growing = min(images, of.refine_stop) - of.refine_start
    if growing <= 0:
        return n_first
    if config.strategy == "mcmc":
        growth = MCMC_GROWTH ** min(growing // of.refine_every, 1000)
        return max(n_first, min(last, n_first * growth))
    return n_first + (last - n_first) * growing / (of.refine_stop - of.refine_start)


def seconds_of_run(config: FitConfig, step: StepTime, n_first: int) -> float:
    """All steps of a run that starts with ``n_first`` Gaussians."""
    seconds = 0.0
    for piece in range(_PIECES):
        images = int((piece + 0.5) / _PIECES * config.steps) * config.batch_size
        seconds += step.at(rows_after(config, n_first, images))
    return seconds * config.steps / _PIECES


def as_hours(seconds: float) -> str:
    """``H:MM``, rounded up to a minute."""
    minutes = -int(-seconds // 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def within_an_hour(
    config: FitConfig, step: StepTime, n_first: int, *, longer_side: int
) -> FitConfig | None:
    """The same run with fewer steps, smaller images and a cap, so that it ends within an hour on
    this CPU; None where it does as it is, or where nothing offered does.

    Steps matter most, then the size of images: 7,000 steps are left if any size allows it.

    Args:
        longer_side: of the images, pixels. The part of a step that grows with no Gaussians is
            drawing pixels and comparing them, so that it shrinks with their number.
    """
    if seconds_of_run(config, step, n_first) <= HOUR_S:
        return None
    cap = max(n_first, min(expected_rows(config, n_first), _CAPS))
    for steps in _STEPS:
        for side in (longer_side, *(side for side in _SIDES if side < longer_side)):
            most = config.max_side if side == longer_side else side
            smaller = replace(config, steps=min(steps, config.steps), max_side=most, cap=cap)
            pixels = (side / longer_side) ** 2
            faster = StepTime(step.fixed_s * pixels, step.row_s)
            if seconds_of_run(smaller, faster, n_first) <= _HEADROOM * HOUR_S:
                return smaller
    return None


def command_of_run(config: FitConfig) -> str:
    """The command line of a run: each option that differs from its default."""
    default = FitConfig(config.data, config.out)
    words = ["gs-train", "fit", str(config.data), "--out", str(config.out)]
    return shlex.join([*words, *_options(config, default)])


def _options(config: Any, default: Any, within: str = "") -> Iterator[str]:
    """The words that make ``config`` of ``default``, both of one dataclass.

    Args:
        within: what precedes the options' names, with its dot.
    """
    for item in dataclasses.fields(config):
        value, usual = getattr(config, item.name), getattr(default, item.name)
        name = item.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _options(value, usual, f"{within}{name}.")
        elif value == usual:
            continue
        elif isinstance(value, bool):
            yield f"--{within}{name}" if value else f"--{within}no-{name}"
        else:
            yield from (f"--{within}{name}", str(value))
