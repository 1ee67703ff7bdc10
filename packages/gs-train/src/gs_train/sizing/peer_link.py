# SPDX-License-Identifier: Apache-2.0
"""How fast two GPUs of this machine send to each other: measured."""

from __future__ import annotations

import time

import torch

_BYTES = 128 << 20
_REPEATS = 4


def measure_between_gpus() -> float | None:
    """Bytes a second that the first two GPUs send each other at once, each way; None without two
    GPUs, or where one of the two cannot be used or has no memory free.

    Copies are torch's, not NCCL's, whose kernels share the device with rendering.

    Cost: 256 MiB on each of the two, which are given back, and some milliseconds.
    """
    if torch.cuda.device_count() < 2:
        return None
    try:
        pairs = [_pair(sender, 1 - sender) for sender in range(2)]
        seconds = min(_copied(pairs) for _ in range(1 + _REPEATS))  # the first one opens the way
    except RuntimeError:
        return None
    del pairs
    torch.cuda.empty_cache()
    return _BYTES / seconds


def _pair(sender: int, receiver: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What is sent, and where to."""
    sent = torch.zeros(_BYTES, dtype=torch.uint8, device=f"cuda:{sender}")
    return sent, torch.empty(_BYTES, dtype=torch.uint8, device=f"cuda:{receiver}")


def _copied(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Seconds of all copies at once."""
    _wait()
    started = time.perf_counter()
    for sent, received in pairs:
        received.copy_(sent, non_blocking=True)
    _wait()
    return time.perf_counter() - started


def _wait() -> None:
    for device in range(2):
        torch.cuda.synchronize(device)
