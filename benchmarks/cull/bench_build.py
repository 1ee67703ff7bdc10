# SPDX-License-Identifier: Apache-2.0
"""How long does it take to sort a scene along the Morton curve and bound its blocks?

Decides how often rows may be re-ordered, and whether bounds may be refitted every step. The ceiling
of a refit is reading means and scales once.

    PYTHONPATH=benchmarks python benchmarks/cull/bench_build.py --n 100_000_000
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from timing import parser, peak_bytes, samples_ms, table, typical, write_json

import gs_cull


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=100_000_000)
    options.add_argument("--block-size", type=int, default=4096)
    args = options.parse_args()
    device, n = args.device, args.n
    generator = torch.Generator(device).manual_seed(0)
    means = torch.rand((n, 3), generator=generator, device=device)
    scales = torch.randn((n, 3), generator=generator, device=device)
    quats = torch.zeros((n, 4), device=device)
    rows = (means, scales, quats)
    blocks = gs_cull.Blocks.build(*rows, args.block_size)
    own = gs_cull.Blocks.build(*rows, args.block_size, sort=False)
    some = np.arange(0, len(own), 10)
    lines: list[dict[str, Any]] = []

    def measure(name: str, call: Callable[[], Any], touched: float | None = None) -> None:
        samples = samples_ms(call, args.samples, device)
        peak = peak_bytes(call, device)
        ms = typical(samples, device)
        lines.append(
            {
                "name": name,
                "ms": ms,
                "GB/s read": None if touched is None else 24 * touched / ms / 1e6,
                "peak bytes per row": None if peak is None else peak / n,
                "samples_ms": samples,
            }
        )

    measure("sort and build", lambda: gs_cull.Blocks.build(*rows, args.block_size))
    measure("refit, rows in order", lambda: own.refit(*rows), n)
    measure("refit, permuted rows", lambda: blocks.refit(*rows), n)
    measure("refit of a tenth", lambda: own.refit(*rows, blocks=some), n / 10)
    keys = torch.randint(2**62, (n,), generator=generator, device=device)
    measure("torch.sort of 64-bit keys alone", lambda: torch.sort(keys))
    print(table(lines, ("name", "ms", "GB/s read", "peak bytes per row")))
    write_json(args.json, {"n": n, "lines": lines})


if __name__ == "__main__":
    main()
