# SPDX-License-Identifier: Apache-2.0
"""Does the host optimizer run at the memory's speed, and does a step cost what its rows cost?

Decides how many rows a batch may update while the GPU renders. The ceiling is the machine's memory
bandwidth, the best of three plain loops measured here; the peers, on the same tensors in the same
run, are torch's fused and default Adam and, where it is installed, DeepSpeed's CPUAdam. Beside
some of the rows stands what GS-Scale's kernel did on 16 cores, which says nothing on others.

    PYTHONPATH=benchmarks python benchmarks/adam/bench_host.py --json PATH
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator

import numpy as np
import torch
from host_report import Report, huge_gb, limits, timed
from host_table import SLEEP, WIDTH, Rows, Table, check, decay, random_rows, rows_in_runs

import gs_adam
from gs_adam import HostAdam, Worker
from gs_adam._tensors import as_ids
from harness import Record, add_json_option

UPDATE_BYTES, ABSENT_BYTES, LOOKAHEAD_BYTES, CATCH_UP_BYTES = 28, 24, 16, 16
# GB/s of GS-Scale's published kernel at one row in so many, measured once on a machine like those
# of docs/benchmarks.md: 16 cores whose plain loops move 113 GB/s.
GS_SCALE = {10: 30.0, 100: 24.0}


def default_rows() -> int:
    """20M where four tables of them leave room, else 1M."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 20_000_000 if free > 6 * 20_000_000 * WIDTH * 4 else 1_000_000


def bench_peers(table: Table, report: Report, samples: int) -> None:
    """All rows by others: what everything is compared with."""
    n_bytes = table.n_rows * WIDTH * UPDATE_BYTES
    fused = timed(table.torch_adam(fused=True).step, samples)
    report.fused = min(fused)
    # Its temporaries make it a hundred times slower than memory: one sample is enough.
    default = timed(table.torch_adam(foreach=False).step, 1)
    report.default = min(default)
    report.add("torch fused, all rows", fused, n_bytes)
    report.add("torch default, all rows", default, n_bytes)
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        print(f"{'DeepSpeed CPUAdam':50} not installed: pip install deepspeed to compare with it")
        return
    param = torch.nn.Parameter(table.values, requires_grad=False)
    param.grad = table.grads
    peer = DeepSpeedCPUAdam([param], lr=1e-4, eps=1e-15)
    report.add("DeepSpeed CPUAdam, all rows", timed(peer.step, samples), n_bytes)


def bench_dense(table: Table, report: Report, samples: int) -> None:
    """All rows, with gradients of all and of some."""
    n_bytes = table.n_rows * WIDTH * UPDATE_BYTES
    dense = table.host("dense")
    grads = table.split(table.grads)
    # Fused again, beside ours: both in the same minutes of a shared machine.
    report.add("torch fused, again", timed(table.torch_adam(fused=True).step, samples), n_bytes)
    report.add("gs-adam dense, all rows", timed(lambda: dense.step(grads=grads), samples), n_bytes)
    # And on memory as torch takes it, which is in small pages unless the system makes them large.
    own = Table(table.n_rows, table.threads, huge=False)
    report.add("torch fused, its own memory", timed(own.torch_adam(fused=True).step, 3), n_bytes)
    del own
    rows = random_rows(table.n_rows, table.n_rows // 10, np.random.default_rng(3))
    some = [g.contiguous() for g in table.split(table.grads[: len(rows)])]
    n_bytes -= (table.n_rows - len(rows)) * WIDTH * 4
    report.add(
        "gs-adam dense, 10% have gradients", timed(lambda: dense.step(rows, some), 3), n_bytes
    )


def bench_mask(table: Table, report: Report, samples: int) -> None:
    """Dense in parts, as a trainer does it: rows that no view sees by mask, then those seen."""
    dense = table.host("dense")
    seen = rows_in_runs(table.n_rows, table.n_rows * 6 // 100, np.random.default_rng(5))
    grads = table.split(table.grads[: len(seen)])
    unseen = torch.ones(table.n_rows, dtype=torch.bool)
    unseen[seen.long()] = False
    all_bytes = table.n_rows * WIDTH * ABSENT_BYTES

    def in_parts(first: torch.Tensor | None) -> None:
        step = dense.begin_step()
        dense.update(first, None, step=step)
        if first is not None:
            dense.update(seen, grads, step=step)
        dense.end_step(step)

    whole_bytes = table.n_rows * WIDTH * UPDATE_BYTES
    report.add(
        "torch fused, beside", timed(table.torch_adam(fused=True).step, samples), whole_bytes
    )
    own = table.split(table.grads)
    report.add(
        "gs-adam dense, whole step", timed(lambda: dense.step(None, own), samples), whole_bytes
    )
    report.add("gs-adam dense, no gradients", timed(lambda: in_parts(None), samples), all_bytes)
    report.add(
        "gs-adam dense by mask, all but 6% in runs of 32",
        timed(lambda: in_parts(unseen), samples),
        all_bytes + len(seen) * WIDTH * 4,
    )
    ids = timed(lambda: as_ids(unseen, table.n_rows), samples)
    report.add("of which the mask's ids", ids, table.n_rows + 4 * (table.n_rows - len(seen)))


def step_on(
    table: Table, report: Report, host: HostAdam, case: str, sets: list[torch.Tensor], samples: int
) -> None:
    """Time steps on sets of rows in turn, each of which slept 1 to 50 steps."""
    generator = torch.Generator().manual_seed(4)
    count = len(sets[0])
    slept = torch.randint(1, SLEEP + 1, (count,), dtype=torch.int32, generator=generator)
    grads = [g.contiguous() for g in table.split(table.grads[:count])]
    coming: Iterator[torch.Tensor] = itertools.cycle(sets)
    present = [sets[0]]

    def prepare() -> None:
        present[0] = next(coming)
        table.last_step[present[0].long()] = host.step_count - slept
        decay(host)

    seconds = timed(lambda: host.step(present[0], grads), max(samples, len(sets)), prepare)
    n_values = count * WIDTH
    report.add(case, seconds, n_values * UPDATE_BYTES, n_values * CATCH_UP_BYTES)


def bench_deferred(table: Table, report: Report, samples: int) -> None:
    """Some rows, each of which slept 1 to 50 steps under a decaying rate."""
    host = table.host("deferred")
    generator = np.random.default_rng(1)
    cases: list[tuple[int, str, Rows, int]] = [
        (10, "random", random_rows, 4),
        (10, "runs of 32", rows_in_runs, 4),
        (100, "random, one set again and again", random_rows, 1),
        (100, "random, rotating sets", random_rows, 24),
        (100, "runs of 32, rotating sets", rows_in_runs, 24),
    ]
    for part, kind, make, n_sets in cases:
        sets = [make(table.n_rows, table.n_rows // part, generator) for _ in range(n_sets)]
        step_on(table, report, host, f"gs-adam deferred, {100 // part}% {kind}", sets, samples)
        report.compare(f"GS-Scale's kernel at {100 // part}%, measured before", GS_SCALE[part])


def bench_lookahead(table: Table, report: Report, samples: int) -> None:
    """Rows of the next view, brought up to date into another buffer."""
    host = table.host("deferred")
    generator = np.random.default_rng(2)
    makers: list[tuple[str, Rows]] = [("random", random_rows), ("runs of 32", rows_in_runs)]
    for kind, make in makers:
        sets = [make(table.n_rows, table.n_rows * 43 // 2000, generator) for _ in range(8)]
        out = torch.zeros(len(sets[0]), WIDTH)
        coming = itertools.cycle(sets)
        table.last_step.random_(0, SLEEP).neg_().add_(host.step_count - 1)

        def look(coming: Iterator[torch.Tensor] = coming, out: torch.Tensor = out) -> None:
            host.lookahead(next(coming), out=table.split(out))

        n_values = out.numel()
        report.add(
            f"gs-adam lookahead, {len(out)} rows {kind}",
            timed(look, max(samples, 8)),
            n_values * LOOKAHEAD_BYTES,
        )


def bench_overheads(table: Table, report: Report, samples: int) -> None:
    """What does not depend on rows: small steps in a large table, a task's way to its start."""
    host = table.host("deferred")
    for count in (64, 4096):
        rows = torch.arange(count, dtype=torch.int32)
        grads = [g.contiguous() for g in table.split(table.grads[:count])]
        seconds = timed(lambda r=rows, g=grads: host.step(r, g), 20 * samples)
        report.add(f"gs-adam deferred, first {count} rows", seconds, count * WIDTH * UPDATE_BYTES)
    seconds = timed(lambda: host.end_step(host.begin_step()), 20 * samples)
    report.add("gs-adam deferred, begin and end", seconds, 0)
    started: list[float] = []
    waits: list[float] = []
    grads = [g[:1] for g in table.split(table.grads)]
    with Worker(host) as worker:
        step = host.begin_step()
        for row in range(20 * samples):
            time.sleep(2e-4)
            one = torch.tensor([row], dtype=torch.int32)
            begin = time.perf_counter()
            worker.wait(
                worker.submit(
                    one, grads, step=step, ready=lambda: started.append(time.perf_counter())
                )
            )
            waits.append(started[-1] - begin)
        host.end_step(step)
    report.add("gs-adam worker, submit to start", waits, 0)


CASES = {
    "peers": bench_peers,
    "dense": bench_dense,
    "mask": bench_mask,
    "deferred": bench_deferred,
    "lookahead": bench_lookahead,
    "overheads": bench_overheads,
}


def main() -> None:
    """Run the cases asked for."""
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=default_rows())
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--pages", choices=("huge", "small"), default="huge", help="what the tables lie in"
    )
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    check(options.threads)
    measured = limits(min(options.rows * WIDTH, 200_000_000))
    table = Table(options.rows, options.threads, huge=options.pages == "huge")
    print(
        f"{options.rows} rows x {WIDTH}, {options.threads} threads, "
        f"{gs_adam.build_info()['simd_used']}, {huge_gb():.1f} GB in large pages; "
        + ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in measured.items())
    )
    report = Report(max(measured.values()))
    for case in options.cases:
        CASES[case](table, report, options.samples)
    print(f"took {time.perf_counter() - begin:.0f} s")
    record.facts |= {
        "gs_adam": gs_adam.build_info(),
        "gb_in_large_pages": huge_gb(),
        "limits_gb_per_second": measured,
    }
    axes = {"rows": options.rows, "threads": options.threads, "pages": options.pages}
    report.add_to(record, axes)
    record.write()


if __name__ == "__main__":
    main()
