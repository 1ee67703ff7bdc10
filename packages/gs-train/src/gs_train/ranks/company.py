# SPDX-License-Identifier: Apache-2.0
"""Ranks that share rows, seen from one of these."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from gs_train.ranks.exchange import Carrier


class Company(Carrier, Protocol):
    """What ranks do together with their rows; a `World` does.

    Attributes:
        size: W, the number of ranks.
    """

    @property
    def size(self) -> int: ...

    def gather(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """(W, ...) the integers of all ranks, by rank.

        Args:
            values: (...) integers, of one shape on all ranks.
        """
        ...
