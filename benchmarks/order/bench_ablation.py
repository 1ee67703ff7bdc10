# SPDX-License-Identifier: Apache-2.0
"""What do order and retention save, in bytes and in optimizer work left at the end?

Decides the engine's presets. Every order with every way to retain, on the synthetic city and on a
real capture's points, for batches drawn at random and for tiles of neighbours, each as large as a
batch (`ViewSampler`). A line's megabytes are those of a batch, each way. The capacity is a share of
the most rows that staying to the last use keeps, or the rows of the widest view where that is more.
No time is measured: bytes are exact, seconds are those of `CostModel`.

    PYTHONPATH=benchmarks python benchmarks/order/bench_ablation.py --json ablation.json
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from report import parser
from scenes import Scene, caliterra, city_scene

from gs_order import CostModel, Simulation, ViewSampler, simulate
from harness import Record

ORDERS = ("random", "camera", "count", "tsp", "tsp+tail")


def simulated(scene: Scene, n_views: int, mode: str, options: Any) -> Simulation:
    """All orders and retentions on the first batches of a sampler."""
    sampler = ViewSampler(
        batch_size=n_views,
        cameras=scene.viewmats,
        order=mode,
        tile_views=n_views if mode == "tiles" else None,
    )
    chosen = [sampler.batch(step) for step in range(options.batches)]
    batches = [scene.batch(views) for views in chosen]
    arguments: dict[str, Any] = {
        "cameras": [scene.centres[views] for views in chosen],
        "model": CostModel(render_s=options.render_ms / 1e3),
        "n_views": n_views,
    }
    first = simulate(batches, ORDERS, retain=["none", "last_use"], **arguments).outcomes
    widest = max(o.peak_rows for o in first if o.retain == "none")
    peak = max(o.peak_rows for o in first if o.retain == "last_use")
    capacity = max(widest, int(options.capacity * peak))
    retain = ("none", "previous", capacity, "last_use")
    return simulate(batches, ORDERS, retain=retain, **arguments)


def _retain_name(retain: str) -> str:
    """A capacity is a number of rows, which differs from scene to scene."""
    return "capacity" if retain.isdigit() else retain


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--views", type=int, nargs="+", default=[16, 64])
    arguments.add_argument("--batches", type=int, default=4)
    arguments.add_argument("--n", type=int, default=2_000_000, help="Gaussians of the city")
    arguments.add_argument("--share", type=float, default=0.02, help="of the city in one view")
    arguments.add_argument("--city-views", type=int, default=400)
    arguments.add_argument("--capacity", type=float, default=0.5, help="share of the peak")
    arguments.add_argument("--render-ms", type=float, default=0.2, help="of a microbatch")
    arguments.add_argument("--figure", type=Path, help="where to draw the last table")
    options = arguments.parse_args()
    record = Record(options.json, batches=options.batches, render_ms=options.render_ms)
    for scene in (city_scene(options.n, options.city_views, options.share), caliterra()):
        for n_views in options.views if scene is not None else ():
            for mode in ("shuffle", "tiles"):
                found = simulated(scene, n_views, mode, options)
                print(f"\n{scene.name}, {n_views} views, {mode}: {found.union_rows:.0f} rows seen")
                print(found.table())
                for outcome in found.outcomes:
                    axes = {"scene": scene.name, "views": n_views, "mode": mode}
                    axes |= {"retain": _retain_name(outcome.retain)}
                    record.add(
                        outcome.order, [(outcome.load_bytes + outcome.store_bytes) / 2e6], "MB",
                        axes=axes, union_rows=found.union_rows, **asdict(outcome),
                    )  # fmt: skip
    if options.figure is not None:
        found.figure().savefig(options.figure)
    record.write()


if __name__ == "__main__":
    main()
