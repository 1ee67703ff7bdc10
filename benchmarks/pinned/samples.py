# SPDX-License-Identifier: Apache-2.0
"""Timing, the table and the JSON that the benchmarks of this folder share."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import gs_pinned


@dataclass
class Result:
    """One line of the table: what moved, how fast, and what that is measured against."""

    name: str
    bytes: int
    seconds: list[float]
    limit: str = ""  # the name of the result that this one can at best equal
    target: float | None = None  # GB/s
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """GB/s of the median sample; on the CPU, where other programs disturb, of the fastest."""
        pick = statistics.median if torch.cuda.is_available() else min
        return self.bytes / pick(self.seconds) / 1e9


def arguments_of(question: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark here takes."""
    parser = argparse.ArgumentParser(
        description=question, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=None, help="where raw samples go")
    return parser


def host_seconds(work: Callable[[], object], repeats: int, warm_up: int = 2) -> list[float]:
    """Wall-clock seconds of each run; work returns when it is done."""
    for _ in range(warm_up):
        work()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return samples


def stream_seconds(
    work: Callable[[], object], stream: torch.cuda.Stream, repeats: int, warm_up: int = 2
) -> list[float]:
    """Seconds that each run takes on a stream, between two events of it."""
    samples = []
    for run in range(warm_up + repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        if run >= warm_up:
            samples.append(begin.elapsed_time(end) / 1e3)
    return samples


def machine() -> dict[str, Any]:
    """What the numbers were measured on and with."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "device": device,
        "torch": torch.__version__,
        "gs_pinned": gs_pinned.build_info(),
    }


def show(results: Sequence[Result]) -> None:
    """Prints one table: GB/s, share of the limit measured in the same run, target."""
    rates = {result.name: result.rate for result in results}
    print(f"{'':48s} {'MB':>8s} {'ms':>9s} {'GB/s':>7s} {'of limit':>9s} {'target':>7s}")
    for result in results:
        share = f"{100 * result.rate / rates[result.limit]:.0f} %" if result.limit else ""
        target = f"{result.target:g}" if result.target is not None else ""
        milliseconds = result.bytes / result.rate / 1e6
        print(
            f"{result.name:48s} {result.bytes / 1e6:8.1f} {milliseconds:9.3f} "
            f"{result.rate:7.1f} {share:>9s} {target:>7s}"
        )


def save(path: Path | None, results: Sequence[Result], **facts: Any) -> None:
    """Writes raw samples, facts of the machine and what else is given as JSON."""
    if path is None:
        return
    lines = [asdict(result) | {"gigabytes_per_second": result.rate} for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "results": lines, **facts}, indent=1))
