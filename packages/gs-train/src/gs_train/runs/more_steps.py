# SPDX-License-Identifier: Apache-2.0
"""A finished run goes on: the options of the longer run."""

from __future__ import annotations

import dataclasses

from gs_train.checkpoint import open_latest
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.runs.folder import RunFolder


def with_more_steps(config: FitConfig, n: int, before: FitConfig | None) -> FitConfig:
    """The options with which the run in ``config.out`` goes on for ``n`` steps.

    The result is that of a run that had all steps from the start, and the first run's
    ``decay_steps``, or without the option the first run's steps. So the learning rate of the means
    stays what it was at the end of the first run. Where ``decay_steps`` is above the first run's
    steps, the learning rate decays on until step ``decay_steps`` and stays from there.

    Args:
        config: options of the call, over those of the run.
        before: of the run; None where there is none.

    Raises:
        InputError: ``n`` is less than 1, or there is no finished run.
    """
    if n < 1:
        raise InputError(f"--more-steps must be at least 1, got {n}")
    if before is None:
        raise InputError(f"--more-steps needs a finished run in --out, {config.out} holds none")
    folder = RunFolder(config.out)
    checkpoint = open_latest(folder.checkpoints)
    if checkpoint is None:
        raise InputError(f"--more-steps needs a finished run, {folder.no_checkpoint()}")
    if checkpoint.step < before.steps:
        raise InputError(
            f"--more-steps needs a finished run, {config.out} is at step {checkpoint.step:,} of "
            f"{before.steps:,}: finish it with --resume first"
        )
    return dataclasses.replace(
        config, resume=True, steps=checkpoint.step + n, decay_steps=before.steps_of_decay
    )
