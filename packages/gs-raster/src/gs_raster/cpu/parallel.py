# SPDX-License-Identifier: Apache-2.0
"""Runs a compiled kernel over a range of items on several threads.

The kernels release the GIL and every item writes only what is its own, so Python threads are all
that is needed. numba's own threading layers are not used: the bundled ones either abort when two
threads of the process start parallel work at once (workqueue) or abort in a forked child (GNU
OpenMP), and a trainer does both. ``NUMBA_THREADING_LAYER`` and ``NUMBA_NUM_THREADS`` therefore have
no effect here.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

# More chunks than threads, so that a thread with cheap items takes over some of the expensive ones.
CHUNKS_PER_THREAD = 8


def for_each_range(
    kernel: Callable[..., None], n_items: int, *args: Any, n_threads: int | None = None
) -> None:
    """Call ``kernel(begin, end, *args)`` on ranges that partition ``[0, n_items)``.

    Args:
        kernel: writes nothing that two different items share.
        n_items: 0 or more.
        args: passed on unchanged.
        n_threads: at most this many threads, at least 1; None: as many as this process has
            processors.

    Asynchrony: returns, or raises what a kernel raised, after the last kernel has returned.
    Cost: about 0.1 ms to wake the threads. Thread-safe; safe in a forked child.
    """
    if n_threads is None:
        n_threads = len(os.sched_getaffinity(0))
    n_threads = min(n_threads, n_items)
    if n_threads <= 1:
        if n_items:
            kernel(0, n_items, *args)
        return
    n_chunks = min(n_items, n_threads * CHUNKS_PER_THREAD)
    chunks = deque(
        (n_items * i // n_chunks, n_items * (i + 1) // n_chunks) for i in range(n_chunks)
    )

    def drain() -> None:
        while True:
            try:
                begin, end = chunks.popleft()
            except IndexError:
                return
            kernel(begin, end, *args)

    helpers = [_pool(os.getpid()).submit(drain) for _ in range(n_threads - 1)]
    try:
        drain()
    finally:
        wait(helpers)
    for helper in helpers:
        helper.result()


@functools.cache
def _pool(pid: int) -> ThreadPoolExecutor:
    # Keyed by process: the threads of a pool do not exist in a forked child.
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=f"gs-raster-cpu-{pid}")
