# SPDX-License-Identifier: Apache-2.0
"""Is the default search short enough, soon enough, to run before every batch?

Decides whether ordering may stay on a batch's critical path. Path lengths are of exact symmetric
differences, for batches drawn at random from the synthetic city and from a real capture. Ours with
its default iterations, against fast-tsp with the same time (1 ms, or what ours took if longer),
both in this run. The best known length is the least of those, of ours with 20 times the iterations
from three seeds, and of a second of fast-tsp; up to 12 views it is the optimum, which dynamic
programming finds. fast-tsp wants distances below 65536, so it gets scaled ones; lengths are
measured on the true ones.

    PYTHONPATH=benchmarks python benchmarks/order/bench_path.py --json path.json
"""

from __future__ import annotations

from typing import Any

import fast_tsp
import numpy as np
from report import parser, samples_ms, table
from scenes import Scene, caliterra, city_scene

from gs_order import order, xor_counts
from gs_order.search import EXACT_VIEWS, default_iterations
from harness import Record

COLUMNS = ("scene", "views", "ours_ms", "ours_%", "peer_ms", "peer_%", "worst_ours_%", "random_%")


def length(distance: Any, views: Any) -> float:
    return float(distance[views[:-1], views[1:]].sum())


def peer(distance: Any, seconds: float) -> Any:
    """fast-tsp's closed tour through a node that is near to all, opened there."""
    n = len(distance)
    scaled = np.zeros((n + 1, n + 1), np.int64)
    scaled[:n, :n] = np.rint(distance * (60_000 / max(1, distance.max())))
    tour = fast_tsp.find_tour(scaled.tolist(), duration_seconds=seconds)
    at = tour.index(n)
    return np.array(tour[at + 1 :] + tour[:at])


def measure(scene: Scene, n_views: int, seed: int, n_samples: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    views = rng.choice(len(scene), n_views, replace=False)
    distance = xor_counts(scene.batch(views)[1], n_views=n_views)
    times = samples_ms(lambda: order(distance=distance, seed=seed), n_samples)
    ours = length(distance, order(distance=distance, seed=seed))
    seconds = max(1.0, min(times)) / 1e3
    theirs = length(distance, peer(distance, seconds))
    best = min(ours, theirs)
    if n_views > EXACT_VIEWS:
        more = 20 * default_iterations(n_views)
        for other in range(3):
            views = order(distance=distance, seed=other, max_iterations=more)
            best = min(best, length(distance, views))
        best = min(best, length(distance, peer(distance, 1.0)))
    shuffled = length(distance, order(n_views=n_views, method="random", seed=seed))
    return {
        "samples_ms": times,
        "best": best,
        "ours": ours,
        "peer": theirs,
        "peer_seconds": seconds,
        "random": shuffled,
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 12, 16, 32, 64, 128, 512])
    arguments.add_argument("--batches", type=int, default=4)
    arguments.add_argument("--samples", type=int, default=10)
    arguments.add_argument("--n", type=int, default=500_000, help="Gaussians of the city")
    arguments.add_argument("--share", type=float, default=0.01, help="of the city in one view")
    arguments.add_argument("--city-views", type=int, default=1024)
    options = arguments.parse_args()
    scenes = [city_scene(options.n, options.city_views, options.share), caliterra()]
    record = Record(options.json)
    rows = []
    for scene in (s for s in scenes if s is not None):
        for n_views in (n for n in options.sizes if n <= len(scene)):
            found = [measure(scene, n_views, s, options.samples) for s in range(options.batches)]
            over = {
                name: [100 * (f[name] / f["best"] - 1) for f in found]
                for name in ("ours", "peer", "random")
            }
            rows.append(
                {
                    "scene": scene.name,
                    "views": n_views,
                    "ours_ms": min(min(f["samples_ms"]) for f in found),
                    "ours_%": float(np.mean(over["ours"])),
                    "peer_ms": 1e3 * float(np.mean([f["peer_seconds"] for f in found])),
                    "peer_%": float(np.mean(over["peer"])),
                    "worst_ours_%": max(over["ours"]),
                    "random_%": float(np.mean(over["random"])),
                }
            )
            axes = {"scene": scene.name, "views": n_views}
            times = [ms for batch in found for ms in batch["samples_ms"]]
            record.add("ours", times, "ms", axes=axes, batches=found)
            for name, above in over.items():
                record.add(f"{name}, above the best known", above, "%", axes=axes)
    print("Length of the path above the best known, mean over batches; time: best of the samples.")
    print(table(rows, COLUMNS))
    record.write()


if __name__ == "__main__":
    main()
