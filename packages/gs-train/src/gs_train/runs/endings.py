# SPDX-License-Identifier: Apache-2.0
"""What a run that ends in trouble says about going on."""

from __future__ import annotations

from gs_train.machine.out_of_memory import in_short, work_of
from gs_train.runs.trainer import Trainer


def how_to_go_on(trainer: Trainer, saved_step: int | None) -> str:
    """After an error that says nothing of memory; ``saved_step`` is None without a checkpoint."""
    remedy = "there is no checkpoint yet (--checkpoint-every)"
    if saved_step is not None:
        remedy = f"go on from the checkpoint of step {saved_step} with --resume"
    return f"training ended after step {trainer.step}; {remedy}"


def out_of_memory(
    what: str, error: BaseException, trainer: Trainer, n_rows: int, saved_step: int | None
) -> str:
    """The line of a run without memory, and what to give instead.

    Args:
        what: memory, ``device`` or ``host``.
        n_rows: before the step that ended so, perhaps in the middle of a refinement.
        saved_step: of the last checkpoint, None without one.
    """
    remedy = f"more memory (a larger --{what}-memory) or another --offload"
    if saved_step is not None:  # whose --cap stays
        remedy = f"go on from the checkpoint of step {saved_step} with --resume and {remedy}"
    else:
        again = "there is no checkpoint yet (--checkpoint-every), so start again with"
        remedy = f"{again} a smaller --cap or --batch-size, {remedy}"
    work = work_of(error)
    where = f", in {work}" if work else ""
    return (
        f"{what} memory ran out after step {trainer.step}, with {n_rows:,} Gaussians{where}"
        f"{in_short(error)}; {remedy}"
    )


def newest(saved_step: int | None) -> str:
    """What a run has saved that was stopped amid a step or a save; as `how_to_go_on`."""
    if saved_step is None:
        return "no checkpoint written"
    return f"the newest checkpoint is of step {saved_step:,}"
