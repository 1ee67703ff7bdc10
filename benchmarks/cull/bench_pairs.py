# SPDX-License-Identifier: Apache-2.0
"""How long does it take to count what all pairs of views share?

Decides whether exact distances between views can order every batch. The peer unpacks the mask to
booleans and multiplies matrices, which takes U x B values; the limit is reading the mask once.

    PYTHONPATH=benchmarks python benchmarks/cull/bench_pairs.py --rows 5_000_000 --views 64
"""

from __future__ import annotations

from typing import Any

import torch
from timing import copy_rate, parser, peak_bytes, samples_ms, table, typical
from torch import Tensor

import gs_cull
from harness import Record


def unpacked(mask: Tensor, n_views: int) -> Tensor:
    """(B, B) xor counts by way of U x B values."""
    shifts = torch.arange(32, device=mask.device, dtype=torch.int32)
    bits = (mask[:, :, None] >> shifts & 1).flatten(1)[:, :n_views]
    values = bits.float()
    both = values.T @ values
    own = both.diagonal()
    return own[:, None] + own - 2 * both


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--views", type=int, default=64)
    args = options.parse_args()
    n, n_views, device = args.rows, args.views, args.device
    record = Record(args.json, device=device)
    generator = torch.Generator(device).manual_seed(0)
    words = -(-n_views // 32)
    mask = torch.zeros((n, words), dtype=torch.int32, device=device)
    for view in range(n_views):
        seen = torch.rand(n, generator=generator, device=device) < 0.1
        bit = (1 << view % 32) - (2**32 if view % 32 == 31 else 0)
        mask[:, view // 32] |= seen.int() * bit
    ids = torch.arange(n, dtype=torch.int32, device=device)
    visibility = gs_cull.Visibility.of_mask(ids, mask, n_views, 0)
    # Sums in float32 are exact to 2^24 rows.
    same = n > 2**24 or torch.equal(visibility.xor_counts(), unpacked(mask, n_views).long())
    assert same, "the counts differ from torch's"
    rate = copy_rate(device)
    record.facts["copy_gb_per_second"] = rate / 1e6
    lines: list[dict[str, Any]] = []
    for name, call in (
        ("gs-cull", visibility.xor_counts),
        ("torch, unpacked", lambda: unpacked(mask, n_views)),
    ):
        samples = samples_ms(call, args.samples, device)
        peak = peak_bytes(call, device)
        ms = typical(samples, device)
        lines.append(
            {
                "name": name,
                "ms": ms,
                "share of limit": 4 * words * n / rate / ms,
                "peak MB": None if peak is None else peak / 1e6,
            }
        )
        record.add(name, samples, "ms", axes={"rows": n, "views": n_views}, peak_bytes=peak)
    for line in lines:
        line["torch / this"] = lines[-1]["ms"] / line["ms"]
    print(f"{n:,} rows, {n_views} views; memory copies at {rate / 1e6:.0f} GB/s")
    print(table(lines, ("name", "ms", "torch / this", "share of limit", "peak MB")))
    record.write()


if __name__ == "__main__":
    main()
