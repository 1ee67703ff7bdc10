# SPDX-License-Identifier: Apache-2.0
"""Two trainers compared seed by seed: runs of the same seed see the same views and start alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from harness import Record

DIFFERENCES = {"psnr": "dB", "ssim": "SSIM"}
RATE = "images_per_second"
Scores = dict[str, float]


class Pair:
    """Runs of two trainers with the same seeds.

    Attributes:
        name: of the lines: the one over the other.
        rates: images a second of the first, as a multiple of the second's, seed by seed.
        differences: by column, the first's score less the second's, seed by seed.
    """

    def __init__(
        self, name: str, first: Sequence[Scores], other: str, second: Sequence[Scores]
    ) -> None:
        self.name = f"{name} over {other}"
        both = list(zip(first, second))
        self.rates = [a[RATE] / b[RATE] for a, b in both]
        self.differences = {column: [a[column] - b[column] for a, b in both]
                            for column in DIFFERENCES}  # fmt: skip

    def add_to(self, record: Record, axes: dict[str, object]) -> None:
        """A line of ratios, and a line for each difference with its standard error."""
        if not self.rates:
            return
        record.add(self.name, self.rates, "ratio", axes=axes)
        for column, unit in DIFFERENCES.items():
            values = self.differences[column]
            record.add(
                self.name, values, unit, axes=axes,
                mean=statistics.mean(values), standard_error=standard_error(values),
            )  # fmt: skip

    def __str__(self) -> str:
        """One line of the table."""
        low, high = min(self.rates), max(self.rates)
        cells = [f"rate {statistics.median(self.rates):.3f} ({low:.3f} to {high:.3f})"]
        for column, values in self.differences.items():
            digits = {"psnr": 3, "ssim": 5}[column]
            mean, error = statistics.mean(values), standard_error(values)
            cells.append(f"{column} {mean:+.{digits}f} +- {error:.{digits}f}")
        return f"{self.name}: " + ", ".join(cells)


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; not a number where there are less than two."""
    if len(values) < 2:
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))
