# SPDX-License-Identifier: Apache-2.0
"""How long does it take to know what a batch of 64 views moves, when 5 million rows are seen?

Decides whether a batch can be planned while the one before it renders. The ceiling is the memory
that must be touched: masks read, lists written; its share is reported against a copy of as many
bytes. Runs numpy on the CPU, and torch on CUDA where there is one; both plans are compared first.

    python benchmarks/order/bench_plan.py --json plan.json
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flights import aerial
from report import parser, samples_ms, table, write_json

from gs_order import and_counts, order, plan

COLUMNS = ("device", "call", "min_ms", "median_ms", "copy_ms", "list_MB")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, default=5_000_000, help="of the union")
    arguments.add_argument("--views", type=int, default=64)
    arguments.add_argument("--samples", type=int, default=10)
    options = arguments.parse_args()
    probe = aerial(options.views, 2_000)
    share = len(probe.batch(np.arange(options.views))[0]) / 2_000
    flight = aerial(options.views, int(options.rows / share))
    ids, mask = flight.batch(np.random.default_rng(0).permutation(options.views))
    views = order(mask, n_views=options.views)
    peak = plan(ids, mask, views, retain="last_use").n_slots
    kinds: dict[str, Any] = {"previous": "previous", "last_use": "last_use"}
    kinds["0.9 of its peak"] = int(0.9 * peak)
    rows, raw = [], []
    for device, arrays, wait in places(ids, mask):
        for name, retain in kinds.items():
            calls = lambda: plan(*arrays, views, retain=retain)  # noqa: E731, B023
            made = calls()
            check(made, plan(ids, mask, views, retain=retain))
            lists = [made.visible, *made.positions.values()]
            if made.slots is not None:
                lists.append(made.slots)
            n_bytes = sum(int(a.values.nbytes) for a in lists)
            times = samples_ms(calls, options.samples, wait)
            copy = copy_ms(arrays[0], n_bytes, wait)
            rows.append(row(device, f"plan, {name}", times, copy, n_bytes))
            raw.append({"device": device, "retain": name, "samples_ms": times})
        times = samples_ms(lambda: and_counts(arrays[1], n_views=options.views), 5, wait)  # noqa: B023
        rows.append(row(device, "and_counts", times, copy_ms(arrays[0], mask.nbytes, wait), 0))
        raw.append({"device": device, "call": "and_counts", "samples_ms": times})
    print(f"{len(ids)} rows, {options.views} views, {mask_bits(mask)} visible in all, peak {peak}")
    print(table(rows, COLUMNS))
    write_json(options.json, {"rows": rows, "raw": raw})


def places(ids: Any, mask: Any) -> list[tuple[str, tuple[Any, Any], Any]]:
    found: list[tuple[str, tuple[Any, Any], Any]] = [("cpu", (ids, mask), lambda: None)]
    try:
        import torch
    except ImportError:
        return found
    if torch.cuda.is_available():
        on_device = (torch.from_numpy(ids).cuda(), torch.from_numpy(mask.view(np.int32)).cuda())
        found.append((torch.cuda.get_device_name(), on_device, torch.cuda.synchronize))
    return found


def check(made: Any, wanted: Any) -> None:
    for kind, positions in wanted.positions.items():
        found = made.positions[kind].values
        found = found if isinstance(found, np.ndarray) else found.cpu().numpy()
        assert (found == positions.values).all(), kind


def row(device: str, call: str, times: list[float], copy: float, n_bytes: int) -> dict[str, Any]:
    return {
        "device": device,
        "call": call,
        "min_ms": min(times),
        "median_ms": float(np.median(times)),
        "copy_ms": copy,
        "list_MB": n_bytes / 1e6,
    }


def copy_ms(like: Any, n_bytes: int, wait: Any) -> float:
    """Time to copy so many bytes on the device, into fresh memory as the plan does."""
    if isinstance(like, np.ndarray):
        source = np.ones(n_bytes, np.uint8)
        return min(samples_ms(source.copy, 3))
    import torch

    on_device = torch.ones(n_bytes, dtype=torch.uint8, device=like.device)
    return min(samples_ms(on_device.clone, 3, wait))


def mask_bits(mask: Any) -> int:
    return int(np.unpackbits(mask.view(np.uint8)).sum())


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
