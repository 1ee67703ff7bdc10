# SPDX-License-Identifier: Apache-2.0
"""How long does it take to know what a batch of 64 views moves, when 5 million rows are seen?

Decides whether a batch can be planned while the one before it renders. The ceiling is the memory
that must be touched: masks read, lists written; its share is reported against a copy of as many
bytes. Rows are the synthetic city's in Morton order, about as many as asked for. Runs numpy on the
CPU, and torch on CUDA where there is one; all plans are compared first. Device times end with a
synchronisation.

    PYTHONPATH=benchmarks python benchmarks/order/bench_plan.py --json plan.json
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from report import parser, samples_ms, table
from scenes import city_scene

from gs_order import and_counts, order, plan
from harness import Record

ROWS_PER_UNION = 4.28
"""Gaussians of a city of which 64 views, 2 % each, see one together."""

COLUMNS = ("device", "call", "min_ms", "median_ms", "copy_ms", "list_MB")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rows", type=int, default=5_000_000, help="of the union")
    arguments.add_argument("--views", type=int, default=64)
    arguments.add_argument("--samples", type=int, default=10)
    options = arguments.parse_args()
    record = Record(options.json)
    scene = city_scene(int(ROWS_PER_UNION * options.rows), options.views, 0.02)
    ids, mask = scene.batch(np.random.default_rng(0).permutation(options.views))
    views = order(mask, n_views=options.views)
    peak = plan(ids, mask, views, retain="last_use").n_slots
    kinds: dict[str, Any] = {"previous": "previous", "last_use": "last_use"}
    kinds["capacity, its peak"] = peak
    kinds["capacity, 0.7 of its peak"] = int(0.7 * peak)
    axes = {"rows": len(ids), "views": options.views}
    rows = []
    for device, arrays, wait in places(ids, mask):
        for name, retain in kinds.items():
            calls = lambda: plan(*arrays, views, retain=retain)  # noqa: E731, B023
            made = calls()
            check(made, plan(ids, mask, views, retain=retain))
            n_bytes = sum(int(values.nbytes) for values in arrays_of(made))
            times = samples_ms(calls, options.samples, wait)
            copy = copy_ms(arrays[0], n_bytes, wait)
            rows.append(row(device, f"plan, {name}", times, copy, n_bytes))
            where = axes | {"device": device}
            record.add(f"plan, {name}", times, "ms", axes=where, copy_ms=copy, list_bytes=n_bytes)
        times = samples_ms(lambda: and_counts(arrays[1], n_views=options.views), 5, wait)  # noqa: B023
        rows.append(row(device, "and_counts", times, copy_ms(arrays[0], mask.nbytes, wait), 0))
        record.add("and_counts", times, "ms", axes=axes | {"device": device})
    print(f"{len(ids)} rows, {options.views} views, {mask_bits(mask)} visible in all, peak {peak}")
    print(table(rows, COLUMNS))
    record.write()


def places(ids: Any, mask: Any) -> list[tuple[str, tuple[Any, Any], Any]]:
    """Devices: name, arrays, how to wait."""
    found: list[tuple[str, tuple[Any, Any], Any]] = [("cpu", (ids, mask), lambda: None)]
    if torch.cuda.is_available():
        on_device = (torch.from_numpy(ids).cuda(), torch.from_numpy(mask.view(np.int32)).cuda())
        found.append((torch.cuda.get_device_name(), on_device, torch.cuda.synchronize))
    return found


def arrays_of(made: Any) -> list[Any]:
    """All arrays of a plan, those that are shared once."""
    lists = [*made.ids.values(), *made.positions.values(), *(made.slots or {}).values()]
    return list({id(one.values): one.values for one in lists}.values())


def check(made: Any, wanted: Any) -> None:
    assert made.n_slots == wanted.n_slots
    for name in ("ids", "positions", "slots"):
        for kind, one in (getattr(wanted, name) or {}).items():
            found = getattr(made, name)[kind].values
            found = found if isinstance(found, np.ndarray) else found.cpu().numpy()
            assert (found == one.values).all(), (name, kind)


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
    on_device = torch.ones(n_bytes, dtype=torch.uint8, device=like.device)
    return min(samples_ms(on_device.clone, 3, wait))


def mask_bits(mask: Any) -> int:
    return int(np.unpackbits(mask.view(np.uint8)).sum())


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
