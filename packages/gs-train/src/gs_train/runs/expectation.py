# SPDX-License-Identifier: Apache-2.0
"""What a run that has just begun says of how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene
from gs_train.sizing.duration import (
    StepTime,
    as_hours,
    command_of_run,
    rows_after,
    seconds_of_run,
    within_an_hour,
)

_WARM_UP, _LEAST_STEPS, _LEAST_S = 3, 10, 10.0

_PIXELS_OF_A_ROW = 10
"""A Gaussian that a view sees takes as long as so many pixels of its image. Measured on a CPU, at
0.03 to 0.5 megapixels: 8 to 20."""


class Expectation:
    """Times the first steps of a process and says once how long all will take.

    Args:
        trainer: before its first step.
        scene: that it trains.
        suggests: whether a command line can train the scene, so that one may be suggested.
        clock: seconds, monotonic.

    Attributes:
        seconds: of all steps, as was said; None: nothing has been said.
    """

    def __init__(
        self,
        trainer: Trainer,
        scene: Scene,
        *,
        suggests: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds: float | None = None
        self._trainer = trainer
        self._scene = scene
        self._suggests = suggests
        self._clock = clock
        self._n_first = trainer.n_rows
        self._n_steps = 0
        self._started = clock()
        self._is_said = trainer.step > 0  # a resumed run's progress says what is left

    def after_step(self) -> list[str]:
        """Count a step.

        Returns:
            Lines for the user, once ten steps and ten seconds are over, those left out in which
            kernels are compiled; else none.
        """
        if self._is_said:
            return []
        self._n_steps += 1
        if self._n_steps <= _WARM_UP:
            self._started = self._clock()
        seconds, n_timed = self._clock() - self._started, self._n_steps - _WARM_UP
        if n_timed < _LEAST_STEPS or seconds < _LEAST_S:
            return []
        self._is_said = True
        return self._lines(seconds / n_timed)

    def _lines(self, step_s: float) -> list[str]:
        config = self._trainer.config
        step = self._step_time(step_s)
        self.seconds = seconds_of_run(config, step, self._n_first)
        hours = as_hours(self.seconds)
        line = f"{config.steps:,} steps will take about {hours} (hours:minutes)"
        last = round(rows_after(config, self._n_first, config.steps * config.batch_size))
        if last > self._n_first:
            line += f", with {self._n_first:,} Gaussians that become up to {last:,}"
        lines = [line]
        if self._suggests and self._trainer.renderer.device.type == "cpu":
            views = self._scene.views
            side = max(max(view.width, view.height) for view in views)
            smaller = within_an_hour(config, step, self._n_first, longer_side=side)
            if smaller is not None:
                again = replace(smaller, overwrite=True)
                lines.append(f"within an hour on this CPU: {command_of_run(again)}")
        return lines

    def _step_time(self, step_s: float) -> StepTime:
        """Split what a step takes: into what pixels take, and what Gaussians that are seen do."""
        stats, views = self._trainer.backend.stats, self._scene.views
        pixels = sum(view.width * view.height for view in views) / len(views)
        pixels *= self._trainer.config.batch_size
        # Where a batch lists more rows than it sees, the others cost next to nothing.
        visible = min(stats.visible, stats.seen * self._trainer.config.batch_size)
        visible *= self._trainer.n_ranks  # each owns as many
        of_rows = _PIXELS_OF_A_ROW * visible / max(1, stats.batches)
        growing_s = step_s * of_rows / (of_rows + pixels)
        return StepTime(step_s - growing_s, growing_s / self._n_first)
