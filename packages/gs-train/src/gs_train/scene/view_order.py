# SPDX-License-Identifier: Apache-2.0
"""The views of each step of a run."""

from __future__ import annotations

import numpy as np

from gs_order import ViewSampler
from gs_train.data import Capture
from gs_train.options.config import FitConfig


def view_sampler(
    config: FitConfig, capture: Capture, *, first_step: int = 0, n_steps: int | None = None
) -> ViewSampler:
    """The sampler of a run's batches, which counts the views of ``capture.train``.

    A step's views follow from the options, the step and, with tiles, the poses that the capture
    holds in float64. A run is resumed with the same poses to the bit, so on the same views.

    Args:
        first_step, n_steps: what an iteration yields, see :class:`gs_order.ViewSampler`.
    """
    cameras = None
    if config.order == "tiles":
        cameras = np.stack([capture.views[i].world_to_camera for i in capture.train])
    return ViewSampler(
        len(capture.train),
        config.batch_size,
        seed=config.seed,
        order=config.order,
        cameras=cameras,
        tile_views=config.tile_views,
        first_step=first_step,
        n_steps=n_steps,
    )
