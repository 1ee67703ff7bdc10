# SPDX-License-Identifier: Apache-2.0
"""What do order and retention save, in bytes and in optimizer work left at the end?

Decides the engine's presets. Every order with every way to retain, on a synthetic flight and on a
real capture's observations, for batches drawn at random and for local ones (runs of neighbours
from `ViewSampler`). No time is measured: bytes are exact, seconds are those of `CostModel`.

    python benchmarks/order/bench_ablation.py --json ablation.json --figure ablation.png
"""

from __future__ import annotations

from pathlib import Path

from flights import aerial, data_folder, observed
from report import parser, write_json

from gs_order import CostModel, ViewSampler, simulate

ORDERS = ("random", "camera", "count", "tsp", "tsp+tail")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--views", type=int, nargs="+", default=[16, 64])
    arguments.add_argument("--batches", type=int, default=4)
    arguments.add_argument("--rows", type=int, default=20_000, help="seen by a view of the flight")
    arguments.add_argument("--render-ms", type=float, default=0.2, help="of a microbatch")
    arguments.add_argument("--figure", type=Path, help="where to draw the last table")
    options = arguments.parse_args()
    flights = [aerial(400, options.rows)]
    if (data_folder() / "caliterra").is_dir():
        flights.append(observed(data_folder() / "caliterra"))
    model = CostModel(render_s=options.render_ms / 1e3)
    results = []
    for flight in flights:
        for n_views in options.views:
            for mode in ("shuffle", "local"):
                sampler = ViewSampler(
                    batch_size=n_views,
                    cameras=flight.centres,
                    mode=mode,
                )
                chosen = [sampler.batch(step) for step in range(options.batches)]
                found = simulate(
                    [flight.batch(views) for views in chosen],
                    ORDERS,
                    cameras=[flight.centres[views] for views in chosen],
                    model=model,
                    n_views=n_views,
                )
                print(f"\n{flight.name}, {n_views} views, {mode}: {found.union_rows:.0f} rows seen")
                print(found.table())
                results.append(
                    {"scene": flight.name, "views": n_views, "mode": mode, **found.to_json()}
                )
    if options.figure is not None:
        found.figure().savefig(options.figure)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
