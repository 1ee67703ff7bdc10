# SPDX-License-Identifier: Apache-2.0
"""The census of a scene: rows that its views see, counted by culling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

import gs_cull
import gs_order
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of, cull, visible_ids
from gs_train.rows.attributes import GEOMETRY
from gs_train.sizing.workload import BatchRows, Workload

_TILE = 16
_MOST_ROWS = 1_000_000
"""Rows that are looked at: of larger scenes an even choice, counted for the others."""

_MOST_TESTS = 200_000_000
"""Rows times views that are looked at to find the view that sees most."""

_VIEWS = 64
"""Views that are culled at once there."""

_TILES = 2
"""Tiles whose rows are counted, where views come in tiles."""

_CANDIDATES = 3
"""Views that are compared with all rows there."""


def measure_workload(
    geometry: Rows,
    views: list[View],
    renderer: Renderer,
    *,
    n_rows: int,
    sh_degree: int,
    batch_size: int,
    n_batches: int = 4,
    batches: Sequence[Sequence[int]] | None = None,
    sampler: gs_order.ViewSampler | None = None,
    image_cache: int = 0,
    statistics_bytes: int = 8,
) -> Workload:
    """Cull some batches of views and count.

    Args:
        geometry: means, scales (log), quats and opacities (logit) of R rows, on any device: the
            scene as it is now.
        views: that batches are drawn from, at least one, on the renderer's device.
        renderer: its rules decide what shows, its arrays how much memory a view takes.
        n_rows: N, the rows to predict for. More rows than R are taken to be smaller ones on the
            same surfaces: extents shrink by the root of N / R, and views see the same share.
        sh_degree, image_cache, statistics_bytes: see :class:`Workload`.
        batch_size: views a step; may be more than there are.
        n_batches: batches to look at, each with the next one.
        batches: the views of two batches or more in a row to look at instead, in this order; no
            other view is then looked at.
        sampler: draws the batches of training; None: they are shuffled.

    Raises:
        ValueError: no rows or no views.

    Cost: ``n_batches + 1`` culls of at most a million rows (with tiles at most
        ``2 * n_batches + 2``, and one of fewer rows for some tiles), one of fewer rows for all
        views, and a projection of a few views.
    """
    n_now = len(geometry["means"])
    if n_now == 0 or not views:
        raise ValueError(f"there must be rows and views, got {n_now} and {len(views)}")
    every = -(-n_now // _MOST_ROWS)
    rows = {
        name: geometry[name].detach()[::every].to(renderer.device).contiguous() for name in GEOMETRY
    }
    growth = max(1.0, n_rows / n_now)
    rows["scales"] = rows["scales"] - 0.5 * float(np.log(growth))
    factor = n_rows / len(rows["means"])
    rare: list[BatchRows] = []
    tile_rows, tile_batches = 0.0, 0
    epoch_rows, epoch_batches = 0.0, 0.0
    if batches is None:
        if sampler is None:
            sampler = gs_order.ViewSampler(len(views), batch_size)
        steps, rare_steps = _steps(sampler, n_batches)
        counted = _count_steps(rows, views, sampler.batch, [*steps, *rare_steps], renderer)
        counted, rare = counted[: len(steps)], counted[len(steps) :]
        extreme, epoch_rows = _extreme(rows, views, renderer)
        rare.append(extreme)
        epoch_batches = len(views) / batch_size
        tiles = sampler.tiles(0)
        if len(tiles) > 1:
            tile_rows, tile_batches = _tile_rows(rows, views, tiles, batch_size, renderer)
    else:
        counted = _count_steps(rows, views, batches.__getitem__, range(len(batches) - 1), renderer)
    counted = [each.scaled(factor) for each in counted]
    rare = [each.scaled(factor) for each in rare]
    return Workload(
        n_rows=n_rows,
        sh_degree=sh_degree,
        batch_size=batch_size,
        width=max(view.width for view in views),
        height=max(view.height for view in views),
        most=BatchRows.of([*counted, *rare], max),
        mean=BatchRows.of(counted, lambda counts: sum(counts) / len(counts)),
        tile_rows=tile_rows * factor,
        tile_batches=tile_batches,
        epoch_rows=epoch_rows * factor,
        epoch_batches=epoch_batches,
        image_cache=image_cache,
        statistics_bytes=statistics_bytes,
        renderer=renderer.name,
        absgrad=getattr(renderer, "absgrad", False),
    )


def middle_view(
    geometry: Rows, views: list[View], renderer: Renderer
) -> tuple[View, Tensor] | None:
    """Of nine views or so, the one that sees neither most nor least of those that see anything, and
    what it sees; where none of the nine does, the first of all that does.

    Args:
        geometry: as :func:`measure_workload`'s, on the renderer's device.

    Returns:
        The view, and (R,) int64 sorted rows, at least one; None where no view sees any.
    """

    def ids_of(view: View) -> Tensor:
        return visible_ids(geometry, view, renderer)

    some = [(view, ids_of(view)) for view in views[:: max(1, len(views) // 9)]]
    seen = sorted((pair for pair in some if len(pair[1])), key=lambda pair: len(pair[1]))
    if seen:
        return seen[len(seen) // 2]
    for view in views:
        if len(ids := ids_of(view)):
            return view, ids
    return None


def _steps(sampler: gs_order.ViewSampler, n_batches: int) -> tuple[list[int], list[int]]:
    """Steps to count, each with the next one, and steps to count for the most alone.

    Shuffled batches are all alike. Those of a tile see one place, so they are taken from all over
    an epoch; and where two epochs meet, a batch sees two places.
    """
    if sampler.order == "shuffle":
        return list(range(n_batches)), []
    in_epoch = max(1, sampler.n_views // sampler.batch_size)
    spread = [(2 * k + 1) * in_epoch // (2 * n_batches) for k in range(n_batches)]
    return spread, [in_epoch - 1, in_epoch]


def _count_steps(
    rows: Rows,
    views: list[View],
    batch_of: Callable[[int], Iterable[int]],
    steps: Sequence[int],
    renderer: Renderer,
) -> list[BatchRows]:
    """Of each of these steps with the one that follows."""
    chosen = {step: [views[k] for k in batch_of(step)] for k in steps for step in (k, k + 1)}
    seen = {step: cull(rows, cameras_of(of), renderer) for step, of in chosen.items()}
    return [_count(rows, chosen[k], seen[k], seen[k + 1], renderer) for k in steps]


def _tile_rows(
    rows: Rows,
    views: list[View],
    tiles: list[np.ndarray],
    batch_size: int,
    renderer: Renderer,
) -> tuple[float, int]:
    """Rows that the views of a whole tile see, and its batches, of some of the largest tiles."""
    tiles = sorted(tiles, key=len)[-_TILES:]
    n_views = max(len(tile) for tile in tiles)
    every = max(1, len(rows["means"]) * n_views // _MOST_TESTS)
    some = {name: values[::every].contiguous() for name, values in rows.items()}
    n_seen = 0
    for tile in tiles:
        is_seen = torch.zeros(len(some["means"]), dtype=torch.bool, device=renderer.device)
        for start in range(0, len(tile), _VIEWS):
            looking = cameras_of([views[k] for k in tile[start : start + _VIEWS]])
            is_seen[cull(some, looking, renderer).ids.long()] = True
        n_seen += int(is_seen.sum())
    of_all = len(rows["means"]) / len(some["means"])
    return of_all * n_seen / len(tiles), -(-n_views // batch_size)


def _count(
    rows: Rows,
    views: list[View],
    visible: gs_cull.Visibility,
    following: gs_cull.Visibility,
    renderer: Renderer,
) -> BatchRows:
    two = float(len(torch.cat([visible.ids, following.ids]).unique()))
    if not len(visible):
        return BatchRows(two=two)
    counts = visible.counts.cpu().numpy()
    ids, mask = visible.ids.cpu(), visible.mask.cpu()
    order = gs_order.order(mask, n_views=len(views), method="tsp")
    previous = gs_order.plan(ids, mask, order, retain="previous")
    last_use = gs_order.plan(ids, mask, order, retain="last_use", ahead=1)
    by_rows = [int(k) for k in counts.argsort() if counts[k]]
    looked_at = {by_rows[-1], by_rows[0], by_rows[len(by_rows) // 2]}
    return BatchRows(
        visible=float(counts.sum()),
        union=float(len(visible)),
        two=two,
        largest=float(counts.max()),
        loaded=float(previous.counts["load"].sum()),
        held=float(last_use.n_slots),
        intersections=float(max(_intersections(rows, views[k], renderer) for k in looked_at)),
    )


def _extreme(rows: Rows, views: list[View], renderer: Renderer) -> tuple[BatchRows, float]:
    """What the view that sees most of all does, with the intersections of that one or of the one
    that sees least, a close-up; and how many rows any view sees."""
    every = max(1, len(rows["means"]) * len(views) // _MOST_TESTS)
    some = {name: values[::every].contiguous() for name, values in rows.items()}
    is_seen = torch.zeros(len(some["means"]), dtype=torch.bool, device=renderer.device)
    of_views = []
    for start in range(0, len(views), _VIEWS):
        seen_here = cull(some, cameras_of(views[start : start + _VIEWS]), renderer)
        is_seen[seen_here.ids.long()] = True
        of_views.append(seen_here.counts.cpu())
    counts = torch.cat(of_views)
    seeing = counts.nonzero().flatten()
    if not len(seeing):
        return BatchRows(), 0.0
    seen_by_any = float(is_seen.sum()) * len(rows["means"]) / len(some["means"])
    # Counted again with all rows: the largest of many estimates is too large.
    by_rows = [int(k) for k in seeing[counts[seeing].argsort()]]
    first = by_rows[-_CANDIDATES:]
    seen = cull(rows, cameras_of([views[k] for k in first]), renderer).counts.cpu()
    largest = float(seen.max())
    looked_at = {first[int(seen.argmax())], by_rows[0]}
    intersections = max(_intersections(rows, views[k], renderer) for k in looked_at)
    # Batches that see more than those looked at, by a view like this, are the host's to update.
    most = BatchRows(visible=largest, largest=largest, intersections=float(intersections))
    return most, seen_by_any


@torch.no_grad()
def _intersections(rows: Rows, view: View, renderer: Renderer) -> int:
    """Tiles touched by all rows that the view sees, as the rasterizer counts them."""
    n = len(rows["means"])
    plain = rows["means"].new_zeros(n, 1, 3)
    splats = renderer.project({**rows, "sh0": plain, "shN": plain[:, :0]}, view, sh_degree=0)
    shows = (splats.radii > 0).all(-1)
    centre, radius = splats.means2d[shows], splats.radii[shows].float()
    last = centre.new_tensor((-(-view.width // _TILE), -(-view.height // _TILE)))
    low = torch.floor((centre - radius) / _TILE).clamp_min(0).minimum(last)
    high = torch.ceil((centre + radius) / _TILE).clamp_min(0).minimum(last)
    return int((high - low).prod(-1).sum())
