# SPDX-License-Identifier: Apache-2.0
"""Timing calls that queue work on a CUDA device, and the device's limit."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

# Clock cycles for which the device is held at first, so that the host has queued a call before it
# begins.
HELD = 4_000_000


def nothing() -> None:
    """Nothing to prepare."""


def timed(
    call: Callable[[], object], samples: int, prepare: Callable[[], object] = nothing
) -> list[float]:
    """Seconds of each call on the device alone, by CUDA events, after a warm-up."""
    for _ in range(3):
        prepare()
        call()
    seconds: list[float] = []
    held = HELD
    while len(seconds) < samples:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        prepare()
        torch.cuda._sleep(held)
        begin.record()
        call()
        end.record()
        was_held = not begin.query()
        end.synchronize()
        if was_held:
            seconds.append(begin.elapsed_time(end) / 1e3)
        else:  # a busy host took longer: such a sample has its waiting in it
            held *= 2
    return seconds


def host_time(call: Callable[[], object], samples: int) -> float:
    """Seconds until a call returns, its work queued on a device that is busy; the median."""
    seconds = []
    for _ in range(samples):
        torch.cuda._sleep(HELD)
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return float(np.median(seconds))


def copy_bandwidth(n_values: int, samples: int) -> float:
    """GB/s of a copy, counted as 8 bytes a value: the limit."""
    source = torch.ones(n_values, device="cuda")
    target = torch.empty_like(source)
    return 8 * n_values / min(timed(lambda: target.copy_(source), samples)) / 1e9
