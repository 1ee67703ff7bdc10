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

_REFUSED = ("amsgrad", "maximize", "capturable", "differentiable")
"""Keywords of torch.optim.Adam that ask for something else than what this package computes."""


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
        beta1, beta2 = (number(beta, "betas") for beta in group["betas"])
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers, got {shown(group['betas'])}") from None
    lr, eps, decay = (number(group[key], key) for key in ("lr", "eps", "weight_decay"))
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
