# SPDX-License-Identifier: Apache-2.0
"""Every way in which a value without gradients can go through the steps of Adam."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rounded import float32_above, float32_below

import gs_adam
from gs_train.blocks.box_fits import interval
from gs_train.blocks.partition import Doubles, Floats
from gs_train.blocks.sleep_reach import SleepReach

KINDS = ("constant", "decaying", "cosine", "warm restarts", "warm-up", "random", "off and on")


@dataclass(frozen=True)
class Sleep:
    """Values that fall asleep in a step, and the steps to come.

    Attributes:
        values, exp_avg, exp_avg_sq: (R,) float32.
        since: the step.
        rates: of the steps after it.
        betas, eps: of all steps.
    """

    values: Floats
    exp_avg: Floats
    exp_avg_sq: Floats
    since: int
    rates: Sequence[float]
    betas: tuple[float, float]
    eps: float

    def box(self, *, until: int | None = None) -> tuple[Floats, Floats]:
        """The ends of the interval of each value, (R,) each."""
        reach = SleepReach(self.betas, self.eps, max(self.rates))
        for _ in range(self.since):
            reach.record_step(0.0)
        columns = [
            torch.from_numpy(a)[:, None] for a in (self.values, self.exp_avg, self.exp_avg_sq)
        ]
        far = reach.reach(*columns, torch.full((len(self.values),), self.since), until)
        lower, upper = interval(columns[0], torch.where(columns[1] > 0, -far, far))
        return float32_below(lower)[:, 0].numpy(), float32_above(upper)[:, 0].numpy()

    def slept_through(self) -> Iterator[Floats]:
        """After each step, caught up in one sleep."""
        for schedule in self._schedules():
            state = self._state()
            gs_adam.flush_rows(*state, None, schedule, threads=1)
            yield state[0]

    def stepped_by_torch(self, dtype: torch.dtype = torch.float32) -> Iterator[np.ndarray]:
        """After each step of dense Adam with gradients of zero."""
        w, m, v = (torch.from_numpy(a.copy()).to(dtype) for a in self._arrays)
        param = torch.nn.Parameter(w)
        adam = torch.optim.Adam([param], betas=self.betas, eps=self.eps, foreach=False)
        adam.state[param] = {"step": torch.tensor(float(self.since)), "exp_avg": m, "exp_avg_sq": v}
        param.grad = torch.zeros_like(param)
        for rate in self.rates:
            adam.param_groups[0]["lr"] = rate
            adam.step()
            yield param.detach().numpy()

    def through_gs_adam(self, wakes: Sequence[bool]) -> Iterator[tuple[str, Floats]]:
        """After each step: caught up in one sleep; caught up in place where ``wakes`` says so;
        by dense Adam with gradients of zero."""
        several, dense = self._state(), self._state()
        zero, rows = np.zeros_like(dense[0]), np.arange(len(self.values))
        for schedule, wakes_now in zip(self._schedules(), wakes, strict=True):
            one = self._state()
            gs_adam.flush_rows(*one, None, schedule, threads=1)
            yield "one sleep", one[0]
            if wakes_now:
                gs_adam.flush_rows(*several, None, schedule, threads=1)
                yield "several sleeps", several[0]
            gs_adam.update_rows(*dense, rows, zero, schedule, threads=1)
            yield "dense Adam", dense[0]

    def rounded_adversely(self) -> Iterator[Doubles]:
        """After each step of an arithmetic that errs as far as float32 may, always outward.

        An operation errs by half an ulp: 2^-24 of its result, or 2^-150 where that is more, but
        never by more than the result, as 0 is representable. Nor does the sum of a value and its
        movement err by more than the movement, as the value is representable.
        """
        u, tiny = 2.0**-24, 2.0**-150

        def up(x: Any) -> Any:
            return x + np.maximum(u * x, np.minimum(x, tiny))

        b1, b2 = self.betas
        w, m, v = (a.astype(np.float64) for a in self._arrays)
        sign, m = np.sign(m), np.abs(m)
        for step, rate in enumerate(self.rates, self.since + 1):
            m = up((b1 + u) * m if b1 > 0.0 else 0.0 * m)
            v = b2 * v * (1.0 - 2.0 * u)
            root = np.sqrt(np.where(v < 2.0**-125, 0.0, v)) * (1.0 - 3.0 * u)
            root /= math.sqrt(-math.expm1(step * math.log(b2)))
            moved = up(up(rate / (1.0 - b1**step)) * m)
            moved = up(moved / ((root + self.eps * (1.0 - u)) * (1.0 - u)))
            half_ulp = np.spacing(np.abs(w - sign * moved).astype(np.float32)) / 2.0
            w = w - sign * (moved + np.minimum(moved, half_ulp))
            yield w

    @property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        return self.values, self.exp_avg, self.exp_avg_sq

    def _state(self) -> list[Any]:
        last_step = np.full(len(self.values), self.since, np.int32)
        return [*(a[:, None].copy() for a in self._arrays), last_step]

    def _schedules(self) -> Iterator[gs_adam.Schedule]:
        """One schedule, after each of its steps."""
        schedule = gs_adam.Schedule()
        schedule.load_state_dict({"step": self.since, "groups": []})
        for rate in self.rates:
            schedule.begin(rate, betas=self.betas, eps=self.eps)
            yield schedule


def outside(box: tuple[Floats, Floats], values: np.ndarray) -> np.ndarray:
    """(R,) bool: finite values that are not in their intervals. Others never show."""
    now = values.reshape(-1).astype(np.float64)
    return np.isfinite(now) & ~((box[0] <= now) & (now <= box[1]))


def rates(kind: str, rate: float, n_steps: int, draw: np.random.Generator) -> list[float]:
    """Of the steps to come, ``rate`` at most."""
    t = np.arange(n_steps) / n_steps
    factors = {
        "constant": np.ones(n_steps),
        "decaying": 0.01**t,
        "cosine": 0.5 + 0.5 * np.cos(math.pi * t),
        "warm restarts": 0.5 + 0.5 * np.cos(math.pi * (4 * t % 1)),
        "warm-up": np.minimum(1.0, 4 * t),
        "random": draw.random(n_steps),
        "off and on": (t > 0.3).astype(np.float64),
    }[kind]
    return [float(rate * f) for f in factors]


def values_of_all_sizes(n: int, draw: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """(R,) values and moments: denormal, tiny, usual and large, and of none."""

    def spread(low: float, high: float) -> np.ndarray:
        return 2.0 ** draw.uniform(low, high, n)

    w = spread(-20, 20) * draw.choice([0, 1, 1, 1, 2.0**-100, 2.0**-140], n)
    v = draw.choice([spread(-149, -120), spread(-80, 10), spread(-149, 100), np.zeros(n)])
    v = np.where(draw.random(n) < 0.1, 0.0, v).astype(np.float32)
    # Up to the bound of Cauchy and Schwarz, and moments that somebody has edited.
    m = np.sqrt(v.astype(np.float64)) * draw.uniform(0, 7.3, n)
    m = np.where(draw.random(n) < 0.3, spread(-149, 20), m)
    m = np.where(draw.random(n) < 0.1, draw.integers(0, 20, n) * 2.0**-149, m)
    signs = draw.choice([-1.0, 1.0], (2, n))
    return (w * signs[0]).astype(np.float32), (m * signs[1]).astype(np.float32), v
