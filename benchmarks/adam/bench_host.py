# SPDX-License-Identifier: Apache-2.0
"""Does the host optimizer run at the memory's speed, and does a step cost what its rows cost?

Decides how many rows a batch may update while the GPU renders. The ceiling is the machine's memory
bandwidth, measured here as a triad; the peers, on the same tensors in the same run, are torch's
fused and default Adam and, where it is installed, DeepSpeed's CPUAdam. A value that is updated
counts 28 bytes (read w, m, v and gradient; write w, m, v), one that is looked ahead 16.

    python benchmarks/adam/bench_host.py [--rows N] [--threads T] [--json PATH]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gs_adam
from gs_adam import HostAdam, Worker

WIDTH = 48
RATES = (2.5e-3, 1.25e-4)
UPDATE_BYTES, LOOKAHEAD_BYTES = 28, 16
SLEEP = 50
DECAY = 0.999


def default_rows() -> int:
    """20M where four tables of them leave room, else 1M."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 20_000_000 if free > 6 * 20_000_000 * WIDTH * 4 else 1_000_000


def timed(call: Callable[[], object], samples: int, before: Callable[[], object]) -> list[float]:
    """Seconds of each call; ``before`` runs untimed ahead of it."""
    seconds = []
    for _ in range(samples + 1):
        before()
        # torch's idle threads spin for some milliseconds and would take the cores from this call.
        time.sleep(0.01)
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def nothing() -> None:
    """Nothing to prepare."""


def random_rows(n_rows: int, share: float, generator: np.random.Generator) -> torch.Tensor:
    """Sorted random ids."""
    ids = generator.choice(n_rows, int(n_rows * share), replace=False, shuffle=False)
    return torch.from_numpy(np.sort(ids).astype(np.int32))


def rows_in_runs(n_rows: int, share: float, generator: np.random.Generator) -> torch.Tensor:
    """Sorted ids in random runs of 32."""
    starts = random_rows(n_rows // 32, share, generator).numpy() * 32
    return torch.from_numpy((starts[:, None] + np.arange(32, dtype=np.int32)).ravel())


class Table:
    """Rows of 48 floats in two groups, their moments, and optimizers on the same memory."""

    def __init__(self, n_rows: int, threads: int) -> None:
        self.n_rows = n_rows
        self.values, self.exp_avg, self.exp_avg_sq = (
            torch.empty(n_rows, WIDTH).normal_() for _ in range(3)
        )
        self.exp_avg_sq.square_()
        self.grads = torch.empty(n_rows, WIDTH).normal_()
        self.last_step = torch.zeros(n_rows, dtype=torch.int32)
        self.threads = threads

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The two groups' columns."""
        return [tensor[:, :3], tensor[:, 3:]]

    def host(self, semantics: str) -> HostAdam:
        """Our optimizer; deferred has taken enough empty steps for rows to have slept."""
        state: dict[str, Any] = {
            "exp_avg": self.split(self.exp_avg),
            "exp_avg_sq": self.split(self.exp_avg_sq),
        }
        if semantics == "deferred":
            state["last_step"] = self.last_step
        groups = [
            {"params": [p], "lr": lr} for p, lr in zip(self.split(self.values), RATES, strict=True)
        ]
        host = HostAdam(groups, semantics=semantics, threads=self.threads, state=state)
        if semantics == "deferred":
            for _ in range(2 * SLEEP):
                host.end_step(host.begin_step())
                decay(host)
        return host

    def torch_adam(self, **options: Any) -> torch.optim.Adam:
        """torch's, one group, on the same values and moments."""
        param = torch.nn.Parameter(self.values, requires_grad=False)
        param.grad = self.grads
        adam = torch.optim.Adam([param], lr=RATES[1], eps=1e-15, **options)
        adam.state[param] = {
            "step": torch.tensor(100.0),
            "exp_avg": self.exp_avg,
            "exp_avg_sq": self.exp_avg_sq,
        }
        return adam


def decay(host: HostAdam) -> None:
    """Move the learning rates on."""
    for group in host.param_groups:
        group["lr"] *= DECAY


class Report:
    """Rows of the printed table, and their samples."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.results: list[dict[str, Any]] = []
        self.baseline: float | None = None
        print(f"{'case':52} {'best ms':>9} {'median':>9} {'GB/s':>7} {'limit':>6} {'x fused':>8}")

    def add(self, case: str, seconds: list[float], n_bytes: int) -> float:
        """Print and keep one case; the last column is its time as a share of torch fused's."""
        best, median = min(seconds), float(np.median(seconds))
        rate = n_bytes / best / 1e9
        share = "" if self.baseline is None else f"{best / self.baseline:8.3f}"
        print(
            f"{case:52} {best * 1e3:9.3f} {median * 1e3:9.3f} {rate:7.1f} "
            f"{rate / self.limit:6.0%} {share:>8}",
            flush=True,
        )
        self.results.append(
            {"case": case, "seconds": seconds, "bytes": n_bytes, "gb_per_second": rate}
        )
        return best


def triad(n_values: int, samples: int) -> float:
    """GB/s of a = b + 2 c, counted as 12 bytes a value: the limit."""
    a, b, c = (torch.ones(n_values) for _ in range(3))
    seconds = timed(lambda: torch.add(b, c, alpha=2, out=a), samples, nothing)
    return 12 * n_values / min(seconds) / 1e9


def check(threads: int) -> None:
    """What is timed below is right: deferred against torch's Adam in float64."""
    generator = np.random.default_rng(0)
    table = Table(2000, threads)
    exact = [t.double() for t in table.split(table.values)]
    for tensor in (table.exp_avg, table.exp_avg_sq):
        tensor.zero_()
    host = HostAdam(
        [{"params": [p], "lr": lr} for p, lr in zip(table.split(table.values), RATES, strict=True)],
        threads=threads,
    )
    params = [torch.nn.Parameter(t) for t in exact]
    dense = torch.optim.Adam(
        [{"params": [p], "lr": lr} for p, lr in zip(params, RATES, strict=True)], eps=1e-15
    )
    for _ in range(60):
        rows = random_rows(2000, 0.1, generator)
        grads = table.split(table.grads[rows.long()])
        host.step(rows, grads)
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.zeros_like(p).index_copy_(0, rows.long(), g.double())
        dense.step()
    host.flush()
    for ours, theirs, lr in zip(table.split(table.values), params, RATES, strict=True):
        error = (ours.double() - theirs.detach()).abs() / (theirs.detach().abs() + lr)
        assert float(error.max()) < 1e-5, f"deferred is off by {float(error.max())}"


def bench_dense(table: Table, report: Report, samples: int) -> None:
    """All rows, against the peers."""
    n_bytes = table.n_rows * WIDTH * UPDATE_BYTES
    fused = table.torch_adam(fused=True)
    report.baseline = min(timed(fused.step, samples, nothing))
    report.add("torch fused, all rows", timed(fused.step, samples, nothing), n_bytes)
    default = table.torch_adam(foreach=False)
    report.add("torch default, all rows", timed(default.step, 2, nothing), n_bytes)
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        print(f"{'DeepSpeed CPUAdam':52} not installed")
    else:
        param = torch.nn.Parameter(table.values, requires_grad=False)
        param.grad = table.grads
        peer = DeepSpeedCPUAdam([param], lr=RATES[1], eps=1e-15)
        report.add("DeepSpeed CPUAdam, all rows", timed(peer.step, samples, nothing), n_bytes)
        del peer
    dense = table.host("dense")
    grads = table.split(table.grads)
    seconds = timed(lambda: dense.step(grads=grads), samples, nothing)
    report.add("gs-adam dense, all rows", seconds, n_bytes)


def bench_deferred(table: Table, report: Report, samples: int) -> None:
    """Some rows, each of which slept 1 to 50 steps under a decaying rate."""
    host = table.host("deferred")
    generator = np.random.default_rng(1)
    for share, kind, n_sets in (
        (0.1, "random", 6),
        (0.1, "runs of 32", 6),
        (0.01, "random, one set again and again", 1),
        (0.01, "random, rotating sets", 24),
        (0.01, "runs of 32, rotating sets", 24),
    ):
        make = rows_in_runs if kind.startswith("runs") else random_rows
        sets = [make(table.n_rows, share, generator) for _ in range(n_sets)]
        slept = torch.randint(1, SLEEP + 1, (len(sets[0]),), dtype=torch.int32)
        grads = [g.contiguous() for g in table.split(table.grads[: len(sets[0])])]
        coming = itertools.cycle(sets)
        present = [sets[0]]

        def prepare(
            coming: Iterator[torch.Tensor] = coming,
            present: list[torch.Tensor] = present,
            slept: torch.Tensor = slept,
        ) -> None:
            present[0] = next(coming)
            table.last_step[present[0].long()] = host.step_count - slept
            decay(host)

        def step(present: list[torch.Tensor] = present, grads: list[torch.Tensor] = grads) -> None:
            host.step(present[0], grads)

        seconds = timed(step, max(samples, n_sets), prepare)
        n_bytes = len(sets[0]) * WIDTH * UPDATE_BYTES
        report.add(f"gs-adam deferred, {share:.0%} {kind}", seconds, n_bytes)


def bench_lookahead(table: Table, report: Report, samples: int) -> None:
    """Rows of the next view, brought up to date into another buffer."""
    host = table.host("deferred")
    generator = np.random.default_rng(2)
    share = 430_000 / 20_000_000
    for make, kind in ((random_rows, "random"), (rows_in_runs, "runs of 32")):
        sets = [make(table.n_rows, share, generator) for _ in range(8)]
        n_rows = len(sets[0])
        out = torch.empty(n_rows, WIDTH)
        table.last_step.random_(0, SLEEP).neg_().add_(host.step_count - 1)
        coming = itertools.cycle(sets)

        def look(coming: Iterator[torch.Tensor] = coming, out: torch.Tensor = out) -> None:
            host.lookahead(next(coming), out=table.split(out))

        seconds = timed(look, max(samples, 8), nothing)
        n_bytes = n_rows * WIDTH * LOOKAHEAD_BYTES
        report.add(f"gs-adam lookahead, {n_rows} rows {kind}", seconds, n_bytes)


def bench_overheads(table: Table, report: Report, samples: int) -> None:
    """What does not depend on rows: a small step in a large table, a task's way to its start."""
    host = table.host("deferred")
    rows = torch.arange(0, table.n_rows, table.n_rows // 64, dtype=torch.int32)[:64]
    grads = [g.contiguous() for g in table.split(table.grads[:64])]
    seconds = timed(lambda: host.step(rows, grads), 20 * samples, nothing)
    report.add("gs-adam deferred, 64 rows", seconds, 64 * WIDTH * UPDATE_BYTES)
    started: list[float] = []
    waits: list[float] = []
    with Worker(host) as worker:
        step = host.begin_step()
        for row in range(20 * samples):
            time.sleep(2e-4)
            one = torch.tensor([row], dtype=torch.int32)
            begin = time.perf_counter()
            ticket = worker.submit(
                one,
                [g[:1] for g in grads],
                step=step,
                ready=lambda: started.append(time.perf_counter()),
            )
            worker.wait(ticket)
            waits.append(started[-1] - begin)
        host.end_step(step)
    report.add("gs-adam worker, submit to start", waits, 0)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=default_rows())
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    check(options.threads)
    limit = triad(min(options.rows * WIDTH, 200_000_000), options.samples)
    print(f"{options.rows} rows x {WIDTH}, {options.threads} threads, triad {limit:.1f} GB/s")
    report = Report(limit)
    table = Table(options.rows, options.threads)
    for bench in (bench_dense, bench_deferred, bench_lookahead, bench_overheads):
        bench(table, report, options.samples)
    if options.json:
        facts = {
            "machine": platform.node(),
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "gs_adam": gs_adam.build_info(),
            "rows": options.rows,
            "threads": options.threads,
            "triad_gb_per_second": limit,
            "results": report.results,
        }
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
