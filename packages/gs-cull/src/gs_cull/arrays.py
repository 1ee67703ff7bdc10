# SPDX-License-Identifier: Apache-2.0
"""Telling numpy arrays from torch tensors without importing torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""


def is_torch(array: Any) -> bool:
    """Whether ``array`` is a torch tensor. A tensor can only exist where torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def check_kind(**arrays: Any) -> bool:
    """Check that all arguments are numpy arrays or all torch tensors; None is skipped.

    Returns:
        Whether they are torch tensors.

    Raises:
        TypeError: an argument is neither, or the kinds are mixed.
    """
    kinds = {}
    for name, array in arrays.items():
        if array is None:
            continue
        if not isinstance(array, np.ndarray) and not is_torch(array):
            raise TypeError(
                f"{name} must be a numpy array or a torch tensor, got {type(array).__name__}"
            )
        kinds[name] = is_torch(array)
    first = next(iter(kinds))
    for name, kind in kinds.items():
        if kind != kinds[first]:
            expected = "torch tensor" if kinds[first] else "numpy array"
            raise TypeError(
                f"{name} must be a {expected} like {first}, got {type(arrays[name]).__name__}"
            )
    return kinds[first]


def device_index(tensor: torch.Tensor) -> int:
    """The CUDA device's index; -1 on the CPU."""
    if tensor.device.type == "cpu":
        return -1
    return tensor.device.index or 0
