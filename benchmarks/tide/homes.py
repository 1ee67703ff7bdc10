# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a partition are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gs_train.blocks.partition import Partition


def block_of_row(partition: Partition) -> NDArray[np.int64]:
    """(N,) the block of each row."""
    blocks = np.empty(len(partition.rows), np.int64)
    blocks[partition.rows] = np.repeat(np.arange(len(partition)), partition.counts)
    return blocks
