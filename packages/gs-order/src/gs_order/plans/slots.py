# SPDX-License-Identifier: Apache-2.0
"""Slots of the device buffer: how many there are, and which row is in which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gs_order.arrays import Array


@dataclass(frozen=True)
class Slots:
    """int32 slots, laid out as the lists: of ``visible`` and of each of ``MOVED``."""

    n_slots: int
    of: dict[str, Array]


def most_live(offsets: dict[str, np.ndarray[Any, Any]], ahead: int) -> int:
    """Most rows on the device: stores of microbatch i - 1 - ahead precede loads of i."""
    loads = offsets["load"][1:]
    freed = offsets["store"][np.maximum(np.arange(len(loads)) - ahead, 0)]
    return int((loads - freed).max())
