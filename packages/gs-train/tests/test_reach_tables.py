# SPDX-License-Identifier: Apache-2.0
"""Tables of reaches on a device follow the reaches from fit to fit."""

from __future__ import annotations

import numpy as np
import torch

from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.sleep_reach import SleepReach

CPU = torch.device("cpu")


def test_tables_that_follow_hold_what_new_ones_hold():
    rng = np.random.default_rng(0)
    reaches = [SleepReach((0.9, 0.999), 1e-15, 8.0) for _ in range(2)]
    following = ReachTables(*reaches, CPU)
    for _ in range(400):
        for _ in range(rng.integers(0, 3)):  # steps between two fits
            for reach in reaches:
                # Few different rates, so that a rate may equal the ceiling before it.
                reach.set_ceiling(8.0)
                reach.record_step(float(rng.integers(0, 4) * rng.integers(0, 2)))
                reach.set_ceiling(float(rng.integers(0, 4)))
        table, _, step = following.uploaded()
        expected, _, _ = ReachTables(*reaches, CPU).uploaded()
        assert torch.equal(table[: step + 1], expected[: step + 1])


def test_a_ceiling_that_a_later_rate_equals_hides_no_rise():
    reaches = [SleepReach((0.9, 0.999), 1e-15, 8.0) for _ in range(2)]
    following = ReachTables(*reaches, CPU)
    for rate, ceiling in ((1.0, 3.0), (3.0, 0.5)):
        for reach in reaches:
            reach.set_ceiling(8.0)
            reach.record_step(rate)
            reach.set_ceiling(ceiling)
        table, _, _ = following.uploaded()
    assert table[:3, 0].tolist() == [3.0, 3.0, 0.5]
