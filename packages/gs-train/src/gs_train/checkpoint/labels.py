# SPDX-License-Identifier: Apache-2.0
"""What must be true of the keys and the strand labels of a checkpoint's rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gs_train.checkpoint.row_names import KEYS, STRANDS

LABELS = {KEYS: torch.int32, STRANDS: torch.uint8}
"""Their types, by name."""


def require_label_kind(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Check the shape and the type of a tensor if it is one of labels.

    Raises:
        ValueError: it is, and not (N,) of its type.
    """
    expected = LABELS.get(name)
    if expected is not None and (len(shape) != 1 or dtype != expected):
        raise ValueError(f"{name} must be (N,) {expected}, got {shape} {dtype}")


def are_keys(keys: Tensor) -> bool:
    """Whether keys are not negative and distinct.

    Cost: memory for one copy of them on the CPU, three on another device.
    """
    if keys.device.type == "cpu":
        ordered = np.sort(keys.numpy())
        return len(ordered) == 0 or bool(ordered[0] >= 0 and (ordered[1:] != ordered[:-1]).all())
    on_device = keys.sort().values
    if len(on_device) == 0:
        return True
    return bool(on_device[0] >= 0) and bool((on_device.diff() != 0).all())
