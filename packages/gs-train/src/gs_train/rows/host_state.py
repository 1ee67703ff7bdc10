# SPDX-License-Identifier: Apache-2.0
"""A host optimizer's state under the flat names of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import gs_adam
from gs_train.rows.attributes import APPEARANCE

MOMENTS = ("exp_avg", "exp_avg_sq")
LAST_STEP = "appearance.last_step"
SCHEDULE = "appearance.schedule."

_OWN = "gs_adam"  # where HostAdam.state_dict() keeps what torch.optim.Adam has not


def packed_schedule(adam: gs_adam.HostAdam) -> list[dict[str, Any]]:
    """The steps of each group, as `gs_adam` packs them; empty where all rows are up to date."""
    return adam.state_dict().get(_OWN, {}).get("schedule", [])


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


def load_state(adam: gs_adam.HostAdam, states: Mapping[str, Tensor]) -> None:
    """Continue a fresh optimizer from step, moments and, where rows sleep, `LAST_STEP` and the
    schedule, under the names of `AppearanceRows.tensors`; copied.

    States without `LAST_STEP`, of dense or sparse rows, are taken as up to date.

    Raises:
        ValueError: something is missing, shapes disagree, or rows sleep and may not.
    """
    state_dict = adam.state_dict()
    saved: dict[int, dict[str, Tensor]] = {}
    check_states(states)
    for index, name in enumerate(APPEARANCE):
        if f"{name}.step" in states:
            saved[index] = {key: states[f"{name}.{key}"] for key in MOMENTS}
            saved[index]["step"] = states[f"{name}.step"].to("cpu", copy=True)
    state_dict["state"] = saved
    state_dict.pop(_OWN, None)
    if LAST_STEP in states:
        schedule = [schedule_of(states, name) for name in APPEARANCE]
        state_dict[_OWN] = {"last_step": states[LAST_STEP].cpu(), "schedule": schedule}
    if saved:
        adam.load_state_dict(state_dict)


def check_states(states: Mapping[str, Tensor]) -> None:
    """Check that step and moments of each attribute are there, all of them or none.

    Raises:
        ValueError: some are missing.
    """
    for name in APPEARANCE:
        keys = [key for key in ("step", *MOMENTS) if f"{name}.{key}" in states]
        if keys and len(keys) != 1 + len(MOMENTS):
            raise ValueError(f"tensors must hold step and moments of {name}, got {keys}")


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
