# SPDX-License-Identifier: Apache-2.0
"""What a first pass over points finds: their bounds, and where to cut the Morton curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gs_train.clouds.regions import Curve
from gs_train.rows.morton import MortonCube, bounds_by_sample


@dataclass(frozen=True)
class Looked:
    """Bounds and a sample of points.

    Attributes:
        n_points: that can be used.
        lowest, highest: their bounds, with strays.
        sample: (S, 3) every `gs_train.rows.morton.sample_stride`-th of the points.
    """

    n_points: int
    lowest: Tensor
    highest: Tensor
    sample: Tensor

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Without strays."""
        return bounds_by_sample(self.lowest, self.highest, self.sample, self.n_points)

    def curve(self, n_parts: int) -> Curve:
        """With cuts where they make parts of about as many points."""
        cube = MortonCube.within(*self.bounds)
        codes = cube.codes(self.sample).sort().values.numpy()
        places = np.arange(1, n_parts) * len(codes) // n_parts
        cuts = np.unique(codes[places])
        return Curve(cube, cuts[cuts > 0])
