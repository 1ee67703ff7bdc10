# SPDX-License-Identifier: Apache-2.0
"""What a state dict holds beyond torch.optim.Adam's, and whether one fits."""

from __future__ import annotations

from typing import Any

import torch

from gs_adam import _core
from gs_adam._arguments import keyed, listed, number, series
from gs_adam._storage import check_steps
from gs_adam._tensors import MOMENTS, check_apart, check_param

KEY = "gs_adam"
"""Top-level key of a deferred optimizer's own part: ``last_step`` and the steps so far."""


def pack_schedule(schedule: _core.Schedule, n_groups: int) -> list[dict[str, Any]]:
    """The steps so far, a dict a group of betas and tensors; empty before the first step."""
    packed = []
    for group in range(n_groups):
        state = schedule.state(group)
        if state is None:
            return []
        packed.append(
            {k: v if isinstance(v, float) else torch.from_numpy(v) for k, v in state.items()}
        )
    return packed


def unpack_schedule(packed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `_core.Schedule.restore` takes."""
    groups = [
        {k: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for k, v in group.items()}
        for group in packed
    ]
    return series(groups, "state_dict's schedule")


def check_schedule(packed: Any) -> list[dict[str, Any]]:
    """What `pack_schedule` returned, as far as kinds go.

    Raises:
        TypeError, ValueError: it is put together in another way.
    """
    groups = listed(packed, "state_dict's schedule")
    for k, group in enumerate(groups):
        keyed(group, f"state_dict's schedule[{k}]", "missed")
        number(group.get("known_since", 0), "state_dict's known_since")
        if getattr(group["missed"], "ndim", 0) != 2:
            raise TypeError(f"state_dict's schedule[{k}] must hold tables, got other kinds")
    return groups


def check_kinds(state_dict: Any) -> dict[str, Any]:
    """The state dict of an optimizer.

    Raises:
        TypeError, ValueError: it is not put together as torch's are.
    """
    keyed(state_dict, "state_dict", "state", "param_groups")
    for i, state in keyed(state_dict["state"], "state_dict's state").items():
        for key, value in keyed(state, f"state_dict's state of parameter {i}").items():
            if isinstance(value, torch.Tensor) and value.layout != torch.strided:
                raise TypeError(
                    f"state_dict's {key} of parameter {i} must be a dense tensor, got layout "
                    f"{value.layout}"
                )
    for k, group in enumerate(listed(state_dict["param_groups"], "state_dict's param_groups")):
        keyed(group, f"state_dict's param_groups[{k}]", "params")
        for i in listed(group["params"], f"params of state_dict's param_groups[{k}]"):
            if not isinstance(i, int):
                raise TypeError(f"state_dict must number its parameters, got {i!r}")
    return state_dict


def check_fits(state_dict: dict[str, Any], groups: list[dict[str, Any]], *, is_copied: bool) -> int:
    """The step of a state dict that fits these groups.

    Args:
        is_copied: its moments will be, so that it does not matter how they lie.

    Raises:
        ValueError: other groups or shapes, moments missing, or steps that differ by parameter.
    """
    saved = check_kinds(state_dict)["param_groups"]
    counts = [len(group["params"]) for group in groups]
    if [len(group["params"]) for group in saved] != counts:
        raise ValueError(
            f"state_dict must have groups of {counts} parameters, got "
            f"{[len(group['params']) for group in saved]}"
        )
    steps = set()
    loaded: list[dict[str, torch.Tensor]] = []
    ids = [i for group in saved for i in group["params"]]
    params = [param for group in groups for param in group["params"]]
    for k, (i, param) in enumerate(zip(ids, params, strict=True)):
        state = state_dict["state"].get(i)
        steps.add(_step_of(state, k) if state else 0)
        loaded.append({})
        for key in MOMENTS if state else ():
            if key not in state:
                raise ValueError(f"state_dict must hold {key} of params[{k}], got {list(state)}")
            if not isinstance(state[key], torch.Tensor):
                kind = type(state[key]).__name__
                raise TypeError(
                    f"state_dict must hold a tensor as {key} of params[{k}], got {kind}"
                )
            if state[key].shape != param.shape:
                raise ValueError(
                    f"state_dict must hold {key} of params[{k}] with shape {tuple(param.shape)}, "
                    f"got {tuple(state[key].shape)}"
                )
            is_fit = state[key].device.type == "cpu" and state[key].dtype == torch.float32
            if is_fit and not is_copied:  # taken over as it is
                check_param(state[key], f"state_dict's {key} of params[{k}]")
                loaded[-1][key] = state[key]
    check_apart(params, loaded, "state_dict's ")
    if len(steps) > 1:
        raise ValueError(f"state_dict must hold one step for all parameters, got {sorted(steps)}")
    step = steps.pop()
    if not 0 <= step < 2**31 - 1:
        raise ValueError(f"state_dict must hold a step in [0, 2**31 - 1), got {step}")
    return step


def _step_of(state: dict[str, Any], k: int) -> int:
    if "step" not in state:
        raise ValueError(f"state_dict must hold step of params[{k}], got {list(state)}")
    step = number(state["step"], f"state_dict's step of params[{k}]")
    if not step.is_integer():
        raise ValueError(f"state_dict must hold a whole step of params[{k}], got {step}")
    return int(step)


def check_own(
    own: dict[str, Any], *, step: int, n_rows: int, n_groups: int, deferred: bool
) -> None:
    """Raise unless a deferred optimizer's own part of a state dict fits."""
    check_schedule(keyed(own, KEY).get("schedule", []))
    for key in ("last_step", "schedule"):
        if key not in own:
            raise ValueError(f"state_dict must hold {key} under {KEY}, got {sorted(own)}")
    last_step = own["last_step"]
    if not isinstance(last_step, torch.Tensor):
        kind = type(last_step).__name__
        raise TypeError(f"state_dict must hold a tensor as last_step, got {kind}")
    if tuple(last_step.shape) != (n_rows,) or last_step.dtype != torch.int32:
        raise ValueError(
            f"state_dict must hold last_step of ({n_rows},) int32, got {tuple(last_step.shape)} "
            f"{last_step.dtype}"
        )
    since = max((int(group.get("known_since", 0)) for group in own["schedule"]), default=0)
    check_steps(last_step, "state_dict's last_step", step=step, least=since)
    if not deferred and bool((last_step < step).any()):
        raise ValueError(
            "state_dict must hold no sleeping rows unless semantics is deferred; "
            "flush before saving"
        )
    if not own["schedule"] and bool((last_step == step).all()):
        return  # no step since another optimizer's state was loaded
    if step and len(own["schedule"]) != n_groups:
        raise ValueError(
            f"state_dict must hold the steps of {n_groups} groups, got {len(own['schedule'])}"
        )
    for group in own["schedule"]:
        n_steps = len(group["missed"]) - 1
        if n_steps != step:
            raise ValueError(
                f"state_dict must hold the rates of the {step} steps that its tensors have had, "
                f"got {n_steps}: its tensors are the optimizer's own, which has stepped since; "
                "load a copy.deepcopy() of it made before, or one that was saved"
            )
