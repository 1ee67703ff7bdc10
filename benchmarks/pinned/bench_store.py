# SPDX-License-Identifier: Apache-2.0
"""How much of the drive's speed does a store of blocks reach, and which block size and threads?

Decides the block size, the threads and whether blocks should be larger than 64 rows. The ceiling is
the same drive with plain preadv and pwritev past the page cache: the same sizes, threads and random
order, in the same run, without checksums, index and arrays. Both take turns, sample by sample,
because drives and other programs change with time; the share is the median of these pairs.

    PYTHONPATH=benchmarks python benchmarks/pinned/bench_store.py --folder /data --json store.json

Takes twice `--bytes` of the folder, and removes what it wrote.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from samples import Result, arguments_of, save, show

from gs_pinned import BlockStore, BlockTicket, Plane
from gs_train.sizing.drive_rates import record_buffers
from harness import Record

WIDTH = 180  # floats of a row: 59 values with two moments, step, key and statistics
AT_ONCE = 256 << 20  # bytes of one call


class RawFile:
    """One file of records, moved past the page cache by threads of Python, which wait in calls."""

    def __init__(self, path: Path, record: int, records: int, threads: int) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(self.file, 0, record * records)
        self.record = record
        self.pool = ThreadPoolExecutor(threads)
        # A buffer for each thread; what is in it is written as it is.
        self.buffers = record_buffers(threads, record)
        for buffer in self.buffers:
            buffer[:] = os.urandom(record)

    def move(self, read: list[int], write: list[int]) -> None:
        jobs = [(i, False) for i in read] + [(i, True) for i in write]
        random.Random(1).shuffle(jobs)
        n = len(self.buffers)

        def work(thread: int) -> None:
            buffer = [self.buffers[thread]]
            for record, is_write in jobs[thread::n]:
                call = os.pwritev if is_write else os.preadv
                assert call(self.file, buffer, record * self.record) == self.record

        list(self.pool.map(work, range(n)))

    def close(self) -> None:
        self.pool.shutdown()
        os.close(self.file)


def in_turns(
    raw: Callable[[], None], store: Callable[[], None], repeats: int
) -> tuple[list[float], list[float]]:
    """Seconds of each run of both, one after the other."""
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for work, own in zip((raw, store), samples):
            start = time.perf_counter()
            work()
            own.append(time.perf_counter() - start)
    return samples


def measure(
    folder: Path, rows: int, threads: int, total: int, repeats: int
) -> tuple[list[Result], dict[str, float]]:
    planes = [Plane("rows", WIDTH)]
    size = (512 + rows * WIDTH * 4 + 4095) // 4096 * 4096
    n = total // size
    half = n // 2
    order = random.Random(0).sample(range(n), n)
    name = f"{size >> 10} KiB, {threads} threads"
    raw = RawFile(folder / "raw", size, n, threads)
    raw.move([], order)  # as the store below: the file's pages are there
    results: list[Result] = []

    def compare(
        what: str, n_bytes: int, plain: Callable[[], None], ours: Callable[[], None]
    ) -> None:
        theirs, own = in_turns(plain, ours, repeats)
        limit = f"raw {what}, {name}"
        share = statistics.median(a / b for a, b in zip(theirs, own))
        results.append(Result(limit, n_bytes, theirs))
        results.append(Result(f"store {what}, {name}", n_bytes, own, limit, notes={"share": share}))

    at_once = min(n, max(1, AT_ONCE // size))
    values = np.random.default_rng(0).standard_normal((at_once * rows, WIDTH), dtype="f4")
    # Results of the calls that may be on the way at once, made before the clock runs.
    results_of_reads = [np.zeros_like(values) for _ in range(4)]
    with BlockStore.create(folder / "store", planes, block_rows=rows, threads=threads) as store:

        def write(blocks: list[int]) -> None:
            tickets = []
            for first in range(0, len(blocks), at_once):
                part = blocks[first : first + at_once]
                tickets.append(store.write_async(part, {"rows": values[: len(part) * rows]}))
            for ticket in tickets:
                ticket.wait()

        def begin_read(blocks: list[int], call: int) -> BlockTicket:
            out = {"rows": results_of_reads[call % 4][: len(blocks) * rows]}
            return store.read_async(blocks, out=out)

        def read(blocks: list[int]) -> None:
            tickets: list[BlockTicket] = []
            for call, first in enumerate(range(0, len(blocks), at_once)):
                while len(tickets) > 1:
                    tickets.pop(0).wait()
                tickets.append(begin_read(blocks[first : first + at_once], call))
            for ticket in tickets:
                ticket.wait()

        def mixed() -> None:
            tickets: list[BlockTicket] = []
            for call, first in enumerate(range(0, half, at_once // 2 or 1)):
                while len(tickets) > 4:
                    tickets.pop(0).wait()
                part = slice(first, min(first + (at_once // 2 or 1), half))
                gone = order[half : 2 * half][part]
                tickets.append(store.write_async(gone, {"rows": values[: len(gone) * rows]}))
                tickets.append(begin_read(order[:half][part], call))
            for ticket in tickets:
                ticket.wait()

        write(order)  # the files grow
        compare("write", n * size, lambda: raw.move([], order), lambda: write(order))
        np.testing.assert_array_equal(store.read(order[:1])["rows"], values[:rows])
        compare("read", n * size, lambda: raw.move(order, []), lambda: read(order))
        both = order[:half], order[half : 2 * half]
        compare("mixed", 2 * half * size, lambda: raw.move(*both), mixed)
        start = time.perf_counter()
        store.snapshot()
        facts = {f"snapshot seconds, {name}": time.perf_counter() - start}
        start = time.perf_counter()
        store.snapshot()
        facts[f"second snapshot seconds, {name}"] = time.perf_counter() - start
        assert store.is_direct
    raw.close()
    (folder / "raw").unlink()
    for file in (folder / "store").iterdir():
        file.unlink()
    (folder / "store").rmdir()
    return results, facts


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--folder", type=Path, help="on the drive; a temporary one when left out")
    parser.add_argument("--bytes", type=int, default=2 << 30)
    parser.add_argument("--rows", type=int, nargs="+", default=[56, 256, 512, 1024])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        # One axis at a time around 1024 rows and 16 threads.
        pairs = {(rows, 16) for rows in arguments.rows}
        pairs |= {(1024, threads) for threads in arguments.threads}
        for rows, threads in sorted(pairs):
            lines, facts = measure(Path(made), rows, threads, arguments.bytes, arguments.repeats)
            results += lines
            record.facts |= facts
    show(results)
    for name, value in record.facts.items():
        print(f"{name}: {value}")
    save(record, results, bytes=arguments.bytes)


if __name__ == "__main__":
    main()
