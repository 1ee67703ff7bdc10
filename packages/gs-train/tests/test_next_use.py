# SPDX-License-Identifier: Apache-2.0
"""The share of uses that a memory misses which keeps the blocks that are used next soonest."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gs_train.sizing.forecasts.next_use import missed_share


def simulated(n_blocks: int, room: int, uses: float, n_epochs: int = 8) -> float:
    """Misses of Belady's rule, block after block at random moments of epochs; without the first
    epochs, which fill the memory, and the last."""
    draw = np.random.default_rng(0)
    moments, blocks = [], []
    for epoch in range(n_epochs):
        counts = int(uses) + (draw.random(n_blocks) < uses - int(uses))
        of = np.repeat(np.arange(n_blocks), counts)
        moments.append(epoch + draw.random(len(of)))
        blocks.append(of)
    when, of = np.concatenate(moments), np.concatenate(blocks)
    order = np.argsort(when)
    when, of = when[order], of[order]
    following = np.full(len(of), np.inf)
    last: dict[int, int] = {}
    for k, block in enumerate(of.tolist()):
        if block in last:
            following[last[block]] = when[k]
        last[block] = k
    due: dict[int, float] = {}
    n_missed = n_counted = 0
    for k, block in enumerate(of.tolist()):
        is_counted = 3 <= when[k] < n_epochs - 2
        n_counted += is_counted
        n_missed += is_counted and block not in due
        due[block] = following[k]
        if len(due) > room:
            del due[max(due, key=due.__getitem__)]
    return n_missed / n_counted


@pytest.mark.parametrize("uses", [2.0, 3.5, 8.0])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.75])
def test_it_is_what_the_best_rule_misses(uses: float, share: float) -> None:
    assert missed_share(share, uses) == pytest.approx(
        simulated(200, int(200 * share), uses), rel=0.15, abs=0.01
    )


def test_uses_without_number_miss_as_at_random_moments_without_epochs() -> None:
    for share in (0.05, 0.3, 0.6, 0.9):
        missed = missed_share(share, 1e6)
        assert missed * (1 - math.log(missed)) == pytest.approx(1 - share, abs=1e-3)


def test_it_falls_from_all_to_none() -> None:
    for uses in (0.3, 1.0, 1.7, 40.0, 1e6):
        missed = [missed_share(share, uses) for share in np.linspace(-0.1, 1.2, 40)]
        assert missed == sorted(missed, reverse=True)
        assert missed[0] == pytest.approx(1.0)
        assert missed[-1] == 0.0
        assert missed_share(0.5, uses) < 0.5
