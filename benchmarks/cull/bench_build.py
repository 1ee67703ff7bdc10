# SPDX-License-Identifier: Apache-2.0
"""How long does it take to sort a scene along the Morton curve and bound its blocks?

Decides how often rows may be re-ordered, and whether bounds may be refitted every step. The peer of
the sort is torch.sort of as many 64-bit keys; the limit of all is memory: 24 bytes a row for a
refit, 264 for sort and build (reading and writing keys and rows 8 times, and the geometry).

    PYTHONPATH=benchmarks python benchmarks/cull/bench_build.py --n 100_000_000
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import copy_rate, parser, peak_bytes, samples_ms, table, typical

import gs_cull
from harness import Record


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=100_000_000)
    options.add_argument("--block-size", type=int, default=4096)
    args = options.parse_args()
    device, n = args.device, args.n
    record = Record(args.json, device=device)
    generator = torch.Generator(device).manual_seed(0)
    means = torch.rand((n, 3), generator=generator, device=device)
    scales = torch.randn((n, 3), generator=generator, device=device)
    quats = torch.zeros((n, 4), device=device)
    rows = (means, scales, quats)
    blocks = gs_cull.Blocks.build(*rows, args.block_size)
    own = gs_cull.Blocks.build(*rows, args.block_size, sort=False)
    some = np.arange(0, len(own), 10)
    everyone = torch.arange(n, dtype=torch.int32, device=device)
    assert torch.equal(blocks.order.sort().values, everyone), "the order is no permutation"
    del everyone
    rate = copy_rate(device)
    record.facts["copy_gb_per_second"] = rate / 1e6
    lines: list[dict[str, Any]] = []

    def measure(name: str, call: Callable[[], Any], n_bytes: float | None = None) -> None:
        samples = samples_ms(call, args.samples, device)
        peak = peak_bytes(call, device)
        ms = typical(samples, device)
        lines.append(
            {
                "name": name,
                "ms": ms,
                "share of limit": None if n_bytes is None else n_bytes / rate / ms,
                "peak bytes per row": None if peak is None else peak / n,
            }
        )
        axes = {"rows": n, "block_size": args.block_size}
        record.add(name, samples, "ms", axes=axes, bytes=n_bytes, peak_bytes=peak)

    measure("sort and build", lambda: gs_cull.Blocks.build(*rows, args.block_size), 264 * n)
    measure("refit, rows in order", lambda: own.refit(*rows), 24 * n)
    measure("refit, permuted rows", lambda: blocks.refit(*rows), 24 * n)
    measure("refit of a tenth", lambda: own.refit(*rows, blocks=some), 2.4 * n)
    keys = torch.randint(2**62, (n,), generator=generator, device=device)
    measure("torch.sort of 64-bit keys alone", lambda: torch.sort(keys))
    for line in lines:
        line["torch.sort / this"] = lines[-1]["ms"] / line["ms"]
    print(f"n = {n:,}; memory copies at {rate / 1e6:.0f} GB/s")
    columns = ("name", "ms", "torch.sort / this", "share of limit", "peak bytes per row")
    print(table(lines, columns))
    record.write()


if __name__ == "__main__":
    main()
