# SPDX-License-Identifier: Apache-2.0
"""What does a scene on a drive cost that grows with the scene: memory, a start, a resume, a pause?

Decides how many Gaussians the preset ``tide`` can have on a given machine. Slots and places of the
arena have one size whatever the number of rows, and views of a wavy ground see as many rows at any
number, so that what differs between sizes is what every row costs. The ceilings are those of the
design: 0.3 bytes of host memory a row, 5 s to open and to go on, a pause of 1 s for a snapshot.

Memory is counted from outside, as the system has it resident at most, each size in a process of its
own; blocks of 64 rows, of which there are sixteen times as many, tell what a block costs. A run
takes ``--steps`` steps with the CPU renderer, knows the views of 600 more, and makes a snapshot.

    PYTHONPATH=benchmarks python benchmarks/tide/bench_limits.py --folder /tmp --json limits.json

The drive holds 15 bytes a point and the store. ``--n 500_000 2_000_000 8_000_000 20_000_000``
takes 2 GB of it, and some minutes of one core.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gs_pinned import BlockStore
from gs_train.blocks.stored_rows import StoredRows
from gs_train.clouds.stored_scene import FirstRows, stored_scene
from gs_train.engine.settings import StepSettings
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.memory import peak_host_bytes, resident_bytes
from gs_train.renderers import Renderer, RenderOptions, View, make_renderer
from gs_train.tide.engine import block_engine
from gs_train.tide.model import StoredModel
from harness import Record, add_json_option

ROWS_IN_SLOTS, ROWS_IN_ARENA = 1 << 16, 1 << 17
"""Memory of a run, whatever the size of its blocks: 47 and 94 MB."""

MAKING_BYTES = 64 << 20
"""For the points of a cloud."""

SECONDS = ("open", "resume", "pause", "snapshot")

_A_UNIT = 20  # points of a square unit of the ground
_SIDE = 10.0  # of the ground that a view sees
_WIDTH, _HEIGHT = 64, 48
_CHUNK = 1 << 20
_KNOWN = 600

BETAS, EPS = (0.9, 0.999), 1e-15
RATES = {
    "means": 1e-4, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2, "sh0": 2.5e-3, "shN": 1.25e-4,
}  # fmt: skip


def write_ground(path: Path, n: int) -> float:
    """Points on a wavy ground of as many square units as make their density one. Returns its
    side."""
    random, side = np.random.default_rng(0), (n / _A_UNIT) ** 0.5
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {n}"]
    lines += [f"property float {name}" for name in "xyz"]
    lines += [f"property uchar {name}" for name in ("red", "green", "blue")]
    with open(path, "wb") as file:
        file.write("\n".join([*lines, "end_header", ""]).encode())
        for start in range(0, n, _CHUNK):
            m = min(_CHUNK, n - start)
            records = np.zeros(m, [("xyz", "<f4", 3), ("rgb", "u1", 3)])
            xy = random.random((m, 2)) * side
            records["xyz"][:, :2] = xy
            records["xyz"][:, 2] = np.sin(xy[:, 0]) + random.normal(0, 0.01, m)
            records["rgb"] = random.integers(0, 256, (m, 3))
            file.write(records.tobytes())
    return side


def views_over(side: float, n: int) -> list[View]:
    """Views straight down, of as much ground each."""
    random = np.random.default_rng(1)
    K = torch.tensor([[40.0, 0, _WIDTH / 2], [0, 40.0, _HEIGHT / 2], [0, 0, 1]])
    views = []
    for k, (x, y) in enumerate(random.uniform(_SIDE / 2, side - _SIDE / 2, (n, 2))):
        pose = torch.diag(torch.tensor([1.0, -1, -1, 1]))
        pose[:3, 3] = torch.tensor([-x, y, _SIDE * 40 / _WIDTH + 1])
        views.append(View(f"{k}", pose, K, _WIDTH, _HEIGHT))
    return views


def make(path: Path, store: Path, block_rows: int) -> dict[str, float]:
    """Make a store from the points."""
    first = FirstRows(
        sh_degree=3, opacity=0.1, scale=1.0, seed=0, block_rows=block_rows, betas=BETAS, eps=EPS,
        ceilings={"means": RATES["means"], "scales": RATES["scales"]},
    )  # fmt: skip
    before = resident_bytes() or 0
    started = time.perf_counter()
    stored_scene(path, store, first, memory=MAKING_BYTES, stop=StopRequest())
    seconds = time.perf_counter() - started
    n_bytes = sum(file.stat().st_size for file in store.iterdir())
    return {"seconds": seconds, "bytes": peak_host_bytes() - before, "drive": n_bytes}


def opened(store: Path, block_rows: int, *, read_only: bool = False) -> StoredRows:
    slots, places = ROWS_IN_SLOTS // block_rows, ROWS_IN_ARENA // block_rows
    return StoredRows(BlockStore.open(store, read_only=read_only), slots=slots, host_blocks=places)


def use(store: Path, block_rows: int, side: float, n_steps: int) -> dict[str, float]:
    """Open, train, make a snapshot, and open that."""
    renderer = make_renderer("cpu", RenderOptions())
    gc.collect()
    views = views_over(side, 2 * (n_steps + _KNOWN))
    before = resident_bytes() or 0
    started = time.perf_counter()
    rows = opened(store, block_rows)
    open_s = time.perf_counter() - started
    trained(rows, renderer, views, n_steps)
    stats = rows.cache.stats
    held = rows.row_bytes * (ROWS_IN_SLOTS + ROWS_IN_ARENA)
    found = {"bytes": peak_host_bytes() - before - held, "evicted": stats.evicted}
    model = StoredModel(rows)
    started = time.perf_counter()
    saving = model.begin_saving(())
    pause_s = time.perf_counter() - started
    saving.wait()
    snapshot_s = time.perf_counter() - started
    found["bytes"] = max(found["bytes"], peak_host_bytes() - before - held)
    rows.close()
    started = time.perf_counter()
    opened(store, block_rows).close()
    resume_s = time.perf_counter() - started
    return found | {
        "open_s": open_s, "resume_s": resume_s, "pause_s": pause_s, "snapshot_s": snapshot_s,
    }  # fmt: skip


def trained(rows: StoredRows, renderer: Renderer, views: list[View], n_steps: int) -> None:
    engine = block_engine(rows, renderer)
    chosen = StepSettings(0, RATES, BETAS, EPS, 0.2)
    photo = torch.zeros(_HEIGHT, _WIDTH, 3, dtype=torch.uint8)

    def views_of(step: int) -> list[View]:
        return views[2 * step : 2 * step + 2]

    engine.model.foresee(views_of, renderer)
    for step in range(n_steps):
        batch = [(view, photo) for view in views_of(step)]
        following = [views_of(step + 1), views_of(step + 2)]
        engine.step(batch, chosen, lambda ids, splats: None, upcoming=following)
    engine.finish()


def alone(work: Callable[..., Any], *args: object) -> Any:
    """What a call returns in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *args).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[500_000, 2_000_000, 8_000_000])
    parser.add_argument("--block-rows", type=int, nargs="+", default=[1024, 64])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=None, help="for the points and the store")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json, making_bytes=MAKING_BYTES, steps=options.steps)
    record.facts |= {"rows_in_slots": ROWS_IN_SLOTS, "rows_in_arena": ROWS_IN_ARENA}
    heads = ["rows", "block", "made, s", "MB", "train, MB", "evicted", "open, s", "resume"]
    print("".join(f"{head:>12s}" for head in [*heads, "pause", "snapshot"]))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for n in options.n:
            cloud, store = Path(folder) / "points.ply", Path(folder) / "store"
            side = write_ground(cloud, n)
            for block_rows in options.block_rows:
                made = alone(make, cloud, store, block_rows)
                used = alone(use, store, block_rows, side, options.steps)
                shutil.rmtree(store)
                axes = {"gaussians": n, "block_rows": block_rows}
                record.add("making", [made["seconds"]], "s", axes=axes, drive_bytes=made["drive"])
                record.add("making", [made["bytes"]], "B", axes=axes)
                facts = {"evicted": used["evicted"]}
                record.add("training", [used["bytes"]], "B", axes=axes, **facts)
                for name in SECONDS:
                    record.add(name, [used[f"{name}_s"]], "s", axes=axes)
                record.write()
                cells = [f"{n:,}", str(block_rows), f"{made['seconds']:.1f}"]
                cells += [f"{found['bytes'] / 1e6:.1f}" for found in (made, used)]
                cells.append(f"{used['evicted']:,.0f}")
                cells += [f"{used[f'{name}_s']:.3f}" for name in SECONDS]
                print("".join(f"{cell:>12s}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
