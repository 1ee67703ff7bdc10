# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks that were made a step before."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.blocks.box_kernels import are_among

SOME = st.sets(st.integers(0, 20))


@settings(deadline=None)
@given(SOME, SOME)
def test_sorted_numbers_are_found_among_others(blocks: set[int], others: set[int]) -> None:
    found = are_among(*(np.array(sorted(one), np.int64) for one in (blocks, others)))
    assert found == (blocks <= others)
