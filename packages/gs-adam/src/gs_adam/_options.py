# SPDX-License-Identifier: Apache-2.0
"""A group's options as the native part takes them."""

from __future__ import annotations

import operator
from typing import Any

GroupOptions = tuple[float, float, float, float, float]
"""lr, beta1, beta2, eps, weight_decay."""


def options_of(group: dict[str, Any]) -> GroupOptions:
    """The options of a torch param group.

    Raises:
        ValueError: an option is out of range or asks for what this package does not do.
    """
    for option in ("amsgrad", "maximize"):
        if group.get(option):
            raise ValueError(f"{option} must be False, got True")
    missing = [key for key in ("lr", "betas", "eps", "weight_decay") if key not in group]
    if missing:
        raise ValueError(f"groups must hold {', '.join(missing)} as Adam's do, got {sorted(group)}")
    try:
        beta1, beta2 = (float(beta) for beta in group["betas"])
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers, got {group['betas']!r}") from None
    lr, eps, decay = (float(group[key]) for key in ("lr", "eps", "weight_decay"))
    if decay and not group.get("decoupled_weight_decay", True):
        raise ValueError(
            f"weight_decay must be decoupled (AdamW), got {decay} to be added to the gradient"
        )
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"betas must be in [0, 1), got {(beta1, beta2)}")
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", decay)):
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")
    return lr, beta1, beta2, eps, decay


def whole(value: Any, name: str, *, least: int = -(2**31), most: int = 2**31 - 1) -> int:
    """A whole number in ``[least, most]``.

    Raises:
        TypeError: it is none.
        ValueError: it is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number
