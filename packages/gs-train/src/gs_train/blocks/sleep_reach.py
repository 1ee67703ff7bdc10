# SPDX-License-Identifier: Apache-2.0
"""How far Adam can move a value that gets no gradient, whatever the steps to come.

docs/decisions/0014-bounds-of-sleeping-geometry.md has the inequality, its margins by number, and
the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.partition import Doubles, Ids

LAST_STEP = 2**31 - 2
"""No schedule has a later step."""

_LONGEST_WINDOW = 16384
"""Steps within which a sleep must settle, as gs-adam asks for."""
# A sum in float64 rounds far less.
_SUM_MARGIN = 1.0 + 2.0**-30
# Second moments below may round to zero while they decay.
_NORMAL = 2.0**-125
# The smallest float32: what rounding a denormal number may add.
_DENORMAL = 2.0**-149
_LARGEST_CEILING = 2.0**64


class SleepReach:
    """Bounds of the future of sleeping values of one group of Adam without weight decay.

    The bounds hold in real numbers, and in float32 for values that are caught up in one sleep or
    in several, by gs-adam's formula or term by term, and for values that dense Adam steps with
    zero gradients.

    Args:
        betas: of all steps, such that rows may sleep: b1 <= b2, and b1 well below sqrt(b2).
        eps: no step has a smaller one; from 1e-20 to 1.
        ceiling: no step to come has a larger rate.
        rates: of the steps that were taken before.

    Raises:
        ValueError: a number out of range.

    Threads: one at a time.
    """

    def __init__(
        self,
        betas: tuple[float, float],
        eps: float,
        ceiling: float,
        rates: Iterable[float] = (),
    ) -> None:
        b1, b2 = betas
        r = b1 / math.sqrt(b2) if b1 > 0.0 and b2 > 0.0 else 0.0
        if not 0.0 <= b1 <= b2 < 1.0 or r ** (_LONGEST_WINDOW / 60) > 0.5:
            raise ValueError(f"betas must be those by which rows can sleep, got {betas}")
        if not 1e-20 <= eps <= 1.0:
            raise ValueError(f"eps must be from 1e-20 to 1, got {eps}")
        self._betas, self._eps, self._decay = (b1, b2), eps, r
        self._step = 0
        self._rates = np.zeros(1024)  # by step, of which there is no step 0; with room for more
        self._later = np.zeros(1024)  # the largest rate of the steps taken after each step
        self._tails, self._largest, least = _correction_sums(b1, b2, 1024)
        # Margin 3. After n steps the movements to come are together below half an ulp of all.
        bits = [math.log2(a) for a in (self._largest, least, r or 0.5)]
        n = (24.0 + bits[0] - bits[1] - bits[2]) / -bits[2]
        self._roundings = 2.0**-24 * (n + 1.0 / (1.0 - r) + 4.0)
        self.set_ceiling(_LARGEST_CEILING)
        for rate in rates:
            self.record_step(rate)
        self.set_ceiling(ceiling)

    def __repr__(self) -> str:
        return f"SleepReach(betas={self._betas}, step={self.step}, ceiling={self._ceiling:g})"

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self._step

    @property
    def rates(self) -> Doubles:
        """(step,) rates of the steps so far."""
        return self._rates[1 : self._step + 1].copy()

    @property
    def last_rate(self) -> float:
        """Of the last step; 0 before the first."""
        return float(self._rates[self._step])

    @property
    def ceiling(self) -> float:
        """No step to come has a larger rate."""
        return self._ceiling

    def set_ceiling(self, ceiling: float) -> None:
        """Change the ceiling of the rates to come. Bounds made before a rise do not hold after it.

        Raises:
            ValueError: it is not from 0 to 2^64.
        """
        if not 0.0 <= ceiling <= _LARGEST_CEILING:
            raise ValueError(f"ceiling must be from 0 to 2^64, got {ceiling}")
        self._ceiling = ceiling

    def record_step(self, rate: float) -> int:
        """Note the rate of the next step.

        Returns:
            The step's number, from 1 on.

        Raises:
            ValueError: the rate is negative or above the ceiling.
        """
        if not 0.0 <= rate <= self._ceiling:
            raise ValueError(f"rate must be from 0 to the ceiling {self._ceiling}, got {rate}")
        self._step += 1
        if self._step == len(self._rates):
            self._rates = np.append(self._rates, np.zeros(self._step))
            self._later = np.append(self._later, np.zeros(self._step))
        self._rates[self._step] = rate
        first = self._step
        while first > 0 and self._later[first - 1] < rate:
            first -= 1
        self._later[first : self._step] = rate
        return self._step

    def ceilings(self, last_step: Ids) -> Doubles:
        """For each step given, the largest rate of the steps after it, taken or to come."""
        largest: Doubles = np.maximum(self._later[last_step], self._ceiling)
        return largest

    @property
    def later_rates(self) -> Doubles:
        """(step + 1,) by step from 0 on, the largest rate of the steps taken after it."""
        return self._later[: self._step + 1]

    @property
    def decay(self) -> float:
        """Of the movement of a sleeping value, from step to step."""
        return self._decay

    def largest_move(self, rate: float) -> float:
        """The most that one step of this rate moves a value, whatever its history and gradient.

        By Cauchy and Schwarz |m| <= (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)) sqrt(v).
        """
        b1, b2 = self._betas
        most = (1.0 - b1) / math.sqrt((1.0 - b2) * (1.0 - b1 * b1 / b2)) if b2 else 1.0
        # Rounding of the step itself and of the value it is added to.
        return rate * most * self._largest * (1.0 + 1e-5)

    def by_step(self, first: int) -> Doubles:
        """(step + 1 - first, 3) of rows that each step from ``first`` on was the last of: the
        largest rate of the steps taken after it, in the last line the ceiling; the sum of their
        corrections; and epsilon of the next step, which no later one is below."""
        since = np.arange(first, self._step + 1)
        rates = self._later[first : self._step + 1].copy()
        rates[-1] = self._ceiling
        lines: Doubles = np.stack([rates, self.correction_sums(since), self._next_eps(since)], 1)
        return lines

    def numbers(self) -> list[float]:
        """The constants of `reach`, as kernels take them. The decay must be above 0."""
        (b1, b2), r = self._betas, self._decay
        return [
            self._largest,
            math.sqrt(b2),
            self._margins(),
            -math.log(b1) / math.log(b2),
            b1,
            1.0 - b1,
            1.0 - r,
            self._roundings,
            _DENORMAL,
        ]

    def _next_eps(self, since: Ids) -> Doubles:
        eps: Doubles = self._eps * np.sqrt(-np.expm1((since + 1.0) * math.log(self._betas[1])))
        return eps

    def _margins(self) -> float:
        """1 and 2."""
        return 1.0 + 2.0**-18 + (2.0**-19 + 2.0**-22 / self._betas[0]) / (1.0 - self._decay)

    def correction_sums(self, last_step: Ids, until: int | None = None) -> Doubles:
        """Upper bounds of C_s: c_(s+k) r^k summed over the steps after s, up to step ``until``."""
        longest = int(last_step.max(initial=0))
        if until is not None and until - longest > _LONGEST_WINDOW:
            until = None  # nothing is left by then
        longest = max(longest, until or 0)
        if longest >= len(self._tails):
            self._tails, _, _ = _correction_sums(*self._betas, 2 * longest)
        sums: Doubles = self._tails[last_step]
        if until is not None:
            later = self._decay ** np.maximum(until - last_step, 0) * self._tails[until]
            sums = np.maximum(sums - later * (1.0 - 2.0**-40), 0.0)
        return sums * _SUM_MARGIN

    def reach(
        self,
        values: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        last_step: Tensor,
        until: int | None = None,
    ) -> Tensor:
        """How far any later value may lie from a stored one, on the side of the movement.

        Args:
            values, exp_avg, exp_avg_sq: (R, W) float32, as ``last_step`` left these.
            last_step: (R,) ints, from 0 to `step`, on the same device.
            until: the last step that the bounds must hold for; None for ever.

        Returns:
            (R, W) float64: 0 where nothing moves, infinite where no bound is known.

        Raises:
            ValueError: a last step that has not been taken; looked at on the CPU alone.
        """
        since = last_step.long()
        if since.device.type == "cpu" and len(since):
            first, last = int(since.min()), int(since.max())
            if first < 0 or last > self.step:
                raise ValueError(f"last_step must be from 0 to {self.step}, got {first} to {last}")
        (b1, b2), r = self._betas, self._decay
        if r == 0.0:
            return torch.zeros_like(values, dtype=torch.float64)
        w, m, v = (part.double().abs() for part in (values, exp_avg, exp_avg_sq))
        by_step = self._by_step(until, since.device)[:, since, None]
        ceiling, sums, eps = by_step.unbind()
        n_steps = ((LAST_STEP if until is None else until) - since).clamp_min(0)[:, None]
        farthest = ceiling * self._largest / eps
        quotient = m / (v.where(v >= _NORMAL, 0.0).sqrt() + eps / math.sqrt(b2))
        moved = ceiling * sums * quotient
        # Margin 4, then 1 and 2.
        moved += 4.0 * farthest * m * self._without_v(v)
        moved *= self._margins()
        # Margins 5 and 6, then 3.
        a_step = 2.0 * farthest / (1.0 - b1) + 2.0 / eps + 2.0
        denormal = a_step * n_steps + quotient / (1.0 - r) + 1.0
        moved += _DENORMAL * denormal
        moved += self._roundings * (w + moved)
        moved = moved.where(~moved.isnan(), math.inf)
        return moved.where((m != 0.0) & (n_steps != 0), 0.0)

    def _by_step(self, until: int | None, device: torch.device) -> Tensor:
        """(3, step + 1) float64, of rows that each step was the last of: the ceiling of the rates
        after it, the sum of their corrections, and epsilon of the next step, which no later one is
        below."""
        since = np.arange(self._step + 1)
        eps = self._next_eps(since)
        rows = np.stack([self.ceilings(since), self.correction_sums(since, until), eps])
        return torch.from_numpy(rows).to(device)

    def _without_v(self, v: Tensor) -> Tensor:
        """Upper bounds of the sum of b1^k over the steps in which v has left the normal numbers.

        0 where v has left them already: `reach` takes such a v for zero.
        """
        b1, b2 = self._betas
        power = (v / _NORMAL).clamp_min(1.0) ** (-math.log(b1) / math.log(b2))
        return power.clamp_max(b1).where(v >= _NORMAL, 0.0) / (1.0 - b1)


def _correction_sums(b1: float, b2: float, longest: int) -> tuple[Doubles, float, float]:
    """Upper bounds of the sums over k >= 1 of c_(s+k) r^k for each s up to ``longest``, and bounds
    from above and below of all c_j = sqrt(1 - b2^j) / (1 - b1^j)."""
    r = b1 / math.sqrt(b2) if b1 else 0.0
    steps = np.arange(1.0, longest + 2)
    second = np.sqrt(-np.expm1(steps * math.log(b2))) if b2 else np.ones(len(steps))
    corrections = second / (1.0 - b1**steps)
    beyond = 1.0 / (1.0 - b1 ** (longest + 1.0))
    sums = np.empty(longest + 1)
    later = beyond * r / (1.0 - r)
    for s in range(longest, -1, -1):
        later = r * (corrections[s] + later) if s < longest else later
        sums[s] = later
    largest = max(float(corrections.max()), beyond)
    return sums, largest, min(float(corrections.min()), float(second[-1]))
