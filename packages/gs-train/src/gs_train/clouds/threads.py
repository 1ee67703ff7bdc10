# SPDX-License-Identifier: Apache-2.0
"""Numbered pieces of work on threads, their results taken in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_order(
    n: int, threads: int, work: Callable[[int], Result], take: Callable[[int, Result], None]
) -> None:
    """Call ``work(k)`` for k < n on threads, and ``take(k, result)`` in the order of k on this one.

    At most ``threads`` results wait. What either raises ends the work, once the calls that are
    under way have ended.
    """
    with ThreadPoolExecutor(threads) as pool:
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
