# SPDX-License-Identifier: Apache-2.0
"""The cost of an order: time on the link, and optimizer work left after the last microbatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from gs_order.arrays import to_numpy
from gs_order.checks import real
from gs_order.local_search import random_below
from gs_order.search import Matrix, random_state_of


@dataclass(frozen=True)
class Cost:
    """One batch under a `CostModel`.

    Attributes:
        load_bytes, store_bytes: over the link, to and from the device.
        link_s: seconds that the link is busy with these bytes.
        tail_s: optimizer work left when the last microbatch ends.
        total_s: ``link_s`` + ``tail_s``.
    """

    load_bytes: int
    store_bytes: int
    link_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        return self.link_s + self.tail_s


@dataclass(frozen=True)
class CostModel:
    """A link that moves rows, and an optimizer that updates them as they finish.

    The cost of a batch is the time of its bytes on the link plus the optimizer work left after the
    last microbatch. Microbatch i = 1 .. B ends at i * ``render_s``; then the F_i rows that finish
    with microbatch i join the optimizer's queue. So the work left at the end is

        max over i of  (F_i + ... + F_B) / optimizer_rows_per_s - (B - i) * render_s

    that is F_B rows where the optimizer keeps up, and more where the optimizer lags. Two extremes
    are known orders: with an infinitely fast optimizer only bytes count (the shortest path), with
    an infinitely fast link only the work at the end counts (most visible first, where the optimizer
    keeps up).

    Attributes:
        row_bytes: bytes of one row in one direction; by default 48 float32 appearance values.
        link_bytes_per_s: rate of loads and stores together; by default a PCIe 5 x16 link.
        optimizer_rows_per_s: rows that the host updates; by default sixteen cores.
        render_s: seconds of one microbatch, forward and backward; by default a 1080p view on a
            large card.
    """

    row_bytes: int = 192
    link_bytes_per_s: float = 55e9
    optimizer_rows_per_s: float = 75e6
    render_s: float = 4e-3

    def __post_init__(self) -> None:
        for name in ("row_bytes", "link_bytes_per_s", "optimizer_rows_per_s"):
            if not real(name, getattr(self, name)) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= real("render_s", self.render_s) < float("inf"):
            raise ValueError(f"render_s must be finite and at least 0, got {self.render_s}")

    @property
    def link_s_per_row(self) -> float:
        """Seconds that one row takes one way."""
        return self.row_bytes / self.link_bytes_per_s

    @property
    def optimizer_s_per_row(self) -> float:
        """Seconds that the update of one row takes."""
        return 1.0 / self.optimizer_rows_per_s

    def cost(self, loaded: Any, stored: Any, finished: Any) -> Cost:
        """Cost of a batch from the rows of each microbatch, in running order.

        Args:
            loaded, stored, finished: (B,) counts of rows, as in `Plan.counts`.

        Raises:
            ValueError: counts of different lengths, or none.
        """
        given = {"loaded": loaded, "stored": stored, "finished": finished}
        load, store, final = (to_numpy(c, name).astype(np.float64) for name, c in given.items())
        if not (load.shape == store.shape == final.shape) or load.ndim != 1 or len(load) == 0:
            raise ValueError(
                "loaded, stored and finished must be (B,) with the same B >= 1, got shapes "
                f"{load.shape}, {store.shape}, {final.shape}"
            )
        queued = np.cumsum(final[::-1]) * self.optimizer_s_per_row
        return Cost(
            load_bytes=int(load.sum()) * self.row_bytes,
            store_bytes=int(store.sum()) * self.row_bytes,
            link_s=float((load + store).sum()) * self.link_s_per_row,
            tail_s=max(0.0, float(np.max(queued - np.arange(len(final)) * self.render_s))),
        )


@dataclass(frozen=True)
class Batch:
    """A batch as the search reads it to cost an order.

    Attributes:
        shared: (B, B) int64 sizes of intersections.
        row_offsets, row_views: views of each sampled row, one row after the other.
        rows_per_sample: rows that a sampled row stands for. Without samples the optimizer is taken
            to keep up, so that only the last microbatch's rows are left.
    """

    shared: Matrix
    row_offsets: Matrix
    row_views: Matrix
    rows_per_sample: float


def sampled_batch(shared: Matrix, words: Matrix, n_rows: int) -> Batch:
    """A `Batch` of the intersections of all ``n_rows`` rows and the masks (M, W) of some."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    rows, views = np.nonzero(bits)
    offsets = np.searchsorted(rows, np.arange(len(words) + 1))
    return Batch(shared, offsets, views.astype(np.int64), n_rows / max(1, len(words)))


def batch_cost(batch: Batch, order: Matrix, model: CostModel) -> float:
    """`Cost.total_s` of an order if consecutive microbatches retain the rows that both share."""
    return float(_total_s(order, *_arguments(batch, model)))


def improve_order(
    batch: Batch, order: Matrix, model: CostModel, *, fixed: int, n_trials: int, seed: int
) -> Matrix:
    """Try random reversals, moves and exchanges; keep every change that costs less.

    Args:
        order: (B,) to start from; the result never costs more.
        fixed: leading views that stay where they are.
        n_trials: orders looked at.
    """
    return _improve(order, fixed, n_trials, random_state_of(seed), *_arguments(batch, model))


def _arguments(batch: Batch, model: CostModel) -> tuple[Any, ...]:
    return (
        batch.shared,
        batch.row_offsets,
        batch.row_views,
        batch.rows_per_sample,
        model.link_s_per_row,
        model.optimizer_s_per_row,
        float(model.render_s),
    )


@njit(cache=True, nogil=True)
def _total_s(  # type: ignore[no-untyped-def]
    order, shared, row_offsets, row_views, rows_per_sample, link_s, optimizer_s, render_s
):
    n = len(order)
    at = np.empty(n, np.int64)
    for i in range(n):
        at[order[i]] = i
    finished = np.zeros(n)
    for row in range(len(row_offsets) - 1):
        last = -1
        for k in range(row_offsets[row], row_offsets[row + 1]):
            last = max(last, at[row_views[k]])
        if last >= 0:
            finished[last] += rows_per_sample
    view = order[n - 1]
    finished[n - 1] = shared[view, view]  # known exactly: all that the last one sees
    moved = 0.0
    queued = 0.0
    tail = 0.0
    for i in range(n - 1, -1, -1):
        view = order[i]
        moved += 2.0 * shared[view, view]
        if i > 0:
            moved -= 2.0 * shared[view, order[i - 1]]
        queued += finished[i]
        tail = max(tail, queued * optimizer_s - (n - 1 - i) * render_s)
    return moved * link_s + tail


@njit(cache=True, nogil=True)
def _improve(  # type: ignore[no-untyped-def]
    order,
    fixed,
    n_trials,
    random_state,
    shared,
    row_offsets,
    row_views,
    rows_per_sample,
    link_s,
    optimizer_s,
    render_s,
):
    best = order.copy()
    best_s = _total_s(
        best, shared, row_offsets, row_views, rows_per_sample, link_s, optimizer_s, render_s
    )
    n = len(order) - fixed
    if n < 2:
        return best
    trial = best.copy()
    for _ in range(n_trials):
        i = fixed + random_below(random_state, n)
        j = fixed + random_below(random_state, n)
        kind = random_below(random_state, 3)
        trial[:] = best
        if kind == 0:
            low, high = min(i, j), max(i, j)
            trial[low : high + 1] = best[low : high + 1][::-1]
        elif kind == 1:
            trial[i], trial[j] = best[j], best[i]
        else:
            step = 1 if i < j else -1
            for k in range(i, j, step):
                trial[k] = best[k + step]
            trial[j] = best[i]
        trial_s = _total_s(
            trial, shared, row_offsets, row_views, rows_per_sample, link_s, optimizer_s, render_s
        )
        if trial_s < best_s:
            best_s = trial_s
            best[:] = trial
    return best
