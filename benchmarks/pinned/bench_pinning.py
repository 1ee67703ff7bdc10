# SPDX-License-Identifier: Apache-2.0
"""How fast is page-locked memory made, and is it the size that was asked for?

Decides whether a trainer may allocate its tables at start-up. The ceiling is zeroing memory by all
threads, then cudaHostRegister (10 GB/s on the GPU machine); the peer is torch's pin_memory, which
rounds sizes up to powers of two.

    PYTHONPATH=benchmarks python benchmarks/pinned/bench_pinning.py --json pinning.json
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import torch
from samples import Result, arguments_of, save, show

from gs_pinned import Table
from harness import Record

WIDTH = 48


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    parser = arguments_of(__doc__)
    has_device = torch.cuda.is_available()
    parser.add_argument("--bytes", type=int, default=(16 << 30) if has_device else (1 << 30))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    rows = arguments.bytes // (WIDTH * 4)
    asked = rows * WIDTH * 4

    Table(1, WIDTH).close()  # the device's context is made here
    made: list[float] = []
    closed: list[float] = []
    resident = 0
    for _ in range(arguments.repeats):
        before, start = resident_bytes(), time.perf_counter()
        table = Table(rows, WIDTH)
        made.append(time.perf_counter() - start)
        resident = resident_bytes() - before
        assert not has_device or table.is_pinned
        start = time.perf_counter()
        table.close()
        del table
        closed.append(time.perf_counter() - start)
    grown: list[float] = []
    block = torch.ones(rows // 16, WIDTH)
    for _ in range(arguments.repeats):
        with Table(0, WIDTH) as table:
            start = time.perf_counter()
            for _ in range(16):
                table.append(block)
            grown.append(time.perf_counter() - start)
    del block
    gc.collect()
    results = [
        Result("Table made", asked, made, target=6.0 if has_device else None),
        Result("Table grown in 16 steps, rows copied in", rows // 16 * 16 * WIDTH * 4, grown),
        Result("Table closed", asked, closed),
    ]
    facts = {"asked_bytes": asked, "resident_bytes": resident}
    print(f"resident {resident / asked:.4f} of what was asked (target: within 0.01 of 1)")
    if has_device:
        start, before = time.perf_counter(), resident_bytes()
        tensor = torch.empty(asked + (1 << 20), dtype=torch.uint8, pin_memory=True)
        results.append(Result("torch pin_memory", asked, [time.perf_counter() - start]))
        facts["torch_resident_bytes"] = resident_bytes() - before
        print(
            f"torch's is {facts['torch_resident_bytes'] / asked:.2f} of it (1 MiB more was asked)"
        )
        del tensor
    show(results)
    record.facts |= facts
    save(record, results, bytes=asked)


if __name__ == "__main__":
    main()
