# SPDX-License-Identifier: Apache-2.0
"""Timing and one table: what the benchmarks of gs-cull share."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness import add_json_option


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark here has."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--samples", type=int, default=10)
    add_json_option(made)
    return made


def samples_ms(call: Callable[[], Any], n: int, device: str) -> list[float]:
    """Wall-clock milliseconds of n calls, the device's work included, after two not counted."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    found = []
    for i in range(n + 2):
        wait()
        started = time.perf_counter()
        call()
        wait()
        if i >= 2:
            found.append(1e3 * (time.perf_counter() - started))
    return found


def typical(samples: Sequence[float], device: str) -> float:
    """The median; on the CPU, where other programs disturb, the least."""
    return min(samples) if device == "cpu" else statistics.median(samples)


def copy_rate(device: str) -> float:
    """Bytes per millisecond that a copy reads and writes: the measured limit of memory."""
    source = torch.zeros(2**28 if device == "cpu" else 2**31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / min(samples_ms(lambda: target.copy_(source), 5, device))


def peak_bytes(call: Callable[[], Any], device: str) -> int | None:
    """Device memory that a call takes beyond what is allocated, its result included."""
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned text."""
    cells = [list(columns)]
    for row in rows:
        values = ("" if row.get(c) is None else row[c] for c in columns)
        cells.append([f"{v:.4g}" if isinstance(v, float) else str(v) for v in values])
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells
    )
