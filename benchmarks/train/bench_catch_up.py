# SPDX-License-Identifier: Apache-2.0
"""Which way should rows that slept take to the device?

Decides what the engine does with a batch that the host updates. Either their table is brought up to
date, and a kernel gathers them from there; or their present values are computed into a page-locked
slot of a ring, which one plain copy sends. The first writes moments too, but spares the update that
follows its own catching up; the second reads the table once and sends rows side by side.

Without a device the link is a copy within the host's memory.

    PYTHONPATH=benchmarks python benchmarks/train/bench_catch_up.py --n 20_000_000
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import gs_adam
import gs_pinned
from harness import Record, add_json_option

WIDTH, RATES, SLEPT, SETS = 48, (2.5e-3, 1.25e-4), 50, 7
WAYS = TABLE, RING = "table, then gather", "ring, then copy"


def split(rows: Tensor) -> list[Tensor]:
    """``sh0`` and ``shN``."""
    return [rows[:, :3], rows[:, 3:]]


def chosen(n: int, count: int, run: int, sets: int) -> list[Tensor]:
    """Sets of (about count,) sorted ids in random runs, no row in two of them."""
    shuffled = torch.randperm(n // run, generator=torch.Generator().manual_seed(0))
    return [
        (run * starts.sort().values[:, None] + torch.arange(run)).flatten().int()
        for starts in shuffled.split(count // run)[:sets]
    ]


class Scene:
    """A table of rows, most of which sleep, and their optimizer."""

    def __init__(self, n: int, device: torch.device) -> None:
        self.device = device
        self.table = gs_pinned.Table(n, WIDTH)
        values = self.table.torch()
        self.last_step = torch.zeros(n, dtype=torch.int32)
        moments = [torch.empty(n, WIDTH) for _ in range(2)]
        for first in range(0, n, 1 << 16):
            part = slice(first, first + (1 << 16))
            for rows in (values, *moments):
                rows[part].normal_()
            moments[1][part].square_()
        self.adam = gs_adam.HostAdam(
            [{"params": [p], "lr": lr} for p, lr in zip(split(values), RATES, strict=True)],
            state={
                "exp_avg": split(moments[0]),
                "exp_avg_sq": split(moments[1]),
                "last_step": self.last_step,
            },
        )
        for _ in range(2 * SLEPT):
            self.adam.end_step(self.adam.begin_step())

    def put_to_sleep(self, ids: Tensor) -> None:
        slept = torch.randint(1, SLEPT + 1, (len(ids),), dtype=torch.int32)
        self.last_step[ids.long()] = self.adam.step_count - slept

    def seconds(self, call: Callable[[], object]) -> float:
        started = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


def measure(scene: Scene, count: int, run: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each way's parts, each of rows that no cache holds any more.

    The ways take turns with a set of rows each. All sets are caught up and sent before the first
    is updated, as in training, where a batch lies between the two.
    """
    sets = chosen(len(scene.table), count, run, 2 * SETS)
    rows = len(sets[0])
    slot = torch.empty(rows, WIDTH, pin_memory=scene.device.type == "cuda")
    grads = split(torch.randn(rows, WIDTH) * 1e-3)
    arrived = torch.empty(rows, WIDTH, device=scene.device)
    parts: dict[str, dict[str, list[float]]] = {
        way: {part: [] for part in ("catch up", "link", "update")} for way in WAYS
    }

    def noted(way: str, part: str, call: Callable[[], object]) -> None:
        parts[way][part].append(scene.seconds(call))

    for ids in sets:
        scene.put_to_sleep(ids)
    for table_ids, ring_ids in zip(sets[::2], sets[1::2], strict=True):
        there = table_ids.to(scene.device)
        noted(TABLE, "catch up", partial(scene.adam.flush, table_ids))
        noted(TABLE, "link", partial(gs_pinned.gather, scene.table, there, arrived))
        noted(RING, "catch up", partial(scene.adam.lookahead, ring_ids, out=split(slot)))
        noted(RING, "link", partial(arrived.copy_, slot, non_blocking=True))
    step = scene.adam.begin_step()
    for k, ids in enumerate(sets):
        noted(WAYS[k % 2], "update", partial(scene.adam.update, ids, grads, step=step))
    scene.adam.end_step(step)
    return {
        way: {name: [1e3 * s for s in found[1:]] for name, found in of_way.items()}
        for way, of_way in parts.items()
    }


def main() -> None:
    """Print both ways, for rows at random and in runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000_000)
    parser.add_argument("--visible", type=int, default=430_000)
    add_json_option(parser)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scene = Scene(arguments.n, device)
    print(f"{arguments.visible:,} of {arguments.n:,} rows that slept 1 to {SLEPT} steps, {device}")
    print(f"{'rows':12} {'way':20} {'catch up':>9} {'link':>7} {'update':>7} {'host':>7}  ms")
    for name, run in (("random", 1), ("runs of 32", 32)):
        for way, samples in measure(scene, arguments.visible, run).items():
            ms = {part: statistics.median(found) for part, found in samples.items()}
            for part, found in samples.items():
                axes = {"gaussians": arguments.n, "visible": arguments.visible, "rows": name}
                record.add(part, found, "ms", axes=axes | {"way": way})
            print(
                f"{name:12} {way:20} {ms['catch up']:9.2f} {ms['link']:7.2f} {ms['update']:7.2f} "
                f"{ms['catch up'] + ms['update']:7.2f}"
            )
    record.write()


if __name__ == "__main__":
    main()
