# SPDX-License-Identifier: Apache-2.0
"""What each rank of ``bench_exchange.py`` does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from launching import Lines, as_rank
from torch import Tensor

import gs_cull
import workloads
from gs_train.renderers import RenderOptions, View, make_renderer
from gs_train.renderers.records import GRADIENT_WORDS, RECORD_WORDS, Outgoing, SplatRecords
from gs_train.renderers.tables import TableRows
from gs_train.world.protocol import Pending, World

TIMES = 20
"""Exchanges of a sample."""

DRAWINGS = 10
"""Of a sample; beside exchanges, one exchange begins with each."""

INTEGERS = 12
"""Words of a rank in the gather that begins a batch of 8 views."""


class Traffic:
    """Tensors of the exchanges of one round: each rank owns an even share of each rank's view.

    Args:
        n: rows that a view shows, of all ranks.
        world: all ranks.
    """

    def __init__(self, n: int, world: World) -> None:
        self._world, share = world, max(1, n // world.size)
        self._rows = [share] * world.size
        n_all = share * world.size
        self._records = [SplatRecords.room_for(n_all, world.device) for _ in range(2)]
        for records in self._records:
            records.make_empty(0)
        self._gradients = torch.zeros((2, n_all, GRADIENT_WORDS), device=world.device)
        self.away = share * (world.size - 1)

    def forward(self) -> None:
        """52 bytes a row, as `RoundExchange` sends them."""
        sent, arrived = self._records
        self._wait([self._all_to_all(arrived.words, sent.words),
                    self._all_to_all(arrived.keys, sent.keys)])  # fmt: skip

    def back(self) -> None:
        """48 bytes a row."""
        self._wait([self._all_to_all(*self._gradients)])

    def _all_to_all(self, recv: Tensor, send: Tensor) -> Pending[Tensor]:
        return self._world.all_to_all(recv, send, self._rows, self._rows)

    @staticmethod
    def _wait(pending: Iterable[Pending[Tensor]]) -> None:
        for one in pending:
            one.wait()


BYTES_A_ROW = {"forward": 4 * (RECORD_WORDS + 1), "back": 4 * GRADIENT_WORDS}


class Drawing:
    """One view of a synthetic city, drawn forward and backward from records.

    Args:
        plan: see ``bench_exchange.py``.
        device: of this rank.
    """

    def __init__(self, plan: dict[str, Any], device: torch.device) -> None:
        city = workloads.city(plan["rows"], share=plan["share"], device=device)
        width, height = plan["size"]
        photo = workloads.scattered(city, 1, width=width, height=height)
        self._view = View("0", photo.viewmats[0], photo.Ks[0], width, height)
        ids = gs_cull.visible_ids(
            *city.rows, photo.viewmats[0], photo.Ks[0], width, height, opacities=city.opacities
        )
        rows = {name: v[ids.long()] for name, v in workloads.attributes(city).items()}
        renderer = make_renderer(plan["renderer"], RenderOptions())
        self._renderer: Any = renderer.records  # type: ignore[attr-defined]
        self.n_rows = len(ids)
        keys = torch.arange(self.n_rows, dtype=torch.int32, device=device)
        self._records = SplatRecords.room_for(self.n_rows, device)
        if hasattr(self._renderer, "project_views"):
            sums = {name: torch.zeros_like(values) for name, values in rows.items()}
            table = TableRows(rows, keys, keys, keys, sums, keys)
            out = Outgoing(table, self._view, range(self.n_rows))
            self._renderer.project_views([out], self._records, sh_degree=3)
        else:
            splats = renderer.project(rows, self._view, sh_degree=3, keys=keys)
            self._renderer.write(splats, self._records)
        self._gradient = torch.full((height, width, 3), 1e-3, device=device)

    def draw(self) -> None:
        """The view, and the gradients of its splats."""
        drawn = self._renderer.draw(self._records, self._view, self._view.rect)
        self._renderer.send_back(drawn, self._gradient)


class Measuring:
    """All lines, on one rank.

    Args:
        world: all ranks.
        plan: see ``bench_exchange.py``.
        lines: takes the results.
    """

    def __init__(self, world: World, plan: dict[str, Any], lines: Lines) -> None:
        self._world, self._plan, self._lines = world, plan, lines
        self._is_cuda = world.device.type == "cuda"
        self._side = torch.cuda.Stream(world.device) if self._is_cuda else None

    def run(self) -> None:
        """The host's integers first, for they take least."""
        self._integers()
        if self._is_cuda:
            self._copies()
        drawing = Drawing(self._plan, self._world.device)
        axes = {"rows": drawing.n_rows, "size": self._plan["size"]}
        alone = self._samples(lambda: self._seconds(drawing.draw, DRAWINGS))
        self._add("drawing", alone, axes)
        for n in self._plan["visible"]:
            traffic = Traffic(n, self._world)
            for way, exchange in (("forward", traffic.forward), ("back", traffic.back)):
                self._exchanged(way, exchange, n, traffic.away, drawing)

    def _exchanged(
        self, way: str, exchange: Callable[[], None], n: int, away: int, drawing: Drawing
    ) -> None:
        """One size and direction, alone and beside drawing."""
        axes = {"rows": n}
        n_bytes = away * BYTES_A_ROW[way]
        alone = self._samples(lambda: self._seconds(exchange, TIMES))
        self._add(way, alone, axes, bytes=n_bytes)
        if not self._is_cuda:
            return
        samples = self._samples(lambda: self._beside(exchange, drawing))
        self._add(f"{way} beside drawing", [one[0] for one in samples], axes, bytes=n_bytes)
        self._add(f"drawing beside {way}", [one[1] for one in samples], axes)

    def _beside(self, exchange: Callable[[], None], drawing: Drawing) -> list[float]:
        """Seconds of an exchange, and of the drawing that begins with it on another stream."""
        side, main = self._side, torch.cuda.current_stream()
        assert side is not None
        self._settle()
        begins, starts, ends = (
            [torch.cuda.Event(enable_timing=True) for _ in range(DRAWINGS + 1)] for _ in range(3)
        )
        for k in range(DRAWINGS):
            begins[k].record(main)
            with torch.cuda.stream(side):
                side.wait_event(begins[k])
                starts[k].record(side)
                exchange()
                ends[k].record(side)
            drawing.draw()
        begins[DRAWINGS].record(main)
        torch.cuda.synchronize()
        exchanged = sum(starts[k].elapsed_time(ends[k]) for k in range(DRAWINGS))
        drawn = begins[0].elapsed_time(begins[DRAWINGS])
        return self._slowest([exchanged / 1e3 / DRAWINGS, drawn / 1e3 / DRAWINGS])

    def _copies(self) -> None:
        """Page-locked memory of each rank, one rank at a time and all together."""
        n_bytes = self._plan["copied"]
        host = [torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        there = [torch.zeros(n_bytes, dtype=torch.uint8, device=self._world.device) for _ in "io"]
        streams = [torch.cuda.Stream(self._world.device) for _ in "io"]

        def copy(ways: Sequence[int]) -> None:
            main = torch.cuda.current_stream()
            for way in ways:
                streams[way].wait_stream(main)
            for way in ways:
                with torch.cuda.stream(streams[way]):
                    if way == 0:
                        there[0].copy_(host[0], non_blocking=True)
                    else:
                        host[1].copy_(there[1], non_blocking=True)
            for way in ways:  # once all are on their way
                main.wait_stream(streams[way])

        both = "both ways"
        for name, ways in {"to the device": [0], "to the host": [1], both: [0, 1]}.items():
            how: dict[str, list[int]] = {
                **{f"rank {r} alone": [r] for r in range(self._world.size)},
                "all together": list(range(self._world.size)),
            }
            for words, ranks in how.items():
                work = copy if self._world.rank in ranks else (lambda ways: None)

                def sample(work: Any = work, ways: list[int] = ways) -> list[float]:
                    return self._every(self._own_seconds(lambda: work(ways), 3))

                samples = self._samples(sample)
                rates = [n_bytes / one[r] / 1e9 for one in samples for r in ranks]
                self._lines.add(
                    f"copies {name}, {words}", rates, "GB/s",
                    {"ranks": self._world.size, "bytes": n_bytes},
                )  # fmt: skip
                self._say(f"copies {name}, {words}", f"{statistics.median(rates):9.1f} GB/s")

    def _integers(self) -> None:
        """Calls that all ranks wait for."""
        world, words = self._world, np.arange(INTEGERS)
        few = torch.zeros(8, device=world.device)
        calls = {
            f"gather of {INTEGERS} integers": lambda: world.gather(words),
            "sum of 8 floats": lambda: world.sum(few),
            "barrier": world.barrier,
        }
        for name, call in calls.items():
            self._add(name, self._samples(partial(self._seconds, call, TIMES)), {})

    def _samples(self, sample: Callable[[], Any]) -> list[Any]:
        sample()  # the first one takes memory
        return [sample() for _ in range(self._plan["samples"])]

    def _seconds(self, work: Callable[[], object], times: int) -> float:
        """Of one of so many calls, on the slowest rank."""
        return self._slowest([self._own_seconds(work, times)])[0]

    def _own_seconds(self, work: Callable[[], object], times: int) -> float:
        """From idle devices to idle devices, by the host's clock: some calls block the host."""
        self._settle()
        started = time.perf_counter()
        for _ in range(times):
            work()
        if self._is_cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / times

    def _slowest(self, seconds: list[float]) -> list[float]:
        table = self._world.gather([int(1e9 * one) for one in seconds])
        return [float(ns) / 1e9 for ns in table.max(axis=0)]

    def _every(self, seconds: float) -> list[float]:
        return [max(int(ns), 1) / 1e9 for ns in self._world.gather(int(1e9 * seconds))]

    def _settle(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()
        self._world.barrier()

    def _add(self, name: str, seconds: list[float], axes: dict[str, Any], **facts: Any) -> None:
        axes = {"ranks": self._world.size, **axes}
        self._lines.add(name, [1e3 * one for one in seconds], "ms", axes, **facts)
        middle = statistics.median(seconds)
        words = f"{1e3 * middle:9.3f} ms"
        if "bytes" in facts:
            words += f" {facts['bytes'] / 1e6:9.1f} MB {facts['bytes'] / middle / 1e9:9.1f} GB/s"
        rows = f", {axes['rows']:,} rows" if "rows" in axes else ""
        self._say(f"{name}{rows}", words)

    def _say(self, name: str, words: str) -> None:
        if self._world.rank == 0:
            print(f"{name:46s} {words}", flush=True)


def work(world: World, plan: dict[str, Any], lines: Lines) -> None:
    """One rank's part."""
    Measuring(world, plan, lines).run()


if __name__ == "__main__":
    as_rank(work)
