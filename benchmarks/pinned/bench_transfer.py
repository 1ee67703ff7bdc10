# SPDX-License-Identifier: Apache-2.0
"""Do rows cross the link at the speed of the link?

Decides whether rows are gathered by kernels that read host memory or packed by the host first, how
many thread blocks that takes, and whether gradients may leave while rows arrive. The ceiling is
cudaMemcpyAsync of the same bytes; the peer is what torch offers: index_select on the host into
page-locked memory, then a copy. Without a device: the same gather by threads against memcpy.

    PYTHONPATH=benchmarks python benchmarks/pinned/bench_transfer.py --json transfer.json
"""

from __future__ import annotations

import itertools
import os

# Threads of torch that spin after their work would take the processors from what runs next.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from samples import Result, arguments_of, host_seconds, save, show, stream_seconds

import gs_pinned
from gs_pinned import Ring, Table
from harness import Record

WIDTH = 48  # 192 bytes a row: the appearance of one Gaussian
RUN = 32  # rows that follow one another when a scene is kept in Morton order
SEED = 0


def choose(rows: int, share: float, run: int = 1) -> np.ndarray[Any, Any]:
    """Sorted ids of a share of the rows, in runs."""
    starts = np.flatnonzero(np.random.default_rng(SEED).random(rows // run) < share)
    return (starts[:, None] * run + np.arange(run)).ravel().astype(np.int32)


def on_host(rows: int, repeats: int) -> list[Result]:
    table = Table(rows, WIDTH)
    table.numpy()[:, 0] = np.arange(rows) % 1000
    results = []
    for name, ids in (
        ("5 % sorted", choose(rows, 0.05)),
        ("1 % sorted", choose(rows, 0.01)),
        (f"5 % in runs of {RUN}", choose(rows, 0.05, RUN)),
    ):
        out = np.zeros((len(ids), WIDTH), "f4")
        # As many rows in one piece, another each time: rows of the table are in no cache either.
        pieces = itertools.cycle(
            np.split(table.numpy()[: rows // len(ids) * len(ids)], rows // len(ids))
        )
        peer_ids, peer_out = torch.from_numpy(ids), torch.from_numpy(np.zeros_like(out))
        gs_pinned.gather(table, ids, out)
        np.testing.assert_array_equal(out, table.numpy()[ids])
        works: dict[str, Callable[[], object]] = {
            "memcpy": lambda out=out, pieces=pieces: np.copyto(out, next(pieces)),
            "gather": partial(gs_pinned.gather, table, ids, out),
            "scatter": partial(gs_pinned.scatter, out, ids, table),
            "scatter_add": partial(gs_pinned.scatter_add, out, ids, table),
            "torch index_select": partial(
                torch.index_select, table.torch(), 0, peer_ids, out=peer_out
            ),
        }
        seconds: dict[str, list[float]] = {key: [] for key in works}
        for _ in range(repeats):  # in turns, so that a disturbance meets all of them
            for key, work in works.items():
                seconds[key] += host_seconds(work, 1, warm_up=0)
        limit = f"host memcpy, bytes of {name}"
        for key, samples in seconds.items():
            label = limit if key == "memcpy" else f"host {key}, {name}"
            results.append(
                Result(label, out.nbytes, samples, limit="" if key == "memcpy" else limit)
            )
        target = 0.8 * results[-len(works)].rate
        results[-len(works) + 1].target = round(target, 1)
    return results


def on_device(rows: int, repeats: int) -> list[Result]:
    table = Table(rows, WIDTH, pinned=True, fields={"sh0": (1, 3), "shN": (15, 3)})
    table.numpy()[:, 0] = np.arange(rows) % 1000
    stream = torch.cuda.Stream()
    results: list[Result] = []
    five, one, runs = choose(rows, 0.05), choose(rows, 0.01), choose(rows, 0.05, RUN)
    out = torch.empty(max(len(five), len(runs)), WIDTH, device="cuda")
    staging = torch.empty(out.shape, pin_memory=True)

    def timed(name: str, size: int, work: Callable[[], object], **options: Any) -> None:
        seconds = stream_seconds(work, stream, repeats)
        results.append(Result(name, size, seconds, **options))

    def copy(to: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def by_torch(ids: torch.Tensor, host: torch.Tensor, there: torch.Tensor) -> None:
        torch.index_select(table.torch(), 0, ids, out=host)
        copy(there, host)
        stream.synchronize()

    for name, ids in (("5 %", five), ("1 %", one)):
        size, dense, host = len(ids) * WIDTH * 4, out[: len(ids)], staging[: len(ids)]
        timed(f"cudaMemcpyAsync to device, {name}", size, partial(copy, dense, host))
        timed(f"cudaMemcpyAsync to host, {name}", size, partial(copy, host, dense))

    to_device, to_host = "cudaMemcpyAsync to device, 5 %", "cudaMemcpyAsync to host, 5 %"
    to_device_one = "cudaMemcpyAsync to device, 1 %"
    for name, ids, target, limit in (
        ("5 % sorted", five, 48.0, to_device),
        ("1 % sorted", one, 25.0, to_device_one),
        (f"5 % in runs of {RUN}", runs, 52.0, to_device),
    ):
        size, there, chosen = len(ids) * WIDTH * 4, out[: len(ids)], torch.from_numpy(ids).cuda()
        gs_pinned.gather(table, chosen, there)
        torch.testing.assert_close(there[:, 0].cpu(), table.torch()[ids, 0], rtol=0, atol=0)
        timed(
            f"gather {name}",
            size,
            partial(gs_pinned.gather, table, chosen, there, stream=stream),
            limit=limit,
            target=target,
        )
        parts = {
            "sh0": torch.empty(len(ids), 1, 3, device="cuda"),
            "shN": torch.empty(len(ids), 15, 3, device="cuda"),
        }
        gs_pinned.gather(table, chosen, parts)
        assert torch.equal(parts["sh0"][:, 0, 0], there[:, 0])
        timed(
            f"gather into sh0 and shN {name}",
            size,
            partial(gs_pinned.gather, table, chosen, parts, stream=stream),
            limit=limit,
            target=round(0.95 * results[-1].rate, 1),
        )
        timed(
            f"scatter {name}",
            size,
            partial(gs_pinned.scatter, there, chosen, table, stream=stream),
            limit=to_host,
            target=target,
        )
        timed(
            f"scatter_add {name}",
            size,
            partial(gs_pinned.scatter_add, there, chosen, table, stream=stream),
            limit=to_host,
        )
        peer, on_the_host = torch.from_numpy(ids).long(), staging[: len(ids)]

        seconds = host_seconds(
            partial(by_torch, peer, on_the_host, there), max(3, repeats // 4), warm_up=1
        )
        results.append(Result(f"torch index_select + copy {name}", size, seconds, limit=limit))

    shuffled = torch.from_numpy(np.random.default_rng(1).permutation(one)).cuda()
    timed(
        "gather 1 % in random order",
        len(one) * WIDTH * 4,
        partial(gs_pinned.gather, table, shuffled, out[: len(one)], stream=stream),
        limit=to_device_one,
    )
    chosen, there = torch.from_numpy(five).cuda(), out[: len(five)]
    size = len(five) * WIDTH * 4
    for blocks in (1, 2, 4, 32):
        timed(
            f"gather 5 % sorted, {blocks} blocks",
            size,
            partial(gs_pinned.gather, table, chosen, there, stream=stream, max_blocks=blocks),
            limit=to_device,
        )
    timed(
        "gather of a slice (copy engine)",
        size,
        partial(gs_pinned.gather, table, slice(7, 7 + len(five)), there, stream=stream),
        limit=to_device,
    )

    ring = Ring(3 * out.numel() * 4 + 1024)

    def store(values: Any, order: torch.Tensor | None, blocks: int | None) -> None:
        gs_pinned.store_compact(values, order, ring, stream=stream, max_blocks=blocks).release()

    positions = torch.arange(0, len(five), 2, device="cuda", dtype=torch.int32)
    gradients = {
        "sh0": torch.ones(len(five), 1, 3, device="cuda"),
        "shN": torch.ones(len(five), 15, 3, device="cuda"),
    }
    for name, values, order, blocks in (
        ("all rows (copy engine)", there, None, None),
        ("all rows, 2 blocks", there, None, 2),
        ("every second row", there, positions, None),
        ("every second row, 4 blocks", there, positions, 4),
        ("sh0 and shN joined", gradients, None, None),
        ("sh0 and shN joined, 4 blocks", gradients, None, 4),
    ):
        timed(
            f"store_compact, {name}",
            size if order is None else len(order) * WIDTH * 4,
            partial(store, values, order, blocks),
            limit=to_host,
            target=52.0,
        )
    for name, ids in (("5 % sorted", five), (f"runs of {RUN}", runs)):
        for kind, indexed, stored_by in (
            ("copy engine", False, None),
            ("2 blocks", False, 2),
            ("indexed", True, None),
        ):
            for blocks in (16, 32):
                label = f"{name}, {blocks}; store by {kind}"
                results += both_ways(table, ids, ring, label, blocks, stored_by, indexed, repeats)
    for name, run in (("5 % sorted", 1), (f"runs of {RUN}", RUN)):
        results.append(changing_places(table, name, run, stream, repeats))
    for kind, stored_by in (("copy engine", None), ("2 blocks", 2)):
        results += beside_rendering(table, chosen, there, ring, kind, stored_by, repeats)
    return results


def both_ways(
    table: Table,
    ids: np.ndarray[Any, Any],
    ring: Ring,
    label: str,
    blocks: int,
    stored_by: int | None,
    indexed: bool,
    repeats: int,
) -> list[Result]:
    """A gather and a store at once, several of each, while both directions are busy."""
    up, down = torch.cuda.Stream(), torch.cuda.Stream()
    chosen, out = torch.from_numpy(ids).cuda(), torch.empty(len(ids), WIDTH, device="cuda")
    leaving = torch.ones_like(out)
    size, times = out.numel() * 4, 8
    order = torch.arange(len(ids), device="cuda", dtype=torch.int32) if indexed else None
    samples: tuple[list[float], list[float]] = ([], [])
    for run in range(repeats // 4 + 1):
        begin, *after = (torch.cuda.Event(enable_timing=True) for _ in range(1 + 2 * times))
        ends = after[:times], after[times:]
        torch.cuda.synchronize()
        begin.record(up)
        down.wait_event(begin)
        # All gathers first: a store may have to wait for room in the ring.
        for end in ends[0]:
            gs_pinned.gather(table, chosen, out, stream=up, max_blocks=blocks)
            end.record(up)
        for end in ends[1]:
            gs_pinned.store_compact(
                leaving, order, ring, stream=down, max_blocks=stored_by
            ).release()
            end.record(down)
        torch.cuda.synchronize()
        if run == 0:
            continue
        clocks = [[0.0, *(begin.elapsed_time(end) / 1e3 for end in side)] for side in ends]
        # The first copies are left out, since the stores may begin later.
        window = max(clock[1] for clock in clocks), min(clock[-1] for clock in clocks)
        assert window[0] < window[1], "one side had ended before the other one began"
        for clock, taken in zip(clocks, samples):
            copies = np.interp(window, clock, range(len(clock)))
            taken.append((window[1] - window[0]) / (copies[1] - copies[0]))
    names = (f"up: {label}", f"down: {label}")
    return [Result(name, size, taken, target=42.0) for name, taken in zip(names, samples)]


def changing_places(
    table: Table, name: str, run: int, stream: torch.cuda.Stream, repeats: int
) -> Result:
    """A twentieth of the rows comes while as many leave the slots that they come to."""
    rows = choose(table.rows, 0.1, run).reshape(-1, run)
    turn = np.random.default_rng(1).random(len(rows)) < 0.5
    n = min(turn.sum(), (~turn).sum())
    stored, loaded = (torch.from_numpy(rows[half][:n].ravel()).cuda() for half in (turn, ~turn))
    slots = torch.arange(len(loaded), dtype=torch.int32, device="cuda")
    array = torch.ones(len(loaded), WIDTH, device="cuda")
    seconds = stream_seconds(
        partial(gs_pinned.exchange, [table], [array], stored, loaded, slots, stream=stream),
        stream,
        repeats,
    )
    return Result(f"exchange, {name}, each way", array.numel() * 4, seconds, target=42.0)


def beside_rendering(
    table: Table,
    chosen: torch.Tensor,
    out: torch.Tensor,
    ring: Ring,
    kind: str,
    stored_by: int | None,
    repeats: int,
) -> list[Result]:
    """How much slower kernels that fill the device become while copies run at full speed."""
    compute, up, down = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    b, vector = torch.randn(4096, 4096, device="cuda"), torch.randn(1 << 27, device="cuda")
    leaving = torch.ones_like(out)

    def render() -> None:
        with torch.cuda.stream(compute):
            for _ in range(4):
                torch.mm(a, b)  # bound by arithmetic
                vector.mul_(1.0)  # bound by device memory

    alone = stream_seconds(render, compute, repeats)
    beside: list[float] = []
    for _ in range(repeats):
        # Copies from before to after the rendering, both ways.
        for _ in range(4):
            gs_pinned.gather(table, chosen, out, stream=up)
        for _ in range(3):
            gs_pinned.store_compact(
                leaving, None, ring, stream=down, max_blocks=stored_by
            ).release()
        beside += stream_seconds(render, compute, 1, warm_up=0)
        torch.cuda.synchronize()
    slower = sorted(beside)[len(beside) // 2] / sorted(alone)[len(alone) // 2] - 1
    size = 4 * (3 * 4096 * 4096 + 2 * vector.numel()) * 4
    note = {"slower": slower, "slower_target": 0.10}
    name = f"rendering beside gathers and stores by {kind}"
    print(f"{name}: {100 * slower:.1f} % slower (target: at most 10 %)")
    return [
        Result(f"rendering, {kind}: alone", size, alone),
        Result(name, size, beside, limit=f"rendering, {kind}: alone", notes=note),
    ]


def main() -> None:
    parser = arguments_of(__doc__)
    has_device = torch.cuda.is_available()
    parser.add_argument("--rows", type=int, default=40_000_000 if has_device else 4_000_000)
    parser.add_argument("--host-rows", type=int, default=None, help="0: only the device's part")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    results = on_device(arguments.rows, arguments.repeats) if has_device else []
    host_rows = arguments.host_rows
    if host_rows is None:
        host_rows = min(arguments.rows, 10_000_000)
    if host_rows > 0:
        results += on_host(host_rows, arguments.repeats)
    show(results)
    save(record, results, rows=arguments.rows, host_rows=host_rows, width=WIDTH)


if __name__ == "__main__":
    main()
