# SPDX-License-Identifier: Apache-2.0
"""Each margin of a sleep's reach is enough, and needed, where every operation errs outward."""

from __future__ import annotations

import numpy as np
import pytest
from sleep_trajectories import Sleep, outside

BETAS = (0.9, 0.999)
TINY = 2.0**-149
"""The smallest float32."""


def sleep_of(
    values: object,
    exp_avg: object,
    exp_avg_sq: object,
    *,
    rate: float = 1.0,
    n_steps: int,
    betas: tuple[float, float] = BETAS,
    eps: float = 1e-20,
    since: int = 2000,
) -> Sleep:
    """A sleep at a constant rate, numbers or arrays."""
    w, m, v = np.broadcast_arrays(*(np.float32(x) for x in (values, exp_avg, exp_avg_sq)))
    return Sleep(np.atleast_1d(w), np.atleast_1d(m), np.atleast_1d(v), since, [rate] * n_steps,
                 betas, eps)  # fmt: skip


ONE_BINADE = 2.0 ** np.arange(0.0, 1.0, 1 / 64)
SLEEPS = {
    "moments that decay too slowly, step by step": sleep_of(
        0.0, ONE_BINADE, 1.0, betas=(0.97, 0.97), n_steps=1200
    ),
    "a beta that torch forms as 1 - (1 - b1)": sleep_of(
        0.0, 1.0, 1.0, betas=(0.9**64, 0.999**64), n_steps=3
    ),
    "sums that round in every step": sleep_of(
        1.0, -(2.0 ** np.arange(-20.0, 2.0, 0.25)), 1.0, rate=2.0**-4, n_steps=200
    ),
    "second moments that leave float32": sleep_of(
        0.0, 1.0, 2.0 ** np.arange(-125.0, -120.0, 0.5), betas=(0.9, 0.9), n_steps=60
    ),
    "denormal second moments": sleep_of(0.0, 1.0, 2.0**-126, n_steps=60),
    "first moments that round to themselves": sleep_of(
        0.0, TINY * np.arange(1, 60), 0.0, betas=(0.99, 0.99), since=0, n_steps=40
    ),
    "products of rate and moment that round up": sleep_of(
        0.0, TINY * 2.0 ** np.arange(28.0, 34.0, 0.25), 0.0, rate=2.0**-32, n_steps=5
    ),
    "denormal rates": sleep_of(
        0.0, 1e10, 1.0, rate=0.6 * TINY, eps=1e-3, n_steps=5
    ),
    "epsilon of the first step": sleep_of(0.0, 1.0, 0.0, since=0, n_steps=1),
}  # fmt: skip


@pytest.mark.parametrize("name", SLEEPS)
def test_errors_of_every_kind_stay_inside_their_margin(name: str) -> None:
    sleep = SLEEPS[name]
    box = sleep.box(until=sleep.since + len(sleep.rates))
    for now in sleep.rounded_adversely():
        assert not outside(box, now).any()
    # The widest margin is that of moments which round to themselves.
    reach = np.maximum(box[1] - sleep.values, sleep.values - box[0])
    assert (np.abs(now - sleep.values) / reach).max() > 0.02


def test_errors_of_every_kind_stay_inside_a_box_for_ever() -> None:
    for sleep in SLEEPS.values():
        box = sleep.box()
        for now in sleep.rounded_adversely():
            assert not outside(box, now).any()
