# SPDX-License-Identifier: Apache-2.0
"""What does culling first save gsplat, forward and backward, in time and in memory?

Decides whether a trainer that fits in GPU memory should cull at all. The peer is gsplat's
``rasterization`` of all rows. Ours culls, takes the visible rows and renders those; their gradients
stay compact, or, as in a trainer that changes nothing else, become those of all rows. The limit is
the former without culling, its results known beforehand. Needs CUDA.

    PYTHONPATH=benchmarks python benchmarks/cull/bench_render.py --n 20_000_000
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gsplat import rasterization
from timing import parser, peak_bytes, samples_ms, table, typical
from torch import Tensor

import gs_cull
from harness import Record
from workloads import city, flight


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=20_000_000)
    options.add_argument("--views", type=int, default=8)
    options.add_argument("--block-size", type=int, default=4096)
    args = options.parse_args()
    record = Record(args.json, device=args.device)
    scene = city(args.n, device=args.device)
    scene = scene.reordered(gs_cull.Blocks.build(*scene.rows, args.block_size).order)
    blocks = gs_cull.Blocks.build(*scene.rows, args.block_size, sort=False)
    views = flight(scene, args.views)
    colors = torch.rand((args.n, 3), device=args.device)
    everything = [*scene.rows, scene.opacities, colors]

    def render(rows: list[Tensor], view: int) -> Tensor:
        means, scales, quats, opacities, rgb = rows
        image, *_ = rasterization(
            means, quats, scales.exp(), opacities.sigmoid(), rgb,
            views.viewmats[view : view + 1], views.Ks[view : view + 1], views.width, views.height,
            packed=False,
        )  # fmt: skip
        return image

    def whole() -> None:
        leaves = [a.detach().requires_grad_() for a in everything]
        for view in range(args.views):
            torch.autograd.grad(render(leaves, view).sum(), leaves)

    def seen(view: int, through: gs_cull.Blocks | None) -> Tensor:
        return gs_cull.visible_ids(
            *scene.rows, views.viewmats[view], views.Ks[view], views.width, views.height,
            opacities=scene.opacities, blocks=through,
        )  # fmt: skip

    def visible(ids_of: Callable[[int], Tensor]) -> None:
        for view in range(args.views):
            ids = ids_of(view)
            leaves = [a[ids].requires_grad_() for a in everything]
            torch.autograd.grad(render(leaves, view).sum(), leaves)

    def visible_of_all(through: gs_cull.Blocks | None) -> None:
        leaves = [a.detach().requires_grad_() for a in everything]
        for view in range(args.views):
            ids = seen(view, through)
            image = render([a[ids] for a in leaves], view)
            torch.autograd.grad(image.sum(), leaves)

    known = [seen(view, blocks) for view in range(args.views)]
    with torch.no_grad():
        some = [a[known[0]] for a in everything]
        difference = (render(everything, 0) - render(some, 0)).abs().max()
        del some
    assert difference <= 1e-5, f"images differ by {float(difference)}"
    lines: list[dict[str, Any]] = []
    for name, call in (
        ("all rows", whole),
        ("culled, gradients of all rows", lambda: visible_of_all(None)),
        ("culled with blocks, gradients of all rows", lambda: visible_of_all(blocks)),
        ("culled, compact gradients", lambda: visible(lambda view: seen(view, None))),
        (
            "culled with blocks, compact gradients",
            lambda: visible(lambda view: seen(view, blocks)),
        ),
        ("visible rows known, compact gradients", lambda: visible(lambda view: known[view])),
    ):
        samples = samples_ms(call, args.samples, args.device)
        peak = peak_bytes(call, args.device)
        lines.append(
            {
                "name": name,
                "ms per view": typical(samples, args.device) / args.views,
                "peak MB": None if peak is None else peak / 1e6,
            }
        )
        record.add(
            name, [sample / args.views for sample in samples], "ms a view",
            axes={"rows": args.n, "views": args.views}, peak_bytes=peak,
        )  # fmt: skip
    for line in lines:
        line["all rows / this"] = lines[0]["ms per view"] / line["ms per view"]
        line["share of limit"] = lines[-1]["ms per view"] / line["ms per view"]
    mean = sum(map(len, known)) / len(known)
    print(f"n = {args.n:,}, {mean:,.0f} visible per view, images equal to 1e-5")
    print(table(lines, ("name", "ms per view", "all rows / this", "share of limit", "peak MB")))
    record.facts["visible per view"] = mean
    record.write()


if __name__ == "__main__":
    main()
