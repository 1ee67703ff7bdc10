# SPDX-License-Identifier: Apache-2.0
"""What callers hand over: numpy arrays or torch tensors, checked before anything is done."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gs_order.checks import integer, shown

Array = Any
"""A numpy array or a torch tensor."""


def is_torch(value: object) -> bool:
    """Whether ``value`` is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any, name: str) -> np.ndarray[Any, Any]:
    """``value`` as a numpy array; a tensor on a device is copied, which waits for it.

    Raises:
        TypeError: not an array of real numbers, nor lists of equal lengths that make one.
    """
    if is_torch(value):
        return np.asarray(value.detach().cpu().numpy())
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of numbers, got {shown(value)}")
    return array


def check_mask(mask: Any) -> int:
    """Width of a mask in words; raises unless it is (U, W) of 32-bit words.

    Raises:
        TypeError: not an array, or not uint32 (numpy; int32 patterns too) or int32 (torch).
        ValueError: not two-dimensional, or without a word.
    """
    if is_torch(mask):
        dtype, good = str(mask.dtype).removeprefix("torch."), ("int32", "uint32")
    elif isinstance(mask, np.ndarray):
        dtype, good = str(mask.dtype), ("uint32", "int32")
    else:
        raise TypeError(f"mask must be a numpy array or a torch tensor, got {type(mask).__name__}")
    _need_dense(mask, "mask")
    if dtype not in good:
        raise TypeError(f"mask must be uint32 (numpy) or int32 (torch), got {dtype}")
    if mask.ndim != 2 or mask.shape[1] < 1:
        raise ValueError(f"mask must be (U, W) with W >= 1, got shape {tuple(mask.shape)}")
    return int(mask.shape[1])


def check_ids(ids: Any, mask: Any) -> None:
    """Raise unless the ids are of a mask's kind, on its device, and one for each of its rows.

    Raises:
        TypeError: another kind, device or dtype. ValueError: another number of them.
    """
    if is_torch(ids) != is_torch(mask) or not hasattr(ids, "dtype"):
        raise TypeError(
            "ids and mask must both be numpy arrays or both torch tensors, "
            f"got {type(ids).__name__} and {type(mask).__name__}"
        )
    _need_dense(ids, "ids")
    if is_torch(ids) and ids.device != mask.device:
        raise TypeError(f"ids and mask must be on one device, got {ids.device} and {mask.device}")
    if str(ids.dtype).removeprefix("torch.") not in ("int32", "int64"):
        raise TypeError(f"ids must be int32 or int64, got {ids.dtype}")
    if tuple(ids.shape) != (mask.shape[0],):
        raise ValueError(
            f"ids must have one entry a row of mask, ({mask.shape[0]},), got {tuple(ids.shape)}"
        )


def _need_dense(array: Any, name: str) -> None:
    layout = str(getattr(array, "layout", "torch.strided"))  # numpy's arrays have none
    if layout != "torch.strided":
        raise TypeError(f"{name} must be a dense tensor, got layout {layout}")


def check_n_views(n_views: int, n_words: int) -> int:
    """``n_views`` if a mask of ``n_words`` words has just the words for it."""
    n_views = integer("n_views", n_views)
    if n_views < 1:
        raise ValueError(f"n_views must be at least 1, got {n_views}")
    needed = -(-n_views // 32)
    if n_words != needed:
        raise ValueError(
            f"mask must have {needed} words for {n_views} views (32 views a word), got {n_words}"
        )
    return n_views


def check_stray_bits(seen: np.ndarray[Any, Any], n_views: int) -> None:
    """Raise if ``seen`` (W,) uint32, the OR of a mask's rows, has bits at or beyond ``n_views``."""
    highest = highest_bit(seen)
    if highest >= n_views:
        raise ValueError(
            f"mask must have no bits beyond its {n_views} views, got one for view {highest}"
        )


def highest_bit(seen: np.ndarray[Any, Any]) -> int:
    """Highest view with a bit in ``seen`` (W,) uint32; -1 without any."""
    for word in range(len(seen) - 1, -1, -1):
        if seen[word]:
            return 32 * word + int(seen[word]).bit_length() - 1
    return -1


def as_words(mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The mask as contiguous uint32, without a copy where it already is."""
    return np.ascontiguousarray(mask).view(np.uint32)
