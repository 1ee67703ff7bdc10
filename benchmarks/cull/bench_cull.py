# SPDX-License-Identifier: Apache-2.0
"""How long does it take to know what each view of a batch sees?

Decides whether to cull before rendering. The peers answer for one view at a time: gsplat's
projection (its CUDA kernel, or its torch code on the CPU) and plain torch. Ours answers for the
whole batch, union, masks and counts included. The limit without blocks is reading means and scales
once, 24 bytes a Gaussian for all views together; with blocks there is none. A view of 1,000
Gaussians shows what a call costs apart from the scene.

    PYTHONPATH=benchmarks python benchmarks/cull/bench_cull.py --n 20_000_000 --json out.json
"""

from __future__ import annotations

from typing import Any

import torch
from peers import gsplat_projection, gsplat_reference, plain_torch
from timing import copy_rate, parser, peak_bytes, samples_ms, table, typical

import gs_cull
from harness import Record
from workloads import City, Flight, city, flight


def check(scene: City, views: Flight, found: gs_cull.Visibility, peer: Any) -> dict[str, int]:
    """Misses and extras against a peer, in the first view."""
    theirs = peer(scene, views, 0)
    ours = torch.zeros_like(theirs)
    ours[found.view(0).long()] = True
    missed = int((theirs & ~ours).sum())
    assert missed == 0, f"{missed} rows missed"
    return {"missed": missed, "extras": int((ours & ~theirs).sum())}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=20_000_000)
    options.add_argument("--views", type=int, default=64)
    options.add_argument("--share", type=float, default=0.02, help="of the scene in one view")
    options.add_argument("--block-size", type=int, default=4096)
    options.add_argument("--peer-views", type=int, default=2, help="views that the peers look at")
    args = options.parse_args()
    device = args.device
    record = Record(args.json, device=device)
    scene = city(args.n, share=args.share, device=device)
    blocks = gs_cull.Blocks.build(*scene.rows, args.block_size)
    in_order = scene.reordered(blocks.order)
    own_blocks = gs_cull.Blocks.build(*in_order.rows, args.block_size, sort=False)
    views = flight(scene, args.views)

    def cull(which: City, some: Flight, through: gs_cull.Blocks | None) -> gs_cull.Visibility:
        return gs_cull.cull(*which.rows, *some.arguments, opacities=which.opacities, blocks=through)

    found = cull(in_order, views, own_blocks)
    gsplat = gsplat_reference if device == "cpu" else gsplat_projection
    # gsplat's torch code leaves the opacities out.
    errors = check(in_order, views, found, plain_torch if device == "cpu" else gsplat)
    counts = found.counts.double()
    facts = {
        "n": args.n,
        "views": args.views,
        "visible per view": float(counts.mean()),
        "share per view": float(counts.mean()) / args.n,
        "union": len(found),
        **errors,
    }
    print(facts)
    record.facts |= facts

    one = Flight(views.viewmats[:1], views.Ks[:1], views.width, views.height)
    few = City(*(a[:1000] for a in (*in_order.rows, in_order.opacities)), in_order.side,
               in_order.altitude)  # fmt: skip
    cases: list[tuple[str, int, Any]] = [
        ("gs-cull, rows in Morton order, blocks", args.views,
         lambda: cull(in_order, views, own_blocks)),
        ("gs-cull, rows as they are, blocks", args.views, lambda: cull(scene, views, blocks)),
        ("gs-cull, rows in Morton order", args.views, lambda: cull(in_order, views, None)),
        ("gs-cull, rows as they are", args.views, lambda: cull(scene, views, None)),
        ("gs-cull, one view, blocks", 1, lambda: cull(in_order, one, own_blocks)),
        ("gs-cull, one view", 1, lambda: cull(in_order, one, None)),
        ("gs-cull, one view of 1,000 rows", 1, lambda: cull(few, one, None)),
        ("gsplat's projection", args.peer_views,
         lambda: [gsplat(scene, views, v) for v in range(args.peer_views)]),
        ("plain torch", args.peer_views,
         lambda: [plain_torch(scene, views, v) for v in range(args.peer_views)]),
    ]  # fmt: skip
    rate = copy_rate(device)
    record.facts["copy_gb_per_second"] = rate / 1e6
    lines: list[dict[str, Any]] = []
    for name, n_views, call in cases:
        samples = samples_ms(call, args.samples, device)
        peak = peak_bytes(call, device)
        lines.append(
            {
                "name": name,
                "ms per view": typical(samples, device) / n_views,
                "peak bytes per Gaussian": None if peak is None else peak / args.n,
                "n_views": n_views,
            }
        )
        record.add(
            name, [sample / n_views for sample in samples], "ms a view",
            axes={"rows": args.n, "views": n_views}, peak_bytes=peak,
        )  # fmt: skip
    peer = lines[-2]["ms per view"]
    for line in lines:
        if line["name"].startswith("gs-cull") and line["name"].endswith(("order", "are", "view")):
            whole = line["ms per view"] * line["n_views"]
            line["share of limit"] = 24 * args.n / rate / whole
        line["gsplat / this"] = peer / line["ms per view"]
        line["plain torch / this"] = lines[-1]["ms per view"] / line["ms per view"]
    columns = (
        "name", "ms per view", "gsplat / this", "plain torch / this", "share of limit",
        "peak bytes per Gaussian",
    )  # fmt: skip
    print(table(lines, columns))
    record.write()


if __name__ == "__main__":
    main()
