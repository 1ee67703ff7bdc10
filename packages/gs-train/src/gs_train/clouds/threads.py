# SPDX-License-Identifier: Apache-2.0
"""Pieces of a cloud, worked on by threads; their results are taken in order."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from gs_train.clouds.regions import Spill
from gs_train.data.point_ply import PlyPoints, PointCloud
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress

Result = TypeVar("Result")

_WHAT = "the start from points; nothing is left of it"


def in_order(
    n: int, threads: int, work: Callable[[int], Result], take: Callable[[int, Result], None]
) -> None:
    """Call ``work(k)`` for k < n on threads, and ``take(k, result)`` in the order of k on this one.

    At most ``threads`` results wait. What either raises ends the work, once the calls that are
    under way have ended. Of torch's own threads each has one meanwhile.
    """
    with _torch_on_one_thread(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for k in range(n + threads):
                if k < n:
                    waiting.append(pool.submit(work, k))
                if k >= threads:
                    take(k - threads, waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()


@contextlib.contextmanager
def _torch_on_one_thread() -> Iterator[None]:
    """Threads that begin now would each bring as many more as there are cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def over_pieces(
    points: PlyPoints,
    description: str,
    work: Callable[[PointCloud], Result],
    take: Callable[[Result], None],
    threads: int,
    stop: StopRequest,
) -> None:
    """Read all pieces of a file, work on each on a thread, and take the results in order.

    Raises:
        Interrupted: a stop was asked for.
        Others: what ``work`` and ``take`` raise.
    """
    with task_progress(f"{description}:", points.n_rows) as progress:

        def taken(k: int, result: Result) -> None:
            stop.check(_WHAT)
            take(result)
            progress.update(min((k + 1) * points.piece_rows, points.n_rows))

        # Lines of text are read one after the other.
        n_threads = 1 if points.is_text else threads
        in_order(points.n_pieces, n_threads, lambda k: work(points.read(k)), taken)


def over_regions(
    spill: Spill,
    description: str,
    work: Callable[[int], Result],
    take: Callable[[Result], None],
    threads: int,
    stop: StopRequest,
) -> None:
    """Work on all regions by their numbers, as `over_pieces` does on pieces."""
    done, sizes = 0, spill.sizes.tolist()  # as they are now
    with task_progress(f"{description}:", sum(sizes)) as progress:

        def taken(region: int, result: Result) -> None:
            nonlocal done
            stop.check(_WHAT)
            take(result)
            done += sizes[region]
            progress.update(done)

        in_order(len(sizes), threads, work, taken)
