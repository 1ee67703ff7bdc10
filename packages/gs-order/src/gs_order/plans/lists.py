# SPDX-License-Identifier: Apache-2.0
"""The lists of a plan: which there are, and how long they come to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gs_order.arrays import Array

Integers = np.ndarray[Any, Any]

KINDS = ("visible", "load", "retain", "store", "carry", "returning", "final")
"""All lists. Each but the first is a part of the first."""

MOVED = ("load", "store", "returning", "final")
"""The lists whose ids are kept: what crosses the link or is updated."""


@dataclass(frozen=True)
class Lists:
    """The lists of all microbatches, one after the other.

    Attributes:
        offsets: for each of ``KINDS`` (B + 1,) int64 numpy.
        ids: of ``visible`` and of each of ``MOVED``.
        positions: within the visible list, int32, of each kind but ``visible``.
    """

    offsets: dict[str, Integers]
    ids: dict[str, Array]
    positions: dict[str, Array]


def numbers_of(
    visible: Integers, load: Integers, store: Integers, final: Integers
) -> dict[str, Integers]:
    """Lengths of all lists from those of four; any shape."""
    return {
        "visible": visible,
        "load": load,
        "retain": visible - load,
        "store": store,
        "carry": visible - store,
        "returning": store - final,
        "final": final,
    }
