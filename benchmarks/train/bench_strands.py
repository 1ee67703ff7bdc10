# SPDX-License-Identifier: Apache-2.0
"""How evenly do ranks share the rows of every view, and how long do runs of a view's rows stay?

Decides how large the cells of strands are. A round of views waits for the rank that has most rows
of them: the ceiling is 1, all ranks alike. Rows that a rank fetches over its link want long runs.
Beside strands: equal ranges of the Morton curve, and every W-th row along the curve, which balance
best and move most rows whenever one goes.

    PYTHONPATH=benchmarks python benchmarks/train/bench_strands.py --n 4_000_000 --capture fox
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

import gs_cull
from gs_train.data import load_capture
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.renderers.culling import visible_ids
from gs_train.rows.morton import morton_order
from gs_train.rows.strands import Lattice, owners
from gs_train.scene.initialize import rows_from_points
from gs_train.scene.scene import Scene
from harness import Record, add_json_option
from workloads import city, flight, scattered

RANKS = (2, 4, 8)
N_VIEWS = 16


class Rows:
    """Positions along the Morton curve, labels by a lattice, and the rows of some views."""

    def __init__(self, name: str, means: Tensor, lattice: Lattice, seen: list[Tensor]) -> None:
        self.name = name
        self.n_rows = len(means)
        self.labels = lattice.labels(means)
        self.seen = seen

    @property
    def n_seen(self) -> float:
        """Rows of a view."""
        return sum(map(len, self.seen)) / len(self.seen)


def of_city(n: int, share: float) -> Rows:
    """The synthetic city, seen along a flight and from random places."""
    scene = city(n, share=share)
    scene = scene.reordered(morton_order(scene.means))
    seen = [
        gs_cull.visible_ids(
            *scene.rows, pose, K, views.width, views.height, opacities=scene.opacities
        ).long()
        for views in (flight(scene, N_VIEWS // 2), scattered(scene, N_VIEWS // 2))
        for pose, K in zip(views.viewmats, views.Ks)
    ]
    return Rows(f"city, {share} a view", scene.means, Lattice.of_cloud(scene.means), seen)


def of_capture(folder: Path, copies: Sequence[int]) -> Iterator[Rows]:
    """The points of a capture, and each of them several times within its own extent, as clones and
    halves would lie; the lattice is that of the points, as in a run."""
    renderer = make_renderer("cpu", RenderOptions())
    with tempfile.TemporaryDirectory() as made:
        capture = load_capture(folder, cache_dir=Path(made), max_side=800)
        scene = Scene.load(capture, torch.device("cpu"))
    views = scene.views[:: max(1, len(scene.views) // N_VIEWS)]
    rows = rows_from_points(
        scene.frame.points_in(capture.points), capture.colors,
        sh_degree=0, opacity=0.1, scale=1.0, seed=0,
    )  # fmt: skip
    lattice = Lattice.of_cloud(rows["means"])
    draw = torch.Generator().manual_seed(0)
    for n in copies:
        more = {name: values.repeat_interleave(n, 0) for name, values in rows.items()}
        if n > 1:
            noise = torch.randn(more["means"].shape, generator=draw)
            more["means"] += noise * more["scales"].exp()
            more["scales"] -= 1.4
        order = morton_order(more["means"])
        more = {name: values[order] for name, values in more.items()}
        seen = [visible_ids(more, view, renderer) for view in views]
        now = lattice.for_rows(len(order))
        yield Rows(f"{folder.name} x {n}", more["means"], now, [ids for ids in seen if len(ids)])


def excesses(rows: Rows, owner: Tensor, n_ranks: int) -> list[float]:
    """Of each view, the rows of the rank that has most by the mean."""
    counts = [torch.bincount(owner[ids], minlength=n_ranks).double() for ids in rows.seen]
    return [float(count.max() / count.mean()) for count in counts]


def mean_run(rows: Rows, owner: Tensor, n_ranks: int) -> float:
    """Rows of a view that lie side by side in a rank's own order."""
    place = torch.empty(rows.n_rows, dtype=torch.int64)
    for rank in range(n_ranks):
        own = owner == rank
        place[own] = torch.arange(int(own.sum()))
    n_runs = 0
    for ids in rows.seen:
        for rank in range(n_ranks):
            at = place[ids[owner[ids] == rank]]
            n_runs += int((at.diff() != 1).sum()) + (len(at) > 0)
    return sum(map(len, rows.seen)) / n_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4_000_000, help="Gaussians of the city")
    parser.add_argument("--share", type=float, nargs="+", default=[0.05, 0.01], help="of a view")
    parser.add_argument("--capture", type=Path, nargs="*", default=[], help="folders")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 16], help="of each point")
    add_json_option(parser)
    args = parser.parse_args()
    record = Record(args.json)
    scenes = [of_city(args.n, share) for share in args.share]
    scenes += [rows for folder in args.capture for rows in of_capture(folder, args.copies)]
    print(f"{'scene':24s} {'rows a view':>11s} ranks {'dealt by':14s}   mean  worst  mean run")
    for rows in scenes:
        along = torch.arange(rows.n_rows)
        for n_ranks in RANKS:
            ways = {
                "strands": owners(rows.labels, n_ranks),
                "Morton ranges": along * n_ranks // rows.n_rows,
                "every W-th row": along % n_ranks,
            }
            for way, owner in ways.items():
                found, run = excesses(rows, owner, n_ranks), mean_run(rows, owner, n_ranks)
                print(
                    f"{rows.name:24s} {rows.n_seen:11,.0f} {n_ranks:5d} {way:14s}  "
                    f"{sum(found) / len(found):5.3f}  {max(found):5.3f}  {run:8.1f}"
                )
                axes = {"scene": rows.name, "ranks": n_ranks, "visible": round(rows.n_seen)}
                record.add(way, found, "fullest over mean", axes=axes, mean_run=run)
    record.write()


if __name__ == "__main__":
    main()
