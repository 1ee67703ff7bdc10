# SPDX-License-Identifier: Apache-2.0
"""Cutting an image so that each part sees about as many Gaussians."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gs_cull.arrays import Array, check_kind, is_torch, native, on_host
from gs_cull.cameras import check_cameras
from gs_cull.checks import shown, whole_number
from gs_cull.cull import cull
from gs_cull.options import CameraModelName, native_options


@dataclass(frozen=True, eq=False)
class Split:
    """An image in n parts.

    Attributes:
        parts: (n, 4) int32 x0, y0, x1, y1: disjoint, together the whole image.
        rects: (n, 4) int32, each part grown by the halo within the image: what to render so that a
            filter of that reach is exact on the part. ``cull(..., rects=)`` takes these.
        counts: (n,) int32 rows that each of ``rects`` sees.
        n_visible: rows that the whole view sees; fewer than the sum of ``counts``, as parts share
            rows.
    """

    parts: np.ndarray
    rects: np.ndarray
    counts: np.ndarray
    n_visible: int


def balanced_split(
    means: Array,
    scales: Array,
    quats: Array,
    viewmat: Array,
    K: Array,
    width: int,
    height: int,
    *,
    n: int = 2,
    axis: Literal["x", "y"] = "x",
    halo: int = 5,
    opacities: Array | None = None,
    near: float = 0.01,
    far: float = 1e10,
    eps2d: float = 0.3,
    radius_clip: float = 0.0,
    camera_model: CameraModelName = "pinhole",
    activated: bool = False,
    antialiased: bool = False,
    blocks: Any = None,
) -> Split:
    """Cut a view at the columns (or rows) where the parts' visible counts balance.

    A bisection on the largest count that a part may have, each candidate checked by cutting
    greedily: the result has the least possible largest count. For two parts this is the column that
    GS-Scale (section 4.4) bisects for.

    Args:
        viewmat: (4, 4). K: (3, 3).
        n: number of parts, at most one per pixel.
        axis: "x" cuts at columns, "y" at rows.
        halo: pixels that each part is grown by; 5 makes an SSIM window of 11 exact at the seam.
        others: as in :func:`gs_cull.cull`.

    Returns:
        A :class:`Split` of numpy arrays, whatever the input.

    Raises:
        ValueError: ``n``, ``axis`` or ``halo`` is out of range; as :func:`gs_cull.cull`.

    Cost: one cull, one pass over the visible rows, and O(width) work on the host. Synchronises.
    """
    if not isinstance(axis, str) or axis not in ("x", "y"):
        raise ValueError(f"axis must be x or y, got {shown(axis)}")
    width = whole_number("width", width, least=1, most=2**24)
    height = whole_number("height", height, least=1, most=2**24)
    length = width if axis == "x" else height
    n = whole_number("n", n, least=1, most=length)
    halo = min(whole_number("halo", halo), length)
    options: dict[str, Any] = {
        "near": near,
        "far": far,
        "eps2d": eps2d,
        "radius_clip": radius_clip,
        "camera_model": camera_model,
        "activated": activated,
        "antialiased": antialiased,
    }
    geometry = (means, scales, quats, opacities)
    check_kind(means=means, viewmat=viewmat, K=K)
    views = (viewmat[None], K[None], width, height)
    seen = cull(means, scales, quats, *views, opacities=opacities, blocks=blocks, **options)
    boxes = native(means).boxes(
        geometry,
        check_cameras(*views, None),
        native_options(**options, inflate=None),
        seen.ids,
    )
    low, high = (boxes[:, 0], boxes[:, 2]) if axis == "x" else (boxes[:, 1], boxes[:, 3])
    started, ended = _cumulative(low, high, length)
    cuts = _balanced_cuts(started, ended, length, n, halo)
    parts = np.array([[0, 0, width, height]] * n, np.int32)
    rects = parts.copy()
    first, last = (0, 2) if axis == "x" else (1, 3)
    parts[:, first], parts[:, last] = cuts[:-1], cuts[1:]
    rects[:, first] = np.maximum(parts[:, first] - halo, 0)
    rects[:, last] = np.minimum(parts[:, last] + halo, length)
    counts = (started[rects[:, last]] - ended[rects[:, first]]).astype(np.int32)
    return Split(parts, rects, counts, len(seen))


def _cumulative(low: Array, high: Array, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(length + 1,) rows whose box starts before pixel edge x, and rows whose box ends by x.

    A box meets [a, b) exactly when it starts before b and does not end by a.
    """
    starts: Array
    ends: Array
    if is_torch(low):
        import torch

        starts = torch.bincount((low.clamp(-1, length).floor() + 1).long(), minlength=length + 2)
        ends = torch.bincount(high.clamp(0, length + 1).ceil().long(), minlength=length + 2)
    else:
        starts = np.bincount(
            (np.floor(np.clip(low, -1, length)) + 1).astype(np.int64), minlength=length + 2
        )
        ends = np.bincount(
            np.ceil(np.clip(high, 0, length + 1)).astype(np.int64), minlength=length + 2
        )
    return on_host(starts).cumsum()[: length + 1], on_host(ends).cumsum()[: length + 1]


def _balanced_cuts(
    started: np.ndarray, ended: np.ndarray, length: int, n: int, halo: int
) -> list[int]:
    """n + 1 edges from 0 to length whose parts' largest count is least."""

    def greedy(limit: int) -> list[int] | None:
        # Each part goes as far as the limit allows, leaving a pixel for each that follows.
        cuts = [0]
        for part in range(1, n + 1):
            before = ended[max(cuts[-1] - halo, 0)]
            reach = int(np.searchsorted(started, limit + before, side="right")) - 1
            if reach >= length:
                cut = length
            else:
                cut = reach - halo
            cut = min(cut, length - (n - part))
            if cut <= cuts[-1]:
                return None
            cuts.append(cut)
        return cuts if cuts[-1] == length else None

    few, many = 0, int(started[-1])
    while few < many:
        middle = (few + many) // 2
        if greedy(middle) is None:
            few = middle + 1
        else:
            many = middle
    found = greedy(many)
    assert found is not None, "one part may see everything"
    return found
