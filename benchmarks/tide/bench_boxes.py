# SPDX-License-Identifier: Apache-2.0
"""How many blocks does a view list that hold no row which it sees, and how many do boxes of the
whole future of sleeping rows add?

Decides the size of blocks, and whether boxes need to be tighter. Listed blocks are read, moved and
tested row by row; only blocks that hold a visible row have to be. The floor is 1.

Rows train on made-up gradients with the recipe's rates, part steady, part noise, so that moments
are large and many rows sleep. Then every view is listed through boxes for ever, through boxes of
the present values, and through boxes of the present values of runs along the Morton curve.

    PYTHONPATH=benchmarks python benchmarks/tide/bench_boxes.py --n 1_000_000 --capture fox
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from homes import block_of_row
from torch import Tensor

from gs_train.blocks.boxes import BlockBoxes, SleepingValues
from gs_train.blocks.partition import Partition
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.stored_rows import StoredRows
from gs_train.data import load_capture
from gs_train.data.frame import Frame
from gs_train.options.schedule import LearningRates, adam_options
from gs_train.renderers import Renderer, RenderOptions, Rows, View, make_renderer
from gs_train.rows.attributes import GEOMETRY, GEOMETRY_WIDTH, NAMES, SHAPES
from gs_train.rows.morton import morton_order
from gs_train.scene.initialize import rows_from_points
from gs_train.scene.scene import Scene
from harness import Record, add_json_option
from workloads import city, scattered

_WIDTHS = [int(np.prod(SHAPES[name], dtype=np.int64)) for name in GEOMETRY]
N_VIEWS = 64
STEADY = 1.0
"""Of a gradient, beside noise of deviation 1: far more than in training, so that boxes are wide."""


@dataclass(frozen=True)
class Case:
    """Rows of geometry, views of these, and the radius that scales the rate of means."""

    name: str
    rows: Rows
    views: Sequence[View]
    extent: float


def of_city(n: int, share: float) -> Case:
    """The synthetic city from random places."""
    scene = city(n, share=share)
    flight = scattered(scene, N_VIEWS)
    views = [
        View(str(k), pose, K, flight.width, flight.height)
        for k, (pose, K) in enumerate(zip(flight.viewmats, flight.Ks))
    ]
    rows = {name: getattr(scene, name) for name in GEOMETRY}
    extent = Frame.from_cameras(flight.viewmats.double().numpy()).extent
    return Case(f"city, {share} a view", rows, views, extent)


def of_capture(folder: Path, copies: int, renderer: Renderer) -> Case:
    """The points of a capture, each several times within its own extent."""
    with tempfile.TemporaryDirectory() as made:
        capture = load_capture(folder, cache_dir=Path(made), max_side=800)
        scene = Scene.load(capture, torch.device("cpu"))
    rows = rows_from_points(
        scene.frame.points_in(capture.points), capture.colors,
        sh_degree=0, opacity=0.1, scale=1.0, seed=0,
    )  # fmt: skip
    more = {name: rows[name].repeat_interleave(copies, 0) for name in GEOMETRY}
    noise = torch.randn(more["means"].shape, generator=torch.Generator().manual_seed(0))
    more["means"] = more["means"] + noise * more["scales"].exp()
    more["scales"] = more["scales"] - 1.4
    return Case(f"{folder.name} x {copies}", more, scene.views, scene.frame.extent)


def rates_of(case: Case, batch_size: int) -> dict[str, float]:
    """By attribute, as a run begins."""
    own = LearningRates()
    factor = adam_options(batch_size, scaled=True).lr_factor
    return {
        name: getattr(own, name) * factor * (case.extent if name == "means" else 1.0)
        for name in NAMES
    }


def stored(
    folder: Path, case: Case, block_rows: int, rates: Mapping[str, float], batch_size: int
) -> StoredRows:
    """The rows in a store, without harmonics, with slots for all blocks."""
    n, options = len(case.rows["means"]), adam_options(batch_size, scaled=True)
    rows = {**case.rows, "sh0": torch.zeros(n, 1, 3), "shN": torch.zeros(n, 0, 3)}
    StoredRows.create(
        folder, rows, torch.arange(n, dtype=torch.int32), block_rows=block_rows,
        betas=options.betas, eps=options.eps, ceilings=rates,
    )  # fmt: skip
    return StoredRows.open(folder, slots=-(-n // block_rows) + 1, host_blocks=2)


def train(
    blocks: StoredRows,
    case: Case,
    renderer: Renderer,
    rates: Mapping[str, float],
    epochs: int,
    batch_size: int,
) -> dict[str, list[float]]:
    """Epochs of shuffled views; seconds of each part of a step."""
    draw = torch.Generator().manual_seed(0)
    steady = STEADY * torch.randn(len(blocks), GEOMETRY_WIDTH, generator=draw).sign()
    seconds: dict[str, list[float]] = {"look": [], "update and fit": []}
    for batch in batches(case.views, epochs, batch_size):
        start = time.perf_counter()
        look = blocks.look(batch, renderer)
        looked = time.perf_counter()
        noise = torch.randn(len(look.keys), GEOMETRY_WIDTH, generator=draw)
        parts = (steady[look.keys.long()] + noise).split(_WIDTHS, 1)
        gradients = {name: torch.zeros_like(values) for name, values in look.rows.items()}
        gradients |= dict(zip(GEOMETRY, parts, strict=True))
        began = time.perf_counter()
        blocks.update(look, gradients, rates)
        seconds["look"].append(looked - start)
        seconds["update and fit"].append(time.perf_counter() - began)
    return seconds


def batches(views: Sequence[View], epochs: int, batch_size: int) -> Iterator[list[View]]:
    """Shuffled epochs in whole batches."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        order = torch.randperm(len(views), generator=draw).tolist()
        for k in range(0, len(order) - batch_size + 1, batch_size):
            yield [views[i] for i in order[k : k + batch_size]]


def still(means: Tensor, scales: Tensor, partition: Partition) -> BlockBoxes:
    """Boxes of rows that do not move."""
    boxes, rows = BlockBoxes(len(partition)), partition.rows
    zero, last_step = torch.zeros(len(rows), 3), torch.zeros(len(rows), dtype=torch.int32)
    reach = SleepReach((0.9, 0.999), 1e-15, 0.0)
    parts = [
        SleepingValues(values[rows], zero, zero, last_step, reach) for values in (means, scales)
    ]
    which = np.arange(len(partition))
    boxes.fit(which, partition.counts, means=parts[0], scales=parts[1])
    return boxes


def along_morton(means: Tensor, block_rows: int) -> Partition:
    """Runs of rows along the curve."""
    n = len(means)
    offsets = np.append(np.arange(0, n, block_rows), n)
    return Partition(morton_order(means).numpy(), offsets)


def measure(case: Case, block_rows: int, renderer: Renderer, epochs: int, batch: int) -> Looseness:
    """Train, then list every view."""
    rates = rates_of(case, batch)
    options = adam_options(batch, scaled=True)
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        stored(Path(folder) / "store", case, block_rows, rates, batch) as blocks,
    ):
        found = Looseness(made=time.perf_counter() - start)
        found.seconds = train(blocks, case, renderer, rates, epochs, batch)
        ((keys, now),) = blocks.pieces()  # block after block
        counts = blocks.cache.counts(range(len(blocks.boxes)))
        place_of_key = keys.argsort().numpy()
        in_place = Partition(np.arange(len(keys)), np.append(0, counts.cumsum()))
        partitions = {"kd": in_place, "Morton": along_morton(now["means"], block_rows)}
        home = {name: block_of_row(p) for name, p in partitions.items()}
        boxes = {name: still(now["means"], now["scales"], p) for name, p in partitions.items()}
        idle = SleepReach(options.betas, options.eps, 0.0)
        for view in case.views:
            look = blocks.look([view], renderer)
            blocks.leave(look)
            if len(look.keys) == 0:
                continue
            places = place_of_key[look.keys.numpy()]
            holding = {name: np.unique(own[places]) for name, own in home.items()}
            listed = {
                name: own.candidates([view], renderer.options, idle, idle).ids
                for name, own in boxes.items()
            }
            ever = blocks.candidates([view], renderer).ids
            assert np.isin(holding["kd"], ever).all(), "a block is missing"
            assert np.isin(holding["kd"], listed["kd"]).all(), "a block is missing"
            n_holding = len(holding["kd"])
            found.visible.append(len(places))
            found.holding.append(n_holding)
            found.touched.append(counts[holding["kd"]].sum() / len(places))
            found.for_ever.append(len(ever) / n_holding)
            found.present.append(len(listed["kd"]) / n_holding)
            found.morton.append(len(listed["Morton"]) / len(holding["Morton"]))
            found.morton_touched.append(len(holding["Morton"]) * block_rows / len(places))
    return found


class Looseness:
    """Of views: visible rows, blocks that hold some, and by how much more are listed or touched."""

    def __init__(self, made: float) -> None:
        self.made = made
        self.seconds: dict[str, list[float]] = {}
        self.visible: list[float] = []
        self.holding: list[float] = []
        self.touched: list[float] = []
        self.for_ever: list[float] = []
        self.present: list[float] = []
        self.morton: list[float] = []
        self.morton_touched: list[float] = []


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000, help="Gaussians of the city")
    parser.add_argument("--share", type=float, nargs="*", default=[0.05, 0.01], help="of a view")
    parser.add_argument("--capture", type=Path, nargs="*", default=[], help="folders")
    parser.add_argument("--copies", type=int, default=16, help="of each point")
    parser.add_argument("--block-rows", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="views a step")
    add_json_option(parser)
    args = parser.parse_args()
    record, renderer = Record(args.json), make_renderer("cpu", RenderOptions())
    cases = [of_city(args.n, share) for share in args.share]
    cases += [of_capture(folder, args.copies, renderer) for folder in args.capture]
    print(
        f"{'scene':18s} {'batch':>5s} {'B':>5s} {'rows seen':>9s} {'holding':>7s} {'touched':>7s}  "
        f"for ever  now    Morton (touched)   build s, look ms, update ms"
    )
    for case in cases:
        for batch in args.batch:
            for block_rows in args.block_rows:
                found = measure(case, block_rows, renderer, args.epochs, batch)
                times = [1e3 * float(np.median(part)) for part in found.seconds.values()]
                print(
                    f"{case.name:18s} {batch:5d} {block_rows:5d} {mean(found.visible):9,.0f} "
                    f"{mean(found.holding):7,.0f} {mean(found.touched):7.2f}  "
                    f"{mean(found.for_ever):8.3f} {mean(found.present):6.3f}  "
                    f"{mean(found.morton):6.3f} {mean(found.morton_touched):9.2f}   "
                    f"{found.made:7.1f} {times[0]:8.1f} {times[1]:8.1f}",
                    flush=True,
                )
                axes = {"scene": case.name, "batch": batch, "block rows": block_rows}
                facts = {"visible": mean(found.visible), "holding": mean(found.holding)}
                unit = "listed over holding"
                record.add("for ever", found.for_ever, unit, axes=axes, **facts)
                record.add("now", found.present, unit, axes=axes, **facts)
                record.add("now, along Morton", found.morton, unit, axes=axes, **facts)
    record.write()


if __name__ == "__main__":
    main()
