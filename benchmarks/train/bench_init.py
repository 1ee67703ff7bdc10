# SPDX-License-Identifier: Apache-2.0
"""How long does a run take to start from a large cloud of points (``gs-train fit --init``)?

Decides whether 50 million points need more than one pass of each part: reading, Morton order and
thinning, neighbours, rotations and colours, tables. The ceiling is the disk for reading and memory
for the rest. Spacings of some points are held to an exact search first.

    PYTHONPATH=benchmarks python benchmarks/train/bench_init.py --n 50_000_000 --folder /tmp
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree

from gs_train.data.frame import Frame
from gs_train.data.point_ply import read_point_ply
from gs_train.machine.memory import peak_host_bytes
from gs_train.rows.tiered import TieredGaussians
from gs_train.scene.initialize import rows_from_cloud
from gs_train.scene.neighbours import neighbour_spacing
from gs_train.scene.thinning import thinned_order
from harness import Record, add_json_option
from point_file import PointFile

_CHUNK = 1 << 20


def write_points(path: Path, n: int) -> None:
    """Points on a bumpy surface of 100 x 100, with one hundredth of noise."""
    random = np.random.default_rng(0)
    with PointFile(path, n) as file:
        for start in range(0, n, _CHUNK):
            m = min(_CHUNK, n - start)
            points = np.empty((m, 3), np.float32)
            xy = random.random((m, 2)) * 100
            points[:, :2] = xy
            points[:, 2] = np.sin(xy[:, 0]) + np.cos(0.7 * xy[:, 1]) + random.normal(0, 0.01, m)
            file.write(start, points, random.integers(0, 256, (m, 3)))


def check_spacing() -> None:
    """Also compiles what is timed."""
    points = np.random.default_rng(0).random((100_000, 3)).astype(np.float32)
    points = points[thinned_order(points, None)]
    distances = cKDTree(points.astype(np.float64)).query(points, k=4)[0][:, 1:]
    expected = np.sqrt((distances**2).mean(axis=1))
    np.testing.assert_allclose(neighbour_spacing(points), expected, rtol=6e-8, atol=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=2_000_000, help="points in the file")
    parser.add_argument("--cap", type=int, default=None, help="thin to so many")
    parser.add_argument("--folder", type=Path, default=Path("."), help="for the file of points")
    add_json_option(parser)
    args = parser.parse_args()
    record = Record(args.json)
    check_spacing()
    path = args.folder / f"points_{args.n}.ply"
    if not path.exists():
        write_points(path, args.n)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds: dict[str, float] = {}
    last = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[name], last = now - last, now

    cloud = read_point_ply(path, transform=Frame((1.0, 2.0, 3.0), 0.1, 5.0).points_in)
    lap("read")
    order = torch.from_numpy(thinned_order(cloud.points, args.cap))
    lap("order")
    points = torch.from_numpy(cloud.points)[order].numpy()
    colors = torch.from_numpy(cloud.colors)[order].numpy()
    del cloud, order
    lap("gather")
    rows = rows_from_cloud(points, colors, sh_degree=3, seed=0)
    lap("neighbours, rotations, colours")
    model = TieredGaussians(rows, device=device, semantics="deferred")
    lap("tables")
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    record.facts |= {"peak_host_bytes": peak_host_bytes(), "peak_device_bytes": peak}
    for name, value in (*seconds.items(), ("all", sum(seconds.values()))):
        print(f"{name:32s} {value:7.2f} s")
        record.add(name, [value], "s", axes={"points": args.n, "gaussians": model.n_rows})
    print(f"peak {peak_host_bytes() / 1e9:.2f} GB on the host, {peak / 1e9:.2f} on the device")
    record.write()


if __name__ == "__main__":
    main()
