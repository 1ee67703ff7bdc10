# SPDX-License-Identifier: Apache-2.0
"""A group's options as the native part takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gs_adam._arguments import flag, number, shown

GroupOptions = tuple[float, float, float, float, float]
"""lr, beta1, beta2, eps, weight_decay."""

DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-15, "weight_decay": 0.0}
"""Of a group that does not say."""

MOST_TENSORS = 32
"""One pass over a row updates all its tensors."""

_IGNORED = ("foreach", "fused")
"""Keywords of torch.optim.Adam that choose how it computes, and nothing here."""

_INFINITE = float("inf")

_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")
"""Keywords of torch.optim.Adam that ask for something else than what this package computes."""


def options_of(group: dict[str, Any]) -> GroupOptions:
    """The options of a torch param group.

    Raises:
        ValueError: an option is out of range or asks for what this package does not do.
    """
    if group.get("amsgrad") or group.get("maximize"):
        refused = "amsgrad" if group.get("amsgrad") else "maximize"
        raise ValueError(f"{refused} must be False, got True")
    try:
        lr, betas = group["lr"], group["betas"]
        eps, decay = group["eps"], group["weight_decay"]
    except KeyError:
        missing = [key for key in ("lr", "betas", "eps", "weight_decay") if key not in group]
        raise ValueError(
            f"groups must hold {', '.join(missing)} as Adam's do, got {sorted(group)}"
        ) from None
    try:
        beta1, beta2 = betas
        if type(beta1) is not float or type(beta2) is not float:
            beta1, beta2 = number(beta1, "betas"), number(beta2, "betas")
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers, got {shown(betas)}") from None
    if type(lr) is not float or type(eps) is not float or type(decay) is not float:
        lr, eps, decay = number(lr, "lr"), number(eps, "eps"), number(decay, "weight_decay")
    if decay and not group.get("decoupled_weight_decay", True):
        raise ValueError(
            f"weight_decay must be decoupled (AdamW), got {decay} to be added to the gradient"
        )
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"betas must be in [0, 1), got {(beta1, beta2)}")
    if not (0 <= lr < _INFINITE and 0 <= eps < _INFINITE and 0 <= decay < _INFINITE):
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", decay)):
            if not 0 <= value < _INFINITE:
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
    return lr, beta1, beta2, eps, decay


def check_rule(semantics: Any, bias_correction: Any, known: Sequence[str]) -> None:
    """Look at what an optimizer does in every step.

    Args:
        known: the semantics that it may have.

    Raises:
        TypeError, ValueError: one is none of its words, or the two do not go together.
    """
    for name, value in (("semantics", semantics), ("bias_correction", bias_correction)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, got {shown(value)}")
    if semantics not in known:
        raise ValueError(f"semantics must be one of {', '.join(known)}, got {semantics!r}")
    if bias_correction not in ("global", "off"):
        raise ValueError(f"bias_correction must be global or off, got {bias_correction!r}")
    if bias_correction == "off" and semantics != "sparse":
        raise ValueError(f"bias_correction must be global with {semantics}, got 'off'")


def check_torchs(options: dict[str, Any], owner: str) -> None:
    """Look at keywords that torch.optim.Adam takes beside an optimizer's own.

    Raises:
        TypeError: it takes no such keyword.
        ValueError: one asks for what this package does not do.
    """
    for name, value in options.items():
        if name not in (*_IGNORED, *_REFUSED):
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}")
        if name in _REFUSED and (value is not None and flag(value, name)):
            raise ValueError(f"{name} must be False, got True")
