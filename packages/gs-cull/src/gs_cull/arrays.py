# SPDX-License-Identifier: Apache-2.0
"""Telling numpy arrays from torch tensors without importing torch."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from gs_cull.checks import shown

Array: TypeAlias = Any
"""A numpy array or a torch tensor."""

Rows: TypeAlias = tuple[Array, Array, Array]
"""means (R, 3), scales (R, 3), quats (R, 4)."""

Geometry: TypeAlias = tuple[Array, Array, Array, Array | None]
"""The same and opacities (R,) or None."""


def is_torch(array: Any) -> bool:
    """Whether ``array`` is a torch tensor. A tensor can only exist where torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def check_kind(**arrays: Any) -> bool:
    """Check that all arguments are numpy arrays or all torch tensors.

    Returns:
        Whether they are torch tensors.

    Raises:
        TypeError: an argument is neither, or the kinds are mixed.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        tensor = torch.Tensor
        for array in arrays.values():
            if not isinstance(array, tensor):
                break
        else:
            return True
    kinds = [is_torch(array) for array in arrays.values()]
    for (name, array), kind in zip(arrays.items(), kinds):
        if not isinstance(array, np.ndarray) and not kind:
            raise TypeError(
                f"{name} must be a numpy array or a torch tensor, got {type(array).__name__}"
            )
    first = next(iter(arrays))
    for (name, array), kind in zip(arrays.items(), kinds):
        if kind != kinds[0]:
            expected = "torch tensor" if kinds[0] else "numpy array"
            raise TypeError(f"{name} must be a {expected} like {first}, got {type(array).__name__}")
    return False


def native(array: Array) -> ModuleType:
    """The native functions for where an array is: :mod:`gs_cull.host` or :mod:`gs_cull.device`.

    Raises:
        ValueError: a tensor is neither on the CPU nor on a CUDA device.
    """
    if is_torch(array) and not array.is_cpu:
        if not array.is_cuda:
            raise ValueError(f"arrays must be on the CPU or a CUDA device, got {array.device}")
        return _module("gs_cull.device")
    return _module("gs_cull.host")


# An import in a function that each call runs takes longer than a look at what it gave.
_module = functools.cache(importlib.import_module)


def on_host(array: Any, name: str = "array") -> np.ndarray:
    """A numpy array of anything like an array. Synchronises for CUDA tensors.

    Raises:
        ValueError: lists of different lengths.
    """
    if is_torch(array):
        array = array.detach().cpu().numpy()
    try:
        return np.asarray(array)
    except ValueError:
        raise ValueError(f"{name} must be an array of numbers, got {shown(array)}") from None


def zeros(like: Array, shape: tuple[int, ...], dtype: Literal["float32", "int32", "bool"]) -> Array:
    """Zeros of the kind and on the device of ``like``."""
    if is_torch(like):
        import torch

        return torch.zeros(shape, dtype=getattr(torch, dtype), device=like.device)
    return np.zeros(shape, dtype)


def fill_at(array: Array, ids: Array, value: float | bool) -> None:
    """Write one number at (n,) int32 ids of (m,) values of the same kind. CUDA: no wait."""
    if is_torch(array):
        # An assignment would copy the number to the device, and wait for that.
        array.index_fill_(0, ids.long(), value)
    else:
        array[ids] = value


def true_ids(flags: Array) -> Array:
    """int32 positions of what is true in (n,) booleans. Synchronises on CUDA."""
    if is_torch(flags):
        return flags.nonzero()[:, 0].int()
    return np.flatnonzero(flags).astype(np.int32)
