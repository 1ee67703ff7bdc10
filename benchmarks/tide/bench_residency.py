# SPDX-License-Identifier: Apache-2.0
"""Which blocks should stay in memory: those that are needed next, those that were used last, or
those with the best score of both?

Decides what gs-train hints to ``gs_pinned.BlockCache``. A survey of the synthetic city asks for the
blocks of its views, batch by batch, in shuffled epochs, in tiles and along the flight. A cache on a
real store keeps a share of all blocks in memory by hints of each rule. The floor of blocks read is
that of Belady's rule on sets with the same room, simulated here: 1.

The score is TideGS's, after a description of it: ``weight`` for blocks of the next batch, and
(1 - weight) times 0.95 to the power of the steps since the last use; a quarter of the room is
dealt evenly to the views of the next batch before. TideGS draws without blocks that found no room;
here every block of a batch is brought.

    PYTHONPATH=benchmarks python benchmarks/tide/bench_residency.py --json residency.json

On a CPU of two cores this takes some minutes; with ``--n 100_000 --views 200 --shares 0.3``
seconds.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from homes import block_of_row
from numpy.typing import NDArray

import gs_cull
from gs_order import Upcoming, ViewSampler
from gs_pinned import BlockCache, BlockStore, Plane
from gs_train.blocks.partition import kd_partition
from harness import Record, add_json_option
from workloads import City, city, flight

Ids = NDArray[np.int64]
Batch = list[Ids]
"""The blocks of each view."""

EPOCHS = 4
"""Blocks read are counted without the first, which fills the memory, and the last, behind which
nothing is known."""

_DECAY, _SEEDED = 0.95, 0.25


class Rule(Protocol):
    """What a cache is told after each step."""

    def after(self, step: int, cache: BlockCache) -> None: ...


class LeastRecentlyUsed:
    """Nothing: the cache drops what was not used for longest."""

    def after(self, step: int, cache: BlockCache) -> None: ...


class NextUse:
    """The next uses, all of which are known."""

    def __init__(self, batches: Sequence[Batch], n_blocks: int) -> None:
        self._upcoming = Upcoming(n_blocks)
        self._first = self._upcoming.add([union(batch) for batch in batches])

    def after(self, step: int, cache: BlockCache) -> None:
        if step == 0:
            self._hint(cache, *self._first)
        self._hint(cache, *self._upcoming.advance())

    def _hint(self, cache: BlockCache, blocks: Ids, steps: Ids) -> None:
        is_known = (steps < Upcoming.NEVER) & (steps >= self._upcoming.step)
        cache.hint(blocks[is_known], steps[is_known])


class Score:
    """TideGS's score, as an order in which blocks leave.

    Args:
        room: blocks in memory.
        weight: of the next batch.
    """

    def __init__(self, batches: Sequence[Batch], n_blocks: int, room: int, weight: float) -> None:
        self._batches = batches
        self._room = room
        self._weight = weight
        self._last = np.full(n_blocks, -np.inf)

    def after(self, step: int, cache: BlockCache) -> None:
        self._last[union(self._batches[step])] = step
        following = self._batches[step + 1] if step + 1 < len(self._batches) else []
        score = (1 - self._weight) * _DECAY ** (step - self._last)
        score[union(following)] += self._weight
        for view in following:  # above all scores
            n_own = int(_SEEDED * self._room / len(following))
            score[view[np.argsort(-score[view], kind="stable")[:n_own]]] += 2
        order = np.argsort(-score, kind="stable")
        cache.hint(order, np.arange(len(order)))


def union(batch: Batch) -> Ids:
    return np.unique(np.concatenate([np.empty(0, np.int64), *batch]))


def blocks_of_views(scene: City, n_views: int, block_rows: int) -> tuple[list[Ids], int, Ids]:
    """The blocks that hold a row which each view sees, how many there are, and the poses."""
    keys = np.arange(len(scene.means), dtype=np.int32)
    partition = kd_partition(scene.means.numpy(), scene.scales.numpy(), keys, block_rows)
    home = block_of_row(partition)
    photos = flight(scene, n_views, overlap=0.6, sidelap=0.5)
    size = photos.width, photos.height
    lists = []
    for pose, K in zip(photos.viewmats, photos.Ks):
        ids = gs_cull.visible_ids(*scene.rows, pose, K, *size, opacities=scene.opacities)
        lists.append(np.unique(home[ids.numpy()]))
    return lists, len(partition), photos.viewmats.numpy()


def batches_in(
    order: str, lists: list[Ids], poses: NDArray[np.float32], batch_size: int
) -> list[Batch]:
    """Of all epochs."""
    n_steps = EPOCHS * (len(lists) // batch_size)
    if order == "flight":
        places = np.arange(n_steps * batch_size).reshape(-1, batch_size) % len(lists)
        return [[lists[view] for view in views] for views in places]
    sampler = ViewSampler(
        len(lists), batch_size, order=order, cameras=poses, n_steps=n_steps,  # type: ignore[arg-type]
    )  # fmt: skip
    return [[lists[view] for view in views] for views in sampler]


def read_by_cache(
    store: BlockStore, batches: Sequence[Batch], room: int, rule: Rule
) -> Iterator[int]:
    """Blocks read from disk in each step."""
    n_slots = max(len(union(batch)) for batch in batches)
    row = np.zeros((n_slots, 1), np.float32)
    with BlockCache(store, {"row": row}, host_blocks=max(2, room - n_slots)) as cache:
        before = 0
        for step, batch in enumerate(batches):
            blocks = union(batch)
            cache.bring(blocks)
            cache.release(blocks, changed=False)
            rule.after(step, cache)
            yield cache.stats.read - before
            before = cache.stats.read


def least_read(batches: Sequence[Batch], room: int) -> Iterator[int]:
    """Blocks that Belady's rule reads in each step, where a batch's blocks are there together."""
    sets = [union(batch) for batch in batches]
    following = next_steps(sets)
    in_memory: set[int] = set()
    due: dict[int, int] = {}
    leaving: list[tuple[int, int]] = []  # heap of (- next step, block), some of them outdated
    for step, blocks in enumerate(sets):
        missing = [block for block in blocks.tolist() if block not in in_memory]
        wanted = set(blocks.tolist())
        while len(in_memory) + len(missing) > room:
            soonest, block = heapq.heappop(leaving)
            if block in in_memory and block not in wanted and due[block] == -soonest:
                in_memory.remove(block)
        in_memory.update(missing)
        for block, later in zip(blocks.tolist(), following[step].tolist()):
            due[block] = later
            heapq.heappush(leaving, (-later, block))
        yield len(missing)


def next_steps(sets: Sequence[Ids]) -> list[Ids]:
    """For each block of each set, the step that has it next; the number of sets where none does."""
    later: dict[int, int] = {}
    found = []
    for step in range(len(sets) - 1, -1, -1):
        blocks = sets[step].tolist()
        found.append(np.array([later.get(block, len(sets)) for block in blocks], np.int64))
        later.update(dict.fromkeys(blocks, step))
    return found[::-1]


def counted(reads: Iterator[int], n_steps: int) -> list[float]:
    """Of each epoch between the first and the last, the mean of its steps."""
    by_epoch = np.array(list(reads), float).reshape(EPOCHS, n_steps // EPOCHS)
    return [float(reads) for reads in by_epoch[1:-1].mean(axis=1)]


def rules_of(batches: Sequence[Batch], n_blocks: int, room: int) -> dict[str, Callable[[], Rule]]:
    return {
        "next use": lambda: NextUse(batches, n_blocks),
        "least recently used": LeastRecentlyUsed,
        "score, 0.7": lambda: Score(batches, n_blocks, room, 0.7),
        "score, 0.3": lambda: Score(batches, n_blocks, room, 0.3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=500_000, help="Gaussians of the city")
    parser.add_argument("--share", type=float, default=0.004, help="of these that a view sees")
    parser.add_argument("--views", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--block-rows", type=int, default=128)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.35, 0.5])
    parser.add_argument("--orders", nargs="+", default=["shuffle", "tiles", "flight"])
    add_json_option(parser)
    options = parser.parse_args()
    scene = city(options.n, share=options.share)
    lists, n_blocks, poses = blocks_of_views(scene, options.views, options.block_rows)
    n_touched = len(union(lists))
    record = Record(options.json, n=options.n, views=options.views, batch=options.batch_size)
    a_view = float(np.mean([len(blocks) for blocks in lists]))
    record.facts |= {"block_rows": options.block_rows, "blocks": n_blocks}
    record.facts |= {"blocks_seen": n_touched, "blocks_a_view": a_view}
    print(f"{n_touched:,} of {n_blocks:,} blocks are seen, {a_view:.0f} a view")
    print(f"{'order':>8s} {'share':>6s}  {'rule':20s} {'blocks read a step':>19s} {'of least':>9s}")
    with tempfile.TemporaryDirectory() as folder:
        planes = [Plane("row", 1)]
        with BlockStore.create(Path(folder) / "store", planes, block_rows=1, threads=4) as store:
            store.write(range(n_blocks), {"row": np.zeros((n_blocks, 1), np.float32)})
            store.snapshot()
            for order in options.orders:
                batches = batches_in(order, lists, poses, options.batch_size)
                for share in options.shares:
                    room = int(share * n_touched)
                    if room < max(len(union(batch)) for batch in batches):
                        print(f"{order:>8s} {share:6.2f}  is less than the blocks of a batch")
                        continue
                    axes = {"order": order, "share": share}
                    least = counted(least_read(batches, room), len(batches))
                    record.add("least", least, "blocks", axes=axes, room=room)
                    for name, rule in rules_of(batches, n_blocks, room).items():
                        own = counted(read_by_cache(store, batches, room, rule()), len(batches))
                        record.add(name, own, "blocks", axes=axes, room=room)
                        mean, ratio = np.mean(own), sum(own) / max(sum(least), 1e-9)
                        print(f"{order:>8s} {share:6.2f}  {name:20s} {mean:19.1f} {ratio:9.2f}")
                record.write()


if __name__ == "__main__":
    main()
