# SPDX-License-Identifier: Apache-2.0
"""Timing, the table and the lines of JSON that the benchmarks of this folder share."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from harness import Record, add_json_option


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
    add_json_option(parser)
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


def show(results: Sequence[Result]) -> None:
    """Prints one table: GB/s, share of the limit measured in the same run, target."""
    rates = {result.name: result.rate for result in results}
    print(f"{'':48s} {'MB':>8s} {'ms':>9s} {'GB/s':>7s} {'of limit':>9s} {'target':>7s}")
    for result in results:
        share = ""
        if result.limit:  # of samples that took turns with the limit's, where there are such
            ratio = result.notes.get("share", result.rate / rates[result.limit])
            share = f"{100 * ratio:.0f} %"
        target = f"{result.target:g}" if result.target is not None else ""
        milliseconds = result.bytes / result.rate / 1e6
        print(
            f"{result.name:48s} {result.bytes / 1e6:8.1f} {milliseconds:9.3f} "
            f"{result.rate:7.1f} {share:>9s} {target:>7s}"
        )


def save(record: Record, results: Sequence[Result], **axes: Any) -> None:
    """Writes the lines of a table, each with the axes given."""
    for line in results:
        record.add(
            line.name, line.seconds, "s", axes=axes,
            bytes=line.bytes, limit=line.limit, target=line.target, **line.notes,
        )  # fmt: skip
    record.write()
