# SPDX-License-Identifier: Apache-2.0
"""Timing and one table: what the benchmarks of gs-order share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness import add_json_option


def samples_ms(
    call: Callable[[], Any], n: int, wait: Callable[[], Any] = lambda: None
) -> list[float]:
    """Milliseconds of n calls, after one that is not counted; ``wait`` ends a device's work."""
    call()
    wait()
    found = []
    for _ in range(n):
        started = time.perf_counter()
        call()
        wait()
        found.append(1e3 * (time.perf_counter() - started))
    return found


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned text; floats with three significant digits after the point."""
    cells = [list(columns)]
    for row in rows:
        values = (row.get(c, "") for c in columns)
        cells.append([f"{v:.3f}" if isinstance(v, float) else str(v) for v in values])
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells
    )


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_json_option(made)
    return made
