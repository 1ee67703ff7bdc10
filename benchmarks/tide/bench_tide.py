# SPDX-License-Identifier: Apache-2.0
"""What do rows in blocks cost a scene that would fit in one place?

Decides from which size on the tier of blocks is worth its overhead. The synthetic city trains as in
``train/bench_engine.py``, in ``--order``: all on the device (``none``), with appearance in host
memory (``best``), and in blocks: with slots for all of the blocks (``tide, slots``), with slots for
some and host memory for the others (``tide, host``), and with slots and a small arena for some of
those that views list (``tide, drive``). Everything in one process and one call; the ceiling is
``none``.

The last line has a bound of its own: ``tide, slots``, or the bytes that it read and wrote at the
rates of the drive, whichever is slower. These rates are measured before and after, with records as
large, and the means count. Before samples an epoch has trained all rows that views see, so that
their records are full. Each sample of the last line is an epoch at least: what it moves differs
from part to part of an epoch.

    PYTHONPATH=benchmarks:benchmarks/train python benchmarks/tide/bench_tide.py --n 5_000_000

Views that see all of a larger scene, each of its records full:

    ... bench_tide.py --n 75_000_000 --seen 480_000 --views 340 --overlap 0.25 --order tiles \
        --batch 4 --only none "tide, drive" --slots 0.23 --arena 16GiB

With ``--device-left 24GiB`` a process of its own holds the rest of the GPU's memory meanwhile.
A sample is the rate of a run of ``--seconds``, from an idle device to an idle device. The store is
made in ``--folder``, with 720 bytes a row. With ``--trace FOLDER`` each line runs on for a moment
after it was timed, with a trace that ``train/trace_shares.py`` explains.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
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
from memory_left import device_left

import workloads
from gs_train.backends import make_backend
from gs_train.blocks.stored_rows import StoredRows
from gs_train.engine.engine import Engine
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.renderers.tables import Direct
from gs_train.rows.morton import morton_order
from gs_train.sizes import parse_bytes
from gs_train.sizing.drive_rates import DriveRates, measure_drive
from gs_train.tide.block_room import stored_row_bytes
from gs_train.tide.engine import block_engine
from harness import Record, add_json_option

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as gs-train does

IN_SLOTS, IN_HOST, ON_DRIVE = "tide, slots", "tide, host", "tide, drive"
LINES = ("none", "best", IN_SLOTS, IN_HOST, ON_DRIVE)


MOVED = ("bytes_read", "bytes_written")

DRIVE_SECONDS = 2.0  # of writing, and of reading; a burst lasts less


@dataclass
class Row:
    """One line of the table.

    Attributes:
        rates: images a second of each run.
        facts: counters of the cache, the share of the time in which each track of a trace was
            busy, and what the drive moved.
    """

    name: str
    batch: int
    rates: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)


def measure(
    engine: Engine, renderer: Renderer, row: Row, scene: Scene, options: argparse.Namespace
) -> None:
    """Run an engine, and note its rates."""
    device, chosen = scene.views[0].K.device, settings(scene, row.batch)
    source, known = itertools.tee(batches(scene, row.batch, options.order))
    following = [next(source) for _ in range(2)]
    if row.name == ON_DRIVE:  # as a run does
        engine.model.foresee(lambda step: [scene.views[i] for i in next(known)], renderer)
    else:
        del known  # which would keep all batches

    def run(seconds: float, least: int) -> float:
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
                direct=Direct(None, row.batch),  # as a run with a fixed number of rows
                upcoming=[[scene.views[i] for i in after] for after in following],
            )  # fmt: skip
            n += 1
        engine.finish()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return n * row.batch / (time.perf_counter() - started)

    epoch = -(-len(scene.views) // row.batch)  # after which every block has come once
    least = epoch if row.name == ON_DRIVE else 3
    run(options.warm_up, epoch + 3)
    before, started = engine.model.traffic(), time.perf_counter()
    n_images = engine.stats.batches * row.batch
    row.rates = [run(options.seconds, least) for _ in range(options.samples)]
    n_images = engine.stats.batches * row.batch - n_images
    seconds, after = time.perf_counter() - started, engine.model.traffic()
    if after:
        row.facts |= {f"{name} an image": (after[name] - before[name]) / n_images for name in MOVED}
        row.facts["share of waits"] = (after["blocks_wait_s"] - before["blocks_wait_s"]) / seconds
    if options.trace is not None:
        path = options.trace / f"{row.name.replace(', ', '-')}-{row.batch}.json"
        engine.trace.start(path)
        run(options.seconds / 4, 3)
        engine.trace.write()
        busy = trace_shares.shares(trace_shares.read(path))
        row.facts |= {f"busy {track}": share for track, share in busy.items()}


def in_blocks(
    scene: Scene,
    renderer: Renderer,
    row: Row,
    store: Path,
    options: argparse.Namespace,
    in_slots: Row | None,
    *,
    is_last: bool,
) -> None:
    """Measure a line of rows in blocks, on a copy of the store; the last line on the store itself.

    Args:
        in_slots: the line with all blocks in slots, if it was measured before.
        is_last: nobody needs the store after that.
    """
    n_blocks = -(-len(scene.rows["sh0"]) // options.block_rows)
    slots, host = n_blocks, 256
    if row.name != IN_SLOTS:
        slots, host = max(1, int(options.slots * n_blocks)), n_blocks
    place = store if is_last else store.with_name("copy")
    if not is_last:
        shutil.copytree(store, place)
    each = options.block_rows * stored_row_bytes(3)
    if row.name == ON_DRIVE:
        used = n_used(scene, renderer, store)
        arena = None if options.arena is None else parse_bytes(options.arena, option="--arena")
        slots = max(1, int(options.slots * used))
        host = max(2, used // 10 if arena is None else arena // each)
        row.facts["used"] = used
    try:
        drives = [rates_of_drive(store.parent, each)] if row.name == ON_DRIVE else []
        with StoredRows.open(place, slots=slots, host_blocks=host, device=renderer.device) as rows:
            engine = block_engine(rows, renderer, most_listed=options.listed)
            measure(engine, renderer, row, scene, options)
            row.facts |= vars(rows.cache.stats)
        row.facts |= {"slots": slots, "places": host, "blocks": n_blocks}
        if drives:
            drives.append(rates_of_drive(store.parent, each))
            note_bound(row, drives, in_slots)
    finally:
        shutil.rmtree(place)


def n_used(scene: Scene, renderer: Renderer, store: Path) -> int:
    """Blocks that some view lists."""
    with StoredRows.open(store, slots=1, host_blocks=2, device=renderer.device) as rows:
        return len(rows.candidates(scene.views, renderer).ids)


def rates_of_drive(folder: Path, record_bytes: int) -> DriveRates:
    return measure_drive(folder, record_bytes, seconds=DRIVE_SECONDS)


def note_bound(row: Row, drives: list[DriveRates], in_slots: Row | None) -> None:
    """Images a second that the drive allows for what the line moved, and how near the line is to
    that or to the line with all blocks in slots."""
    read, written = (row.facts[f"{name} an image"] for name in MOVED)
    reads = statistics.mean(drive.read for drive in drives)
    writes = statistics.mean(drive.write for drive in drives)
    seconds = read / reads + written / writes
    of_drive = 1 / seconds if seconds else math.inf
    bound = of_drive if in_slots is None else min(of_drive, statistics.median(in_slots.rates))
    row.facts |= {"drive reads a second": reads, "drive writes a second": writes}
    if math.isfinite(bound):
        row.facts |= {"bound": bound, "of bound": statistics.median(row.rates) / bound}
        row.facts["drive is bound"] = float(bound == of_drive)


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
                torch.cuda.reset_peak_memory_stats()
            if row.name in PRESETS:
                engine = make_backend(
                    PRESETS[row.name], scene.rows, None, renderer=renderer, semantics="dense",
                    mem_limit=0.3,
                )  # fmt: skip
                measure(engine, renderer, row, scene, options)
                engine.model.close()
                del engine
            else:
                store = store or made(scene, Path(folder), batch, options)
                in_slots = next((one for one in rows if one.name == IN_SLOTS and one.rates), None)
                is_last = row is rows[-1]
                in_blocks(scene, renderer, row, store, options, in_slots, is_last=is_last)
            if renderer.device.type == "cuda":
                row.facts["peak_device_bytes"] = torch.cuda.max_memory_reserved()
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
        "--slots",
        type=float,
        default=0.5,
        help="share of blocks, of those that views list on the last line",
    )
    parser.add_argument("--arena", help="of the last line, such as 600MB (a tenth of these)")
    parser.add_argument("--order", choices=("shuffle", "tiles"), default="shuffle")
    parser.add_argument(
        "--listed", type=int, help="as block_engine's most_listed; 0: wait for rows in each step"
    )
    parser.add_argument("--seen", type=int, help="rows that a view sees, about (a fiftieth)")
    parser.add_argument("--overlap", type=float, default=0.72, help="of neighbours")
    parser.add_argument("--views", type=int, default=128)
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before the samples")
    parser.add_argument("--seconds", type=float, default=2.0, help="per sample")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--device-left", help="bytes of the device, such as 24GiB (all)")
    parser.add_argument("--folder", type=Path, help="for the store")
    parser.add_argument("--trace", type=Path, help="folder for a trace of each line")
    add_json_option(parser)
    options = parser.parse_args()
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
    record = Record(options.json, block_rows=options.block_rows)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    renderer = make_renderer("auto", RenderOptions())
    share = 0.02 if options.seen is None else options.seen / options.n
    city = workloads.city(options.n, share=share, device=device)
    city = city.reordered(morton_order(city.means))
    rows = {name: values.cpu() for name, values in workloads.attributes(city).items()}
    scene = make_scene(city, options.overlap, options.views, tuple(options.size), rows)
    del city  # its copy on the device is not the trainer's
    print(f"{options.n:,} Gaussians, {scene.visible:,.0f} rows a view, {options.order}")
    gc.collect()
    torch.cuda.empty_cache()
    given = options.device_left
    left = None if given is None else parse_bytes(given, option="--device-left")
    with device_left(left):
        for batch in options.batch:
            for row in lines_of(scene, renderer, batch, options):
                axes = {"gaussians": options.n, "size": list(options.size), "batch": batch}
                axes |= {"order": options.order, "device_left": given}
                record.add(row.name, row.rates, "images/s", axes=axes, **row.facts)
            record.write()


if __name__ == "__main__":
    main()
