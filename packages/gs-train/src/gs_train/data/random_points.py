# SPDX-License-Identifier: Apache-2.0
"""Points to start from, where a capture has none."""

from __future__ import annotations

import numpy as np

from gs_train.data.colmap_records import FloatArray
from gs_train.data.frame import Frame

N_RANDOM_POINTS = 20_000


def random_points(frame: Frame) -> FloatArray:
    """(20000, 3) float64 points of the capture, in the cube around the cameras' common focus that
    holds the cameras; always the same for the same frame."""
    half = max(1.0, frame.extent)  # the cameras' median distance from the focus is 1
    cube = np.random.default_rng(0).uniform(-half, half, (N_RANDOM_POINTS, 3))
    return cube / frame.scale - np.asarray(frame.shift)
