# SPDX-License-Identifier: Apache-2.0
"""No value leaves the box of its sleep, in whatever way float32 goes through the steps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rounded import float32_above, float32_below
from sleep_trajectories import KINDS, Sleep, outside, rates, values_of_all_sizes

from gs_train.blocks.box_fits import interval
from gs_train.blocks.box_kernels import above, below
from gs_train.blocks.sleep_reach import SleepReach

USUAL = (0.9, 0.999), (0.9, 0.99), (0.5, 0.9), (0.9, 0.9), (0.99, 0.999), (0.8, 0.9999), (0.0, 0.9)


def assert_stays_inside(sleep: Sleep, until: int | None, draw: np.random.Generator) -> int:
    """Compare every way through the steps with the box, and count the comparisons."""
    box = sleep.box(until=until)
    n_steps = len(sleep.rates)
    wakes = draw.random(n_steps) < draw.choice([1.0, 0.3, 0.02])
    ways = [
        sleep.through_gs_adam(list(wakes)),
        (("torch", now) for now in sleep.stepped_by_torch()),
        (("torch, float64", now) for now in sleep.stepped_by_torch(torch.float64)),
        (("adverse rounding", now) for now in sleep.rounded_adversely()),
    ]
    n_compared = 0
    for k, (way, now) in enumerate(itertools.chain(*ways)):
        wrong = outside(box, now)
        n_compared += len(wrong)
        assert not wrong.any(), (way, k, np.flatnonzero(wrong)[:5], sleep)
    return n_compared


def draw_sleep(seed: int, n_values: int, n_steps: int) -> tuple[Sleep, np.random.Generator]:
    draw = np.random.default_rng(seed)
    b1, b2 = USUAL[draw.integers(len(USUAL))]
    batch = int(draw.choice([1, 1, 4, 16, 64]))
    eps = 10 ** draw.uniform(-20, -3) if draw.random() < 0.7 else 1e-15
    rate = 10 ** (draw.uniform(-12, 3) if draw.random() < 0.8 else draw.uniform(-44, 12))
    kind = str(draw.choice(KINDS))
    w, m, v = values_of_all_sizes(n_values, draw)
    # Values of which a step moves a few last bits.
    is_coarse = draw.random(n_values) < 0.3
    coarse = min(float(rate), 1e20) * 2.0 ** draw.uniform(12, 27, n_values)
    w = np.where(is_coarse, coarse, w).astype(np.float32)
    since = int(draw.choice([0, 1, 2, 10, 100, 1000, 30000]))
    ahead = rates(kind, float(rate), n_steps, draw)
    return Sleep(w, m, v, since, ahead, (b1**batch, b2**batch), float(eps)), draw


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n_steps=st.integers(1, 60), is_bounded=st.booleans())
def test_no_trajectory_leaves_its_box(seed: int, n_steps: int, is_bounded: bool) -> None:
    sleep, draw = draw_sleep(seed, 64, n_steps)
    assert_stays_inside(sleep, sleep.since + n_steps if is_bounded else None, draw)


@pytest.mark.long
def test_no_trajectory_leaves_its_box_in_two_hundred_million_comparisons() -> None:
    n_compared, seed = 0, 0
    while n_compared < 200_000_000:
        sleep, draw = draw_sleep(seed, 512, (5, 60, 300)[seed % 3])
        until = sleep.since + len(sleep.rates) if seed % 4 == 0 else None
        n_compared += assert_stays_inside(sleep, until, draw)
        seed += 1


bits = st.integers(0, 2**32 - 1).map(lambda b: float(np.uint32(b).view(np.float32)))


@settings(max_examples=20, deadline=None)
@given(
    w=st.lists(bits, min_size=1, max_size=8),
    m=bits,
    v=bits,
    since=st.integers(0, 2000),
    rate=st.floats(0.0, 1e6),
    eps=st.floats(1e-20, 1.0),
    betas=st.tuples(st.floats(0.0, 0.99), st.floats(0.1, 0.9999)).filter(
        lambda b: b[0] <= b[1] and b[0] ** 2 < 0.99 * b[1]
    ),
    kind=st.sampled_from(KINDS),
)
@example([0.0], 3.2012108e-30, 0.0, 10, 2.1e-12, 8.3e-15, (0.00118, 0.00118), "constant")
@example([0.0], -3.09353e-40, 5.16e-24, 1000, 1.2e-4, 5.5e-12, (0.1853, 0.98412), "constant")
@example([-4.75e-34], 1.2542712e06, 1.27e11, 1000, 0.019, 2.1e-12, (6.3e-7, 0.9936), "random")
@example([0.0], 1.3400775e-30, 1.5e-44, 100, 2.5e-11, 1e-15, (0.0282, 0.9984), "constant")
@example([0.0], 7e-45, 0.0, 1, 1e6, 1e-20, (0.9, 0.999), "constant")  # rounds to itself
@example([1.0], 3e38, 0.0, 0, 1.0, 1e-20, (0.9, 0.999), "constant")  # leaves float32
@example([1.0], 1.0, 1.0, 0, 1.0, 1e-15, (5e-324, 0.1), "constant")
@example([-np.inf], 1.0, 1.0, 0, 1.0, 1e-15, (0.9, 0.999), "constant")
def test_no_trajectory_of_any_bits_leaves_its_box(
    w: list[float],
    m: float,
    v: float,
    since: int,
    rate: float,
    eps: float,
    betas: tuple[float, float],
    kind: str,
) -> None:
    values = np.array(w, np.float32)
    # Second moments are squares.
    moments = np.full_like(values, m), np.abs(np.full_like(values, v))
    draw = np.random.default_rng(since)
    sleep = Sleep(values, *moments, since, rates(kind, rate, 40, draw), betas, eps)
    with np.errstate(all="ignore"):
        assert_stays_inside(sleep, None, draw)


def test_a_sleep_for_ever_ends_at_the_border_of_its_box() -> None:
    for betas in ((0.9, 0.999), (0.9**4, 0.999**4)):
        w, m, v = np.ones((3, 1), np.float32)
        sleep = Sleep(w, m, v, 5000, [0.01] * 600, betas, 1e-15)
        lower, upper = sleep.box()
        *_, last = sleep.slept_through()
        assert upper[0] == 1.0
        assert 0.999 < (1.0 - float(last[0, 0])) / (1.0 - float(lower[0])) <= 1.0


def test_a_box_up_to_a_step_is_no_larger_than_the_movement_up_to_it() -> None:
    w, m, v = np.ones((3, 1), np.float32)
    sleep = Sleep(w, m, v, 5000, [0.01] * 30, (0.9, 0.999), 1e-15)
    for n, now in enumerate(sleep.slept_through(), 1):
        lower, _ = sleep.box(until=5000 + n)
        assert 0.99 < (1.0 - float(now[0, 0])) / (1.0 - float(lower[0])) <= 1.0
    assert sleep.box(until=5000)[0][0] == 1.0


def test_a_box_holds_steps_that_round_farther_than_their_sum() -> None:
    """Each of six steps moves by more than half of the last bit, and rounds to all of it."""
    last_bit = 2.0**-24  # of numbers just below 1
    rate = 0.95 * last_bit / (0.9 / math.sqrt(0.999))
    w, m, v = np.ones((3, 1), np.float32)
    sleep = Sleep(w, m, v, 30000, [rate] * 6, (0.9, 0.999), 1e-15)
    reach = SleepReach(sleep.betas, sleep.eps, rate)
    moved = rate * float(reach.correction_sums(np.array([30000]), 30006)[0])
    *_, stepped = sleep.stepped_by_torch()
    assert 1.0 - float(stepped[0]) > moved + last_bit  # farther than in real numbers
    assert not outside(sleep.box(until=30006), stepped).any()


def test_values_without_a_first_moment_stay() -> None:
    reach = SleepReach((0.9, 0.999), 1e-15, 1.0)
    zero = torch.zeros(2, 3)
    assert not reach.reach(zero + 1, zero, zero + 1, torch.zeros(2, dtype=torch.int32)).any()


def test_rates_above_the_ceiling_are_refused_until_announced() -> None:
    reach = SleepReach((0.9, 0.999), 1e-15, 0.1)
    assert reach.record_step(0.1) == 1
    with pytest.raises(ValueError, match=r"rate must be from 0 to the ceiling 0\.1, got 0\.2"):
        reach.record_step(0.2)
    reach.set_ceiling(0.2)
    assert reach.record_step(0.2) == 2
    reach.set_ceiling(0.05)
    assert reach.ceilings(np.array([0, 1, 2])).tolist() == [0.2, 0.2, 0.05]


@pytest.mark.parametrize(
    ("betas", "eps", "ceiling", "match"),
    [
        ((0.95, 0.9), 1e-15, 1.0, "betas must be those by which rows can sleep"),
        ((0.9, 1.0), 1e-15, 1.0, "betas must be"),
        ((0.9999, 0.9999), 1e-15, 1.0, "betas must be"),
        ((0.9, 0.999), 1e-21, 1.0, "eps must be from 1e-20 to 1"),
        ((0.9, 0.999), math.nan, 1.0, "eps must be from 1e-20 to 1"),
        ((0.9, 0.999), 1e-15, math.inf, "ceiling must be from 0"),
        ((0.9, 0.999), 1e-15, -1.0, "ceiling must be from 0"),
    ],
)
def test_options_out_of_range_are_refused(
    betas: tuple[float, float], eps: float, ceiling: float, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        SleepReach(betas, eps, ceiling)


def test_a_last_step_to_come_is_refused() -> None:
    reach, zero = SleepReach((0.9, 0.999), 1e-15, 1.0), torch.zeros(1, 3)
    with pytest.raises(ValueError, match="last_step must be from 0 to 0, got 1 to 1"):
        reach.reach(zero, zero, zero, torch.ones(1, dtype=torch.int32))


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_rounding_outward_never_moves_inward(x: float) -> None:
    value = torch.tensor([x], dtype=torch.float64)
    low, high = float32_below(value), float32_above(value)
    assert float(low) <= x <= float(high)
    if low.isfinite() and high.isfinite():
        assert high <= torch.nextafter(low, torch.tensor(math.inf))
    assert (below(x), above(x)) == (float(low), float(high))


def test_what_is_no_number_is_not_rounded_to_one() -> None:
    assert math.isnan(below(math.nan))
    assert math.isnan(above(math.nan))


def test_the_ends_of_an_interval_follow_the_movement() -> None:
    inf, nan = math.inf, math.nan
    movement = torch.tensor([0.5, -0.5, inf, 1.0, -inf], dtype=torch.float64)
    ends = interval(torch.tensor([1.0, 1.0, -inf, nan, 1.0]), movement)
    for end, expected in zip(ends, ([1.0, 0.5, -inf, nan, -inf], [1.5, 1.0, -inf, nan, 1.0])):
        torch.testing.assert_close(end, torch.tensor(expected).double(), equal_nan=True)
