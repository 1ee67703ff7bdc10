# SPDX-License-Identifier: Apache-2.0
"""What one pass of the renderer draws: a view, or a crop of one that would be too much at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

import gs_cull
from gs_train.losses.loss import Crop
from gs_train.losses.ssim import HALO
from gs_train.renderers import Renderer, View
from gs_train.renderers.culling import Cameras, balanced_split, cameras_of, cull, mark
from gs_train.renderers.protocol import Rect
from gs_train.renderers.records import TILE


@dataclass(frozen=True)
class Microbatch:
    """One view or crop.

    Attributes:
        index: of its view in the batch.
        crop: what it answers for.
        n_crops: how many the view was cut into; 1 when it is whole.
    """

    index: int
    crop: Crop
    n_crops: int = 1

    @property
    def is_whole(self) -> bool:
        return self.n_crops == 1


@dataclass(frozen=True)
class Seen:
    """Microbatches of a batch and the rows that each sees.

    Attributes:
        microbatches: in the order of the views.
        ids: (U,) int32 sorted union.
        mask: (U, ceil(M / 32)) int32: bit m says that microbatch m sees the row.
        counts: (M,) visible rows, on the host.
        cameras: of the microbatches, as gs_cull takes them.
    """

    microbatches: tuple[Microbatch, ...]
    ids: Tensor
    mask: Tensor
    counts: tuple[int, ...]
    cameras: Cameras


def look(
    geometry: Mapping[str, Tensor],
    views: Sequence[View],
    renderer: Renderer,
    *,
    most_rows: int | None = None,
    inflate: gs_cull.Inflate | None = None,
) -> Seen:
    """Find what a batch sees, and cut views that see more than ``most_rows``.

    Args:
        geometry: the model's parameters on the device.
        views: one or more.
        renderer: whose culling rules hold.
        most_rows: rows of one microbatch at most; None for no limit. Parts of about 20 pixels are
            not cut further, so that nothing is ever left out.
        inflate: see :func:`gs_cull.cull`.

    Cost: one cull, one more where a view is cut, and one for each such view. Synchronises.
    """
    whole = [Microbatch(k, Crop(view, view.rect)) for k, view in enumerate(views)]
    seen = look_at(geometry, whole, renderer, inflate=inflate)
    if most_rows is None or max(seen.counts, default=0) <= most_rows:
        return seen
    cut: list[Microbatch] = []
    for microbatch, count in zip(whole, seen.counts):
        if count <= most_rows:
            cut.append(microbatch)
        else:
            cut += _cut(geometry, microbatch, count, renderer, most_rows)
    return look_at(geometry, cut, renderer, inflate=inflate)


def look_at(
    geometry: Mapping[str, Tensor],
    microbatches: Sequence[Microbatch],
    renderer: Renderer,
    *,
    inflate: gs_cull.Inflate | None = None,
    whole_tiles: bool = False,
) -> Seen:
    """Find what each of these microbatches sees; other arguments as of `look`.

    Args:
        whole_tiles: of crops, list rows that touch a tile of which they have a part. Only then does
            a crop have all tile intersections that the view has there.

    Cost: one cull. Synchronises.
    """
    crops = [microbatch.crop for microbatch in microbatches]
    rects = None
    if not all(microbatch.is_whole for microbatch in microbatches):
        seen = [_in_tiles(crop) if whole_tiles else crop.rect for crop in crops]
        rects = np.array([[*vars(rect).values()] for rect in seen], np.int32)
    cameras = cameras_of([crop.view for crop in crops])
    visible = cull(geometry, cameras, renderer, rects=rects, inflate=inflate)
    # Of a single view it is known without waiting for the device once more.
    counts = (len(visible),) if len(crops) == 1 else tuple(visible.counts.tolist())
    return Seen(tuple(microbatches), visible.ids, visible.mask, counts, cameras)


def _in_tiles(crop: Crop) -> Rect:
    """The tiles that have a part of a crop, as far as they lie in the view."""
    rect, view = crop.rect, crop.view
    x0, y0 = rect.x0 // TILE * TILE, rect.y0 // TILE * TILE
    x1, y1 = -(-rect.x1 // TILE) * TILE, -(-rect.y1 // TILE) * TILE
    return Rect(x0, y0, min(x1, view.width), min(y1, view.height))


def _cut(
    geometry: Mapping[str, Tensor],
    microbatch: Microbatch,
    count: int,
    renderer: Renderer,
    most_rows: int,
) -> list[Microbatch]:
    """The view in as few parts as keep each below the limit, cut across its longer side."""
    view = microbatch.crop.view
    axis: Literal["x", "y"] = "x" if view.width >= view.height else "y"
    length = max(view.width, view.height)
    most = max(1, length // (4 * HALO))  # a part is not much smaller than its halo
    n = min(max(2, -(-count // most_rows)), most)
    while True:
        split = balanced_split(geometry, view, renderer, n=n, axis=axis, halo=HALO)
        if split.counts.max() <= most_rows or n >= most:
            break
        n = min(2 * n, most)
    cores = [Rect(*(int(x) for x in part)) for part in split.parts]
    return [Microbatch(microbatch.index, Crop(view, core), len(cores)) for core in cores]


def marks_of(seen: Seen, geometry: Mapping[str, Tensor], renderer: Renderer) -> Tensor:
    """(U,) bool: which of the listed rows the batch really sees, by the present geometry."""
    return mark(geometry, seen.cameras, seen.ids, seen.mask, renderer)
