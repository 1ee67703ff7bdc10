# SPDX-License-Identifier: Apache-2.0
"""What do rows in blocks cost a scene that would fit in one place?

Decides from which size on the tier of blocks is worth its overhead. The synthetic city trains as in
``train/bench_engine.py``, in shuffled order: all on the device (``none``), with appearance in host
memory (``best``), and in blocks: with slots for all of the blocks (``tide, slots``), and with slots
for some and host memory for the others (``tide, host``). Everything in one process and one call;
the ceiling is ``none``.

    PYTHONPATH=benchmarks:benchmarks/train python benchmarks/tide/bench_tide.py --n 5_000_000

A sample is the rate of a run of ``--seconds``, from an idle device to an idle device. The store is
made in ``--folder``, with 720 bytes a row. With ``--trace FOLDER`` each line runs on for a moment
after it was timed, with a trace that ``train/trace_shares.py`` explains.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import trace_shares
from bench_engine import Scene, batches, make_scene, settings

import workloads
from gs_train.backends import make_backend
from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.engine import Engine
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.rows.morton import morton_order
from gs_train.tide.engine import block_engine
from harness import Record, add_json_option

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as gs-train does

IN_SLOTS, IN_HOST = "tide, slots", "tide, host"
LINES = ("none", "best", IN_SLOTS, IN_HOST)


@dataclass
class Row:
    """One line of the table.

    Attributes:
        rates: images a second of each run.
        facts: counters of the cache, and the share of the time in which each track of a trace was
            busy.
    """

    name: str
    batch: int
    rates: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)


def measure(engine: Engine, row: Row, scene: Scene, options: argparse.Namespace) -> None:
    """Run an engine, and note its rates."""
    device, chosen = scene.views[0].K.device, settings(scene, row.batch)
    source = batches(scene, row.batch, "shuffle")
    following = [next(source) for _ in range(2)]

    def run(seconds: float, least: int = 3) -> float:
        engine.finish()
        if device.type == "cuda":
            torch.cuda.synchronize()
        started, n = time.perf_counter(), 0
        while n < least or time.perf_counter() - started < seconds:
            now = following.pop(0)
            following.append(next(source))
            photos = [scene.photos[i].to(device, non_blocking=True) for i in now]
            engine.step(
                [(scene.views[i], photo) for i, photo in zip(now, photos)], chosen,
                lambda ids, splats: None,
                upcoming=[[scene.views[i] for i in after] for after in following],
            )  # fmt: skip
            n += 1
        engine.finish()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return n * row.batch / (time.perf_counter() - started)

    epoch = -(-len(scene.views) // row.batch)  # after which every block has come once
    run(options.warm_up, epoch + 3)
    row.rates = [run(options.seconds) for _ in range(options.samples)]
    if options.trace is not None:
        path = options.trace / f"{row.name.replace(', ', '-')}-{row.batch}.json"
        engine.trace.start(path)
        run(options.seconds / 4)
        engine.trace.write()
        busy = trace_shares.shares(trace_shares.read(path))
        row.facts |= {f"busy {track}": share for track, share in busy.items()}


def in_blocks(
    scene: Scene, renderer: Renderer, row: Row, store: Path, options: argparse.Namespace
) -> None:
    """Measure a line of rows in blocks, on a copy of the store."""
    n_blocks = -(-len(scene.rows["sh0"]) // options.block_rows)
    slots, host = n_blocks, 256
    if row.name == IN_HOST:
        slots, host = int(options.slots * n_blocks), n_blocks
    place = store.with_name("copy")
    shutil.copytree(store, place)
    try:
        with StoredRows.open(place, slots=slots, host_blocks=host, device=renderer.device) as rows:
            engine = block_engine(rows, renderer, most_listed=0 if options.exact else None)
            measure(engine, row, scene, options)
            row.facts |= vars(rows.cache.stats) | {"slots": slots, "blocks": n_blocks}
    finally:
        shutil.rmtree(place)


def made(scene: Scene, folder: Path, batch: int, options: argparse.Namespace) -> Path:
    """The rows in a new store."""
    chosen = settings(scene, batch)
    keys = torch.arange(len(scene.rows["sh0"]), dtype=torch.int32)
    started = time.perf_counter()
    StoredRows.create(
        folder / "store",
        scene.rows,
        keys,
        block_rows=options.block_rows,
        betas=chosen.betas,
        eps=chosen.eps,
        ceilings=chosen.rates,
    )
    print(f"store of {len(keys):,} rows made in {time.perf_counter() - started:.1f} s", flush=True)
    return folder / "store"


def lines_of(
    scene: Scene, renderer: Renderer, batch: int, options: argparse.Namespace
) -> list[Row]:
    rows = [Row(name, batch) for name in options.only]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = None
        for row in rows:
            gc.collect()
            if renderer.device.type == "cuda":
                torch.cuda.empty_cache()
            if row.name in PRESETS:
                engine = make_backend(
                    PRESETS[row.name], scene.rows, None, renderer=renderer, semantics="dense",
                    mem_limit=0.3,
                )  # fmt: skip
                measure(engine, row, scene, options)
                engine.model.close()
                del engine
            else:
                store = store or made(scene, Path(folder), batch, options)
                in_blocks(scene, renderer, row, store, options)
            base = statistics.median(rows[0].rates)
            rate = statistics.median(row.rates)
            print(
                f"{row.name:12s} batch {batch:3d}: {rate:7.1f} images/s, {rate / base:.2f} of "
                f"{rows[0].name} {row.facts or ''}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=5_000_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--only", nargs="+", default=list(LINES), choices=LINES)
    parser.add_argument("--block-rows", type=int, default=1024)
    parser.add_argument(
        "--slots", type=float, default=0.5, help="share of blocks, of the last line"
    )
    parser.add_argument(
        "--exact", action="store_true", help="wait for the rows that are seen in each step"
    )
    parser.add_argument("--overlap", type=float, default=0.72, help="of neighbours")
    parser.add_argument("--views", type=int, default=128)
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before the samples")
    parser.add_argument("--seconds", type=float, default=2.0, help="per sample")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the store")
    parser.add_argument("--trace", type=Path, help="folder for a trace of each line")
    add_json_option(parser)
    options = parser.parse_args()
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
    record = Record(options.json, block_rows=options.block_rows)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    renderer = make_renderer("auto", RenderOptions())
    city = workloads.city(options.n, device=device)
    city = city.reordered(morton_order(city.means))
    rows = {name: values.cpu() for name, values in workloads.attributes(city).items()}
    scene = make_scene(city, options.overlap, options.views, tuple(options.size), rows)
    del city  # its copy on the device is not the trainer's
    print(f"{options.n:,} Gaussians, {scene.visible:,.0f} rows a view, shuffled")
    for batch in options.batch:
        for row in lines_of(scene, renderer, batch, options):
            axes = {"gaussians": options.n, "size": list(options.size), "batch": batch}
            record.add(row.name, row.rates, "images/s", axes=axes, **row.facts)
        record.write()


if __name__ == "__main__":
    main()
