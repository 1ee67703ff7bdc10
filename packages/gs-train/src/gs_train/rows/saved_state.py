# SPDX-License-Identifier: Apache-2.0
"""Names of an optimizer's state in a checkpoint, and its past steps under such names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
LAST_STEP = "appearance.last_step"
SCHEDULE = "appearance.schedule."


def flat_schedule(schedule: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    """A schedule as `gs_adam` packs it, by the groups' names, under flat names."""
    flat = {}
    for group, packed in schedule.items():
        for key, value in packed.items():
            is_number = isinstance(value, float)
            flat[f"{SCHEDULE}{group}.{key}"] = (
                torch.tensor(value, dtype=torch.float64) if is_number else value
            )
    return flat


def schedule_of(states: Mapping[str, Tensor], group: str) -> dict[str, Any]:
    """The schedule of a group, as `gs_adam` packs it.

    Raises:
        ValueError: there is none.
    """
    prefix = f"{SCHEDULE}{group}."
    packed: dict[str, Any] = {
        name.removeprefix(prefix): value.item() if value.ndim == 0 else value
        for name, value in states.items()
        if name.startswith(prefix)
    }
    if not packed:
        raise ValueError(f"tensors must hold {prefix}* where they hold {LAST_STEP}, got none")
    return packed
