# SPDX-License-Identifier: Apache-2.0
"""The bytes of a photograph's pixel: colours; the state of its mask, if there is one
(:mod:`gs_train.losses.mask`); two bytes of its depth map, if there is one
(:mod:`gs_train.losses.depth`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gs_train.losses.mask import CHANNELS

DEPTH_BYTES = 2


def n_channels(*, is_masked: bool, has_map: bool) -> int:
    """Bytes of a pixel: 3 to 6."""
    return (CHANNELS if is_masked else 3) + DEPTH_BYTES * has_map


def has_depth(photograph: Tensor | NDArray[np.uint8]) -> bool:
    """Whether a photograph, (h, w, 3 to 6), has a depth map."""
    return photograph.shape[-1] > CHANNELS


def without_depth(photograph: Tensor) -> Tensor:
    """(h, w, 3) or with a mask (h, w, 4): a photograph without its depth map; itself if it has
    none, else a copy."""
    return photograph[..., :-DEPTH_BYTES].contiguous() if has_depth(photograph) else photograph
