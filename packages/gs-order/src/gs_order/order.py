# SPDX-License-Identifier: Apache-2.0
"""The order of the views of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_order.arrays import Array, is_torch, to_numpy
from gs_order.cameras import centres_and_directions
from gs_order.checks import integer, real, shown, whole_number, word
from gs_order.cost import CostModel, batch_cost, improve_order, sampled_batch
from gs_order.counter_random import Purpose, random_permutation
from gs_order.overlap import shared_and_sample, xor_from_and
from gs_order.search import Matrix, shortest_path

METHODS = ("tsp", "camera", "count", "random", "given")
OBJECTIVES = ("bytes", "bytes+tail")

_N_SAMPLE = 1024
_N_TRIALS = 128


def order(
    mask: Array | None = None,
    *,
    n_views: int | None = None,
    distance: Array | None = None,
    counts: Array | None = None,
    cameras: Array | None = None,
    method: str = "tsp",
    objective: str | CostModel = "bytes",
    max_iterations: int | None = None,
    time_limit_s: float | None = None,
    start: int | None = None,
    seed: int = 0,
) -> Array:
    """Choose the order of the views of a batch.

    Methods:
        ``"tsp"``: the open path with the least change between consecutive views. Exact up to 12
            views, within about 1 % of the best known beyond. Needs ``mask`` or ``distance``.
        ``"camera"``: along the principal axis of the camera centres. Needs ``cameras``.
        ``"count"``: most visible rows first. Needs ``counts`` or ``mask``.
        ``"random"``: a permutation keyed by ``seed``.
        ``"given"``: 0, 1, 2, ...

    Objectives of ``"tsp"``:
        ``"bytes"``: the sum of distances between consecutive views: rows that move when each
            microbatch keeps the rows that it shares with the next.
        ``"bytes+tail"``: seconds of these rows on the link, the first load and the last store
            included, plus seconds of optimizer work left after the last microbatch, by `CostModel`;
            a `CostModel` of your own rates may replace the word. The search starts from the
            cheapest of four orders (the shortest path, its reverse, the path that counts its ends
            too, most visible first) and never returns a costlier order. Needs sizes: ``mask``, or
            ``distance`` and ``counts``. At most 1024 evenly spaced rows of ``mask`` tell when rows
            finish (exact up to so many rows); without a mask the optimizer is taken to keep up.

    Args:
        mask: (U, W) uint32 numpy or int32 torch on any device, a row per id that some view sees;
            view b is bit b % 32, least significant first, of word b // 32.
        n_views: B. None: the length of ``counts``, ``distance`` or ``cameras``, else the highest
            set bit + 1.
        distance: (B, B) symmetric, e.g. `xor_counts`; computed from ``mask`` when None.
        counts: (B,) rows each view sees.
        cameras: (B, 4, 4) world-to-camera matrices or (B, 3) centres.
        method, objective: as above.
        max_iterations: kicks of the search. None: about 1 ms up to 64 views, rising to about
            50 ms at 512.
        time_limit_s: stops the search early; the result then depends on the clock.
        start: view to run first. ``"given"`` ignores ``start``; ``"camera"``, ``"count"`` and
            ``"random"`` move the view to the front.
        seed: any integer.

    Returns:
        (B,) int64 permutation: numpy, or a tensor on the CPU (where microbatches are launched) when
        the first array given is a tensor. The same arguments give the same order on any machine,
        unless ``time_limit_s`` is set.

    Raises:
        ValueError: no view, arrays of different B, a mask of another width or with bits beyond B,
            distances that are not square, symmetric, finite and >= 0, an unknown word, a number
            out of its range, or a missing array that the method needs.
        TypeError: a mask that is not of 32-bit words.

    Asynchrony: a mask on a device is counted there, with one synchronisation. Arrays on the CPU
        are used as they are.

    >>> order(distance=[[0, 9, 1], [9, 0, 2], [1, 2, 0]], start=0)
    array([0, 2, 1])
    """
    _check_words(method, objective)
    if max_iterations is not None:
        max_iterations = whole_number("max_iterations", max_iterations)
    if time_limit_s is not None:
        time_limit_s = real("time_limit_s", time_limit_s)
        if not time_limit_s > 0:
            raise ValueError(f"time_limit_s must be above 0, got {time_limit_s}")
    seed = integer("seed", seed)
    n_views = None if n_views is None else whole_number("n_views", n_views, least=1)
    start = None if start is None else integer("start", start)
    arrays = [a for a in (mask, distance, counts, cameras) if a is not None]
    d = None if distance is None else _checked_distance(distance)
    sizes = None if counts is None else _checked_counts(counts)
    centres = None if cameras is None else centres_and_directions(cameras)[0]
    n_views = _common_length(n_views, counts=sizes, distance=d, cameras=centres)
    shared = sample = None
    if mask is not None:
        pairs = method == "tsp"
        n_sample = _N_SAMPLE if pairs and objective != "bytes" else 0
        shared, sample = shared_and_sample(mask, n_views, n_sample, pairs=pairs)
        n_views = len(shared)
        sizes = np.diagonal(shared) if sizes is None else sizes
    if n_views is None:
        raise ValueError(
            "n_views must be given without mask, distance, counts or cameras, got None"
        )
    if start is not None and not 0 <= start < n_views:
        raise ValueError(f"start must be a view in [0, {n_views}), got {start}")

    if method == "given":
        views = np.arange(n_views)
    elif method == "random":
        views = _start_first(random_permutation(n_views, seed % 2**64, Purpose.ORDER, 0), start)
    elif method == "count":
        views = _start_first(_most_visible_first(_needed(sizes, "counts or mask", method)), start)
    elif method == "camera":
        views = _start_first(_along_axis(_needed(centres, "cameras", method), start), start)
    else:
        if d is None and shared is not None:
            d = xor_from_and(shared).astype(np.float64)
        d = _needed(d, "mask or distance", method)
        limits = {"max_iterations": max_iterations, "time_limit_s": time_limit_s, "seed": seed}
        if objective == "bytes":
            views = _path(d, start, limits)
        else:
            model = objective if isinstance(objective, CostModel) else CostModel()
            sizes = _needed(sizes, "counts or mask", "bytes+tail")
            if shared is None:
                shared = (sizes[:, None] + sizes[None, :] - d) / 2
            words = np.zeros((0, 1), np.uint32) if sample is None else sample
            n_rows = 0 if mask is None else mask.shape[0]
            views = _least_cost(shared, words, n_rows, d, sizes, model, start, limits)
    if arrays and is_torch(arrays[0]):
        import torch

        return torch.from_numpy(views)
    return views


def _path(
    d: Matrix,
    start: int | None,
    limits: Any,
    first: Matrix | None = None,
    last: Matrix | None = None,
) -> Matrix:
    if start is not None:
        first = np.full(len(d), np.inf)
        first[start] = 0.0
    initial = _start_first(np.arange(len(d)), start)
    return shortest_path(d, first_cost=first, last_cost=last, initial=initial, **limits)


def _least_cost(
    shared: Matrix,
    words: Matrix,
    n_rows: int,
    d: Matrix,
    sizes: Matrix,
    model: CostModel,
    start: int | None,
    limits: Any,
) -> Matrix:
    batch = sampled_batch(shared.astype(np.float64), words, n_rows)
    path = _path(d, start, limits)
    ends = np.asarray(sizes, np.float64)
    moving, updating = model.link_s_per_row, model.optimizer_s_per_row
    # An update in rows that the link moves meanwhile; an infinitely fast one has no such measure.
    after = ends * (1.0 + updating / moving) if moving else ends
    candidates = [
        path,
        _start_first(path[::-1], start),
        _start_first(_most_visible_first(sizes), start),
        _path(d, start, limits, ends, after),
    ]
    cheapest = min(candidates, key=lambda views: batch_cost(batch, views, model))
    return improve_order(
        batch,
        cheapest,
        model,
        fixed=0 if start is None else 1,
        n_trials=_N_TRIALS if limits["max_iterations"] is None else limits["max_iterations"],
        seed=limits["seed"],
    )


def _most_visible_first(sizes: Matrix) -> Matrix:
    return np.argsort(-np.asarray(sizes, np.float64), kind="stable").astype(np.int64)


def _along_axis(centres: Matrix, start: int | None) -> Matrix:
    """Views along the centres' principal axis, from the end nearer to ``start``."""
    centred = centres - centres.mean(axis=0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    along = centred @ (axis * np.sign(axis[np.argmax(np.abs(axis))]))
    views = np.argsort(along, kind="stable").astype(np.int64)
    if start is not None and 2 * int(np.flatnonzero(views == start)[0]) > len(views) - 1:
        views = views[::-1].copy()
    return views


def _start_first(views: Matrix, start: int | None) -> Matrix:
    if start is None:
        return np.ascontiguousarray(views)
    return np.concatenate([[start], views[views != start]])


def _needed(value: Any, what: str, method: str) -> Any:
    if value is None:
        raise ValueError(f"{what} must be given for {method!r}, got None")
    return value


def _check_words(method: str, objective: str | CostModel) -> None:
    word("method", method, METHODS)
    if not isinstance(objective, CostModel) and not (
        isinstance(objective, str) and objective in OBJECTIVES
    ):
        raise ValueError(
            f"objective must be one of {', '.join(OBJECTIVES)} or a CostModel, got "
            f"{shown(objective)}"
        )


def _common_length(n_views: int | None, **arrays: Matrix | None) -> int | None:
    for name, array in arrays.items():
        if array is None:
            continue
        if n_views is None:
            n_views = len(array)
        if len(array) != n_views:
            raise ValueError(f"{name} must be of {n_views} views, got {len(array)}")
    if n_views is not None and n_views < 1:
        raise ValueError(f"n_views must be at least 1, got {n_views}")
    return n_views


def _checked_distance(distance: Array) -> Matrix:
    d = to_numpy(distance, "distance").astype(np.float64)
    if d.ndim != 2 or d.shape[0] != d.shape[1]:
        raise ValueError(f"distance must be square, got shape {d.shape}")
    for good, rule in (
        (np.isfinite(d), "finite"),
        (d >= 0, "at least 0"),
        (d == d.T, "symmetric"),
    ):
        if not good.all():
            a, b = (int(i) for i in np.argwhere(~good)[0])
            raise ValueError(f"distance must be {rule}, got {d[a, b]} from view {a} to view {b}")
    return d


def _checked_counts(counts: Array) -> Matrix:
    c = to_numpy(counts, "counts")
    if c.ndim != 1:
        raise ValueError(f"counts must be (B,), got shape {c.shape}")
    if not np.isfinite(c).all() or (c < 0).any():
        raise ValueError(f"counts must be finite and at least 0, got {c.tolist()}")
    return c.astype(np.float64)
