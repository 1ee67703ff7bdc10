# SPDX-License-Identifier: Apache-2.0
"""Depth maps that a caller in Python holds, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gs_train.data.depths import GivenDepth
from gs_train.renderers.protocol import DepthMeaning, InverseDepth, MetricDepth


def given_depths(
    depths: Sequence[Any] | None,
    params: ArrayLike | None,
    unit: float | None,
    sizes: Sequence[tuple[int, int]],
) -> list[GivenDepth | None]:
    """The map of each photograph, None without one.

    Args:
        depths: see :func:`gs_train.data.capture_from_arrays`.
        params: ``depth_params`` there.
        unit: ``depth_unit`` there.
        sizes: widths and heights of the photographs.

    Raises:
        TypeError: a map is not uint16, or parameters are no numbers.
        ValueError: there are too few or too many, or a shape or a number is out of range.
    """
    n = len(sizes)
    if depths is None:
        for name, value in (("depth_params", params), ("depth_unit", unit)):
            if value is not None:
                raise ValueError(f"{name} must be left out where depths are not given")
        return [None] * n
    if len(depths) != n:
        raise ValueError(f"depths must be {n}, one for each image, got {len(depths)}")
    scales = _params(params, n) if unit is None else None
    metric = None if unit is None else _metric(unit, params)
    found: list[GivenDepth | None] = []
    for i, (width, height) in enumerate(sizes):
        given = depths[i]
        if given is None:
            found.append(None)
            continue
        array = np.asarray(given)
        if array.dtype != np.uint16:
            raise TypeError(f"depths must be uint16, got {array.dtype} of map {i}")
        if array.shape != (height, width):
            raise ValueError(f"depths must be {(height, width)}, got {array.shape} of map {i}")
        of = _inverse(scales[i], i) if scales is not None else metric
        assert of is not None
        found.append(GivenDepth(partial(depths.__getitem__, i), of))
    return found


def _inverse(params: np.ndarray, i: int) -> DepthMeaning:
    if not params[0] > 0 or not np.isfinite(params).all():
        raise ValueError(
            f"depth_params must be a scale above 0 and a finite offset, got {params.tolist()} of "
            f"map {i}"
        )
    return InverseDepth(*map(float, params))


def _metric(unit: float, params: ArrayLike | None) -> DepthMeaning:
    if params is not None:
        raise ValueError("depth_params must be left out where depth_unit is given")
    if isinstance(unit, bool) or not isinstance(unit, (int, float, np.number)):
        raise TypeError(f"depth_unit must be a number, got {type(unit).__name__}")
    if not (unit > 0 and np.isfinite(unit)):
        raise ValueError(f"depth_unit must be above 0 and finite, got {unit}")
    return MetricDepth(float(unit))


def _params(params: ArrayLike | None, n: int) -> np.ndarray:
    """(n, 2) float64."""
    if params is None:
        raise ValueError(
            "depth_params must be given with depths: (V, 2), scale and offset of each; or "
            "depth_unit, the length of a value of 1"
        )
    array = np.asarray(params)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"depth_params must be numbers, got {array.dtype}")
    if array.shape == (2,):
        array = np.stack([array] * n)
    if array.shape != (n, 2):
        raise ValueError(f"depth_params must be {(n, 2)}, got {array.shape}")
    return array.astype(np.float64)
