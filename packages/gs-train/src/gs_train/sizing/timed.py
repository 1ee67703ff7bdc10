# SPDX-License-Identifier: Apache-2.0
"""Seconds of calls, and rows that a measurement has memory for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from gs_pinned import available_bytes

# What is timed is far larger than any cache, where there is memory for it.
_TABLE_BYTES = {"cuda": 768 << 20, "cpu": 96 << 20}
_TABLE_SHARE = 1 / 8  # of the memory that is free, at most

# Calls follow one another for so long that waiting for the last does not count.
_SAMPLE_S, _SAMPLES_S, _LEAST_SAMPLES = 5e-3, 0.1, 3


def table_rows(device: torch.device, row_bytes: int) -> int:
    """Rows of a table that no cache holds, as far as memory is free for it."""
    free = min(free_bytes(device), available_bytes())
    return min(_TABLE_BYTES[device.type], int(free * _TABLE_SHARE)) // row_bytes


def free_bytes(device: torch.device) -> int:
    """Memory that tensors can have there."""
    if device.type != "cuda":
        return available_bytes()
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    # A cap on what torch takes may leave less than there is.
    left = int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved
    return max(0, min(free, left)) + reserved - torch.cuda.memory_allocated(device)


def seconds_of(
    work: Callable[[], object],
    device: torch.device,
    *,
    of_samples: Callable[[Sequence[float]], float] = min,
) -> float:
    """Seconds of a call among many that follow one another, after some that warm up.

    Args:
        of_samples: picks one of several samples: the shortest is the least disturbed one, and the
            median has the disturbances that there are.
    """

    def each_of(n_calls: int) -> float:
        _finish(device)
        start = time.perf_counter()
        for _ in range(n_calls):
            work()
        _finish(device)
        return max((time.perf_counter() - start) / n_calls, 1e-9)

    each_of(1)  # compiles, loads libraries, takes memory
    once = each_of(1)
    n_calls = math.ceil(_SAMPLE_S / once)
    n_samples = max(_LEAST_SAMPLES, int(_SAMPLES_S / (n_calls * once)))
    samples = [once] if n_calls == 1 else []
    samples += [each_of(n_calls) for _ in range(n_samples - len(samples))]
    return of_samples(samples)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def line(seconds: Callable[[int], float], few: int, most: int) -> tuple[float, float]:
    """What no row costs and what each does, from the seconds of two numbers of rows."""
    short, long = seconds(few), seconds(most)
    each = max(0.0, (long - short) / (most - few))
    return max(0.0, long - each * most), each
