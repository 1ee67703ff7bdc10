# SPDX-License-Identifier: Apache-2.0
"""Timing calls, the machine's limits, and the printed table."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import Record


def nothing() -> None:
    """Nothing to prepare."""


def timed(
    call: Callable[[], object], samples: int, before: Callable[[], object] = nothing
) -> list[float]:
    """Seconds of each call after a first one; ``before`` runs untimed ahead of it."""
    seconds = []
    for _ in range(samples + 1):
        before()
        # torch's idle threads spin for some milliseconds and would take the cores from this call.
        time.sleep(0.01)
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def limits(n_values: int) -> dict[str, float]:
    """GB/s of plain loops over as many values, counting what they must read and write."""
    a, b, c = (torch.ones(n_values) for _ in range(3))
    return {
        "triad": 12e-9 * n_values / min(timed(lambda: torch.add(b, c, alpha=2, out=a), 5)),
        "copy": 8e-9 * n_values / min(timed(lambda: a.copy_(b), 5)),
        "in place": 8e-9 * n_values / min(timed(lambda: a.mul_(1.0), 5)),
    }


def huge_gb() -> float:
    """How much of this process lies in large pages; 0 where the system does not say."""
    facts = Path("/proc/self/smaps_rollup")
    found = re.search(r"AnonHugePages:\s+(\d+)", facts.read_text() if facts.exists() else "")
    return int(found[1]) * 1024 / 1e9 if found else 0.0


class Report:
    """Rows of the printed table, and their samples.

    GB/s counts 28 bytes a value that is updated (read w, m, v and gradient; write w, m, v) and 16
    a value that is looked ahead: what memory must carry. "+ catch-up" counts 16 more a value that
    was caught up, as systems do that catch up in a pass of its own.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.results: list[dict[str, Any]] = []
        self.fused: float | None = None
        self.default: float | None = None
        print(
            f"{'case':50} {'best ms':>9} {'median':>9} {'GB/s':>7} {'limit':>6} {'+ catch-up':>10} "
            f"{'/ fused':>8} {'/ default':>9}"
        )

    def add(self, case: str, seconds: list[float], n_bytes: int, caught_up: int = 0) -> float:
        """Print and keep one case; the last columns are its time over those of torch's Adam."""
        best, median = min(seconds), float(np.median(seconds))
        rate, with_catch_up = n_bytes / best / 1e9, (n_bytes + caught_up) / best / 1e9

        def over(peer: float | None) -> str:
            return "" if peer is None else f"{best / peer:.3f}"

        print(
            f"{case:50} {best * 1e3:9.3f} {median * 1e3:9.3f} {rate:7.1f} {rate / self.limit:6.0%} "
            f"{f'{with_catch_up:.1f}' if caught_up else '':>10} {over(self.fused):>8} "
            f"{over(self.default):>9}",
            flush=True,
        )
        self.results.append(
            {
                "case": case,
                "seconds": seconds,
                "bytes": n_bytes,
                "caught_up_bytes": caught_up,
                "gb_per_second": rate,
                "share_of_limit": rate / self.limit,
                "over_torch_fused": best / self.fused if self.fused else None,
                "over_torch_default": best / self.default if self.default else None,
            }
        )
        return best

    def compare(self, peer: str, rate: float) -> None:
        """Print and keep the last case's GB/s over those of a peer measured at another time."""
        last = self.results[-1]
        times = last["gb_per_second"] / rate
        ratio = f"{times:.1f} x"
        print(f"{f'  beside {peer}':50} {'':9} {'':9} {rate:7.1f} {ratio:>6}", flush=True)
        last["beside"] = {"peer": peer, "gb_per_second": rate, "times": times}

    def add_to(self, record: Record, axes: dict[str, Any]) -> None:
        """Give all cases to the file of this run."""
        for result in self.results:
            facts = {name: fact for name, fact in result.items() if name not in ("case", "seconds")}
            record.add(result["case"], result["seconds"], "s", axes=axes, **facts)
