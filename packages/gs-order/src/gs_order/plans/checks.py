# SPDX-License-Identifier: Apache-2.0
"""What `plan` does not accept."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_order.arrays import Array, to_numpy
from gs_order.checks import shown

RETAIN = ("previous", "last_use")


def checked_retain(retain: Any) -> str | int:
    """``"previous"``, ``"last_use"`` or a number of rows."""
    if isinstance(retain, str) and retain not in RETAIN:
        raise ValueError(f"retain must be one of {', '.join(RETAIN)} or rows, got {retain!r}")
    if not isinstance(retain, str | int | np.integer):
        raise TypeError(f"retain must be a word or a whole number of rows, got {shown(retain)}")
    return retain if isinstance(retain, str) else int(retain)


def checked_order(order: Array) -> np.ndarray[Any, Any]:
    views = to_numpy(order, "order")
    if views.ndim != 1 or len(views) == 0:
        raise ValueError(f"order must be (B,) with at least one view, got shape {views.shape}")
    if not np.issubdtype(views.dtype, np.integer):
        raise TypeError(f"order must be of integers, got {views.dtype}")
    if (np.sort(views) != np.arange(len(views))).any():
        raise ValueError(
            f"order must be a permutation of 0 .. {len(views) - 1}, got {views.tolist()}"
        )
    return views.astype(np.int64)


def check_rising(rising: bool) -> None:
    if not rising:
        raise ValueError(
            "ids must be sorted and unique, got an id that is not above the one before"
        )


def check_capacity(capacity: int, together: np.ndarray[Any, Any], ahead: int) -> None:
    if capacity < together.max():
        raise ValueError(
            f"retain must be at least {together.max()} rows, the most that "
            f"{ahead + 1} consecutive microbatches see, got {capacity}"
        )


def check_views(bits_belong: bool, n_views: int) -> None:
    if not bits_belong:
        raise ValueError(f"mask must have no bits beyond its {n_views} views, got some")
