# SPDX-License-Identifier: Apache-2.0
"""What a step takes on several GPUs, in terms that docs/scaling.md explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from scipy.optimize import nnls

RECORD_BYTES, GRADIENT_BYTES = 52, 48
SETS = 3  # of buffers

# Assumed where nothing was measured.
UNEVEN = 1.03
CUT = 1.15
FIXED_MS = 1.2

Step = tuple[int, int, float]
"""A measured step: views of the batch, ranks, milliseconds."""


@dataclass(frozen=True)
class OneGpu:
    """What a batch takes on one GPU.

    Attributes:
        view_ms: of a further view, and
        step_ms: of a step besides, by the line through all measured batches.
        rates: images a second by batch, as measured.
    """

    view_ms: float
    step_ms: float
    rates: dict[int, float]

    @classmethod
    def of(cls, rates: dict[int, float]) -> OneGpu:
        """The line through milliseconds of batches that misses them least, relative to each."""
        points = [(batch, 1e3 * batch / rate) for batch, rate in rates.items()]
        weights = [1 / ms**2 for _, ms in points]
        total = sum(weights)
        x = sum(w * b for w, (b, _) in zip(weights, points)) / total
        y = sum(w * ms for w, (_, ms) in zip(weights, points)) / total
        covered = sum(w * (b - x) ** 2 for w, (b, _) in zip(weights, points))
        slope = sum(w * (b - x) * (ms - y) for w, (b, ms) in zip(weights, points)) / covered
        step = max(0.0, y - slope * x)
        return cls(slope, step, rates)

    def ms(self, batch: int) -> float:
        """Of a batch: as measured, else by the line."""
        if batch in self.rates:
            return 1e3 * batch / self.rates[batch]
        return self.step_ms + self.view_ms * batch

    def view_of(self, batch: int) -> float:
        """Milliseconds of a view in a batch. Views of a large batch share rows, so that one of them
        may take less than the only view of a batch does."""
        return max(0.0, self.ms(batch) - self.step_ms) / batch


@dataclass(frozen=True)
class Links:
    """An exchange takes ``start_ms`` and its bytes at ``gb_s``."""

    start_ms: float
    gb_s: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Links:
        """The line through (bytes, milliseconds) that misses them least.

        >>> Links.of([(1e6, 0.02), (3e6, 0.04)])
        Links(start_ms=0.01, gb_s=100.0)
        """
        n = len(points)
        x, y = sum(b for b, _ in points) / n, sum(ms for _, ms in points) / n
        covered = sum((b - x) ** 2 for b, _ in points)
        slope = sum((b - x) * (ms - y) for b, ms in points) / covered
        return cls(round(max(0.0, y - slope * x), 6), round(1e-6 / slope, 6))

    def ms(self, n_bytes: float) -> float:
        """Of so many bytes that leave a rank."""
        return self.start_ms + n_bytes / self.gb_s / 1e6


@dataclass(frozen=True)
class Launching:
    """What the main thread of a rank takes for a batch: ``batch_ms``, ``view_ms`` for each view of
    the batch, and ``drawn_ms`` for each view that the rank draws."""

    batch_ms: float
    view_ms: float
    drawn_ms: float

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Launching:
        """From steps whose views are not cut: the sums that miss them least, relative to each."""
        lines = np.array([[1.0, batch, batch / ranks] for batch, ranks, _ in steps])
        ms = np.array([ms for _, _, ms in steps])
        found, _ = nnls(lines / ms[:, None], np.ones(len(ms)))
        return cls(*found.tolist())

    def ms(self, batch: int, ranks: int) -> float:
        """Of a batch; a part of a view is launched as a whole one."""
        return self.batch_ms + self.view_ms * batch + self.drawn_ms * -(-batch // ranks)


@dataclass(frozen=True)
class Terms:
    """Of the model, besides one GPU's.

    Attributes:
        visible: rows of a view.
        links: of exchanges.
        beside_ms: for which drawing takes longer in a round because of its exchanges.
        least_ms: of a step, whatever is drawn.
        launching: by preset; of a preset that it lacks, the devices set the rate.
        cut_ms: by preset, what a batch of fewer views than ranks takes besides.
    """

    visible: float
    links: Links
    beside_ms: float
    least_ms: float
    launching: dict[str, Launching]
    cut_ms: dict[str, float] = field(default_factory=dict)

    def step_ms(self, preset: str, one: OneGpu, batch: int, ranks: int) -> float:
        """Of a batch on several GPUs: of what takes longer, the devices or the threads that launch
        their work."""
        launching = self.launching.get(preset)
        launched = 0.0 if launching is None or ranks == 1 else launching.ms(batch, ranks)
        besides = self.cut_ms.get(preset, 0.0) if batch < ranks else 0.0
        return max(self.device_ms(one, batch, ranks), launched) + besides

    def device_ms(self, one: OneGpu, batch: int, ranks: int) -> float:
        """Of a batch on several GPUs whose work is launched in time."""
        if ranks == 1:
            return one.ms(batch)
        whole, left = divmod(batch, ranks)
        exchanged = self.exchanged_ms(ranks)
        view = one.view_of(batch)
        rounds = whole * max(view * UNEVEN + self.beside_ms, exchanged)
        if left:
            cut = view * CUT * left / ranks + self.beside_ms
            rounds += max(cut, exchanged * left / ranks)
        fixed = min(one.step_ms, FIXED_MS)
        ms = rounds + fixed + (one.step_ms - fixed) / ranks + exchanged
        return max(ms, self.least_ms)

    def exchanged_ms(self, ranks: int) -> float:
        """The exchanges of a round, there and back: as long as the first and the last of a step,
        which nothing hides."""
        return sum(self.links.ms(self.away(n, ranks)) for n in (RECORD_BYTES, GRADIENT_BYTES))

    def away(self, row_bytes: int, ranks: int) -> float:
        """Bytes that leave a rank in a round."""
        return self.visible * row_bytes * (ranks - 1) / ranks

    def fitted_launching(self, steps: dict[str, list[Step]]) -> Terms:
        """With ``launching`` of the steps that cut no view, by preset."""
        whole = {
            preset: [step for step in those if step[0] % step[1] == 0]
            for preset, those in steps.items()
        }
        launching = {preset: Launching.of(those) for preset, those in whole.items() if those}
        return replace(self, launching=launching)

    def fitted_beside(self, ones: dict[str, OneGpu], steps: dict[str, list[Step]]) -> Terms:
        """With ``beside_ms`` that whole rounds of these steps took, by preset: the median."""
        bare = replace(self, beside_ms=0.0)
        found = [
            (ms - bare.device_ms(ones[preset], batch, ranks)) / (batch // ranks)
            for preset, those in steps.items()
            for batch, ranks, ms in those
            if batch % ranks == 0
        ]
        return replace(self, beside_ms=max(0.0, median(found)))

    def fitted_cut(self, ones: dict[str, OneGpu], steps: dict[str, list[Step]]) -> Terms:
        """With ``cut_ms`` that steps of fewer views than ranks took: the median of a preset."""
        found: dict[str, list[float]] = {}
        for preset, those in steps.items():
            for batch, ranks, ms in those:
                if batch < ranks:
                    rest = ms - self.step_ms(preset, ones[preset], batch, ranks)
                    found.setdefault(preset, []).append(rest)
        cut_ms = {preset: max(0.0, median(rests)) for preset, rests in found.items()}
        return replace(self, cut_ms=cut_ms)
