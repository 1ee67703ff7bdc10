# SPDX-License-Identifier: Apache-2.0
"""Does the time per view grow with the scene, when the view sees as much as before?

Decides whether culling limits how large a scene may get. The visible count per view is kept, the
scene grows around it; blocks are what should make the two curves flat.

    PYTHONPATH=benchmarks python benchmarks/cull/bench_scaling.py --n 5_000_000 50_000_000
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

from timing import parser, samples_ms, table, typical

import gs_cull
from harness import Record
from workloads import Flight, city, flight


def measure(n: int, args: argparse.Namespace, record: Record) -> dict[str, Any]:
    """One line of the table."""
    scene = city(n, share=args.visible / n, device=args.device)
    order = gs_cull.Blocks.build(*scene.rows, args.block_size).order
    scene = scene.reordered(order)
    blocks = gs_cull.Blocks.build(*scene.rows, args.block_size, sort=False)
    views = flight(scene, args.views)
    one = Flight(views.viewmats[:1], views.Ks[:1], views.width, views.height)

    def cull(some: Flight, through: gs_cull.Blocks | None) -> gs_cull.Visibility:
        return gs_cull.cull(*scene.rows, *some.arguments, opacities=scene.opacities, blocks=through)

    line: dict[str, Any] = {"n": n}
    line["visible per view"] = float(cull(views, blocks).counts.double().mean())
    for name, some in (("batch", views), ("one view", one)):
        for kind, through in (("blocks", blocks), ("all rows", None)):
            samples = samples_ms(functools.partial(cull, some, through), args.samples, args.device)
            line[f"{name}, {kind}: ms per view"] = typical(samples, args.device) / len(some)
            record.add(
                f"{name}, {kind}", [sample / len(some) for sample in samples], "ms a view",
                axes={"rows": n, "views": len(some)}, visible=line["visible per view"],
            )  # fmt: skip
    return line


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--n", type=int, nargs="+", default=[5_000_000, 20_000_000, 50_000_000])
    options.add_argument("--views", type=int, default=64)
    options.add_argument("--visible", type=int, default=100_000, help="rows per view, about")
    options.add_argument("--block-size", type=int, default=4096)
    args = options.parse_args()
    record = Record(args.json, device=args.device)
    lines = [measure(n, args, record) for n in args.n]
    print(table(lines, list(lines[0])))
    ratios = {
        column: lines[-1][column] / lines[0][column]
        for column in lines[0]
        if "ms per view" in column
    }
    for column, ratio in ratios.items():
        print(f"{column}: {ratio:.2f} times from n = {args.n[0]:,} to {args.n[-1]:,}")
    record.write()


if __name__ == "__main__":
    main()
