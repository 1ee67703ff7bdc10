# SPDX-License-Identifier: Apache-2.0
"""What each rank of ``bench_ranks.py`` does."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

import gsplat_ranks
import torch
from alone import process_bytes
from bench_engine import Scene, batches, make_scene, settings
from gsplat_ranks import GsplatRank
from launching import Lines, as_rank
from timed_world import TimedWorld, Waits
from torch import Tensor

import workloads
from gs_train.backends import make_backend
from gs_train.engine.together import Sharing
from gs_train.options.presets import PRESETS
from gs_train.ranks.first_rows import FirstRows, first_rows
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.rows.keys import RowKeys
from gs_train.rows.morton import morton_order
from gs_train.world.alone import Alone
from gs_train.world.cores import on_cores
from gs_train.world.protocol import World

WARM_UP = 96
"""Images, until graphs are kept, and the room of views and the pace of ranks are known."""


class Trainee(Protocol):
    """What is measured, on one rank."""

    def step(self, now: Sequence[int], upcoming: Sequence[Sequence[int]]) -> None:
        """One update from these views of the scene, all of a batch; the next batches follow."""
        ...

    def finish(self) -> None:
        """Wait for what the host does in the background."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...


class PresetRank:
    """An engine of gs-train, on one rank.

    Args:
        preset: its name.
        rows, keys: of this rank; no keys: of all rows.
        scene: views and photographs.
        batch: views.
        renderer: draws.
        world: all ranks.
    """

    def __init__(
        self,
        preset: str,
        rows: dict[str, Tensor],
        keys: RowKeys | None,
        scene: Scene,
        batch: int,
        renderer: Renderer,
        world: World,
    ) -> None:
        self._scene = scene
        self._settings = settings(scene, batch)
        self._engine = make_backend(
            PRESETS[preset], rows, None, renderer=renderer, semantics="dense", mem_limit=0.3,
            keys=keys, sharing=Sharing(world),
        )  # fmt: skip

    def step(self, now: Sequence[int], upcoming: Sequence[Sequence[int]]) -> None:
        """See `Trainee`. A photograph goes to the ranks that draw its view."""
        views = self._scene.views
        self._engine.step(
            [(views[i], self._photo(i)) for i in now], self._settings, lambda ids, splats: None,
            upcoming=[[views[i] for i in after] for after in upcoming],
        )  # fmt: skip

    def finish(self) -> None:
        """See `Trainee`."""
        self._engine.finish()

    def close(self) -> None:
        """See `Trainee`."""
        self._engine.model.close()

    def _photo(self, i: int) -> Callable[[], Tensor]:
        photo, device = self._scene.photos[i], self._engine.model.device
        return lambda: photo.to(device, non_blocking=True)


class Measuring:
    """All lines of one scene in one number of ranks, each beside one rank.

    Args:
        world: all ranks.
        plan: see ``bench_ranks.py``.
        lines: takes the results.
    """

    def __init__(self, world: World, plan: dict[str, Any], lines: Lines) -> None:
        self._world, self._plan, self._lines = world, plan, lines
        self._ends = time.monotonic() + plan["limit"]
        self._cores = tuple(plan["cores"])
        self._renderer = make_renderer(plan["renderer"], RenderOptions())

    def run(self) -> None:
        """Everything that the plan asks for, in the time that it gives."""
        plan, world = self._plan, self._world
        for overlap in plan["overlap"]:
            scene, own = self._made(overlap)
            for batch in plan["batch"]:
                for name in plan["presets"]:
                    self._line(name, batch, scene, own)
            for batch in plan["peer_batch"] if gsplat_ranks.is_installed() else ():
                if world.device.type == "cuda" and batch % world.size == 0:
                    self._line(gsplat_ranks.NAME, batch, scene, own)

    def _made(self, overlap: float) -> tuple[Scene, FirstRows]:
        """Views and photographs, this rank's rows, and all rows where one rank is measured here.

        Every rank makes all rows on its device, and keeps its own of them.
        """
        plan, world = self._plan, self._world
        city = workloads.city(plan["rows"], device=world.device, share=plan["share"])
        city = city.reordered(morton_order(city.means))
        drawn = workloads.attributes(city)
        sums = [int(values.view(torch.int32).sum()) for values in drawn.values()]
        world.agree("the made scene", sums)
        size = tuple(plan["size"])
        scene = make_scene(city, overlap, plan["views"], size, drawn)
        own = first_rows(drawn, rank=world.rank, n_ranks=world.size)
        own = own._replace(rows={name: values.cpu() for name, values in own.rows.items()})
        everything = {}
        if plan["measures_one"] and world.rank == 0:
            everything = {name: values.cpu() for name, values in drawn.items()}
        return replace(scene, rows=everything), own

    def _line(self, name: str, batch: int, scene: Scene, own: FirstRows) -> None:
        """One rank alone, if that is asked for, and all ranks."""
        world, rates = self._world, []
        if self._plan["measures_one"]:
            if self._is_late(f"{name}, batch {batch}"):
                return
            if world.rank == 0:
                rates = self._measured_alone(name, batch, scene)
            world.barrier()
        if world.size > 1 and not self._is_late(f"{name}, batch {batch}"):
            self._measured(name, batch, scene, own, world, rates)

    def _measured_alone(self, name: str, batch: int, scene: Scene) -> list[float]:
        """Rates of one rank, with all cores; none where its memory does not suffice."""
        cores = on_cores(self._cores) if self._world.size > 1 else nullcontext()
        try:
            with cores:
                return self._measured(name, batch, scene, None, Alone(self._world.device))
        except torch.OutOfMemoryError as error:
            print(f"left out, {name}, batch {batch} on 1: {str(error).splitlines()[0]}", flush=True)
        return []

    def _is_late(self, what: str) -> bool:
        is_late: bool = self._world.broadcast(time.monotonic() > self._ends)
        if is_late and self._world.rank == 0:
            print(f"left out, the time is over: {what} on {self._world.size}", flush=True)
        return is_late

    def _measured(
        self,
        name: str,
        batch: int,
        scene: Scene,
        own: FirstRows | None,
        world: World,
        of_one: Sequence[float] = (),
    ) -> list[float]:
        """Rates of a line, which is written with them.

        Args:
            own: this rank's rows; None: all rows.
            of_one: rates of one rank.
        """
        clear(world.device)
        timed = TimedWorld(world)
        trainee = self._trainee(name, batch, scene, own, timed)
        run = Runs(trainee, batches(scene, batch, "shuffle"), timed)
        run.of(max(2, math.ceil(WARM_UP / batch)))
        steps = run.steps_in(self._plan["seconds"])
        seconds = [run.of(steps) for _ in range(self._plan["samples"])]
        with timed.noting() as waits:
            noted = run.of(steps)
        memory = world.gather([_peak_bytes(world.device), process_bytes()])
        trainee.close()
        rates = [batch * steps / one for one in seconds]
        facts = {
            "ranks_peak_bytes": memory[:, 0].tolist(),
            "ranks_process_bytes": memory[:, 1].tolist(),
            "steps": steps,
            "visible": scene.visible,
        }
        if name != gsplat_ranks.NAME:  # which waits in calls of its own
            facts |= _shares(waits, noted, steps * batch, world)
        if len(of_one):
            facts["times_one"] = statistics.median(rates) / statistics.median(of_one)
        self._lines.add(name, rates, "images/s", self._axes(scene, batch, world.size), **facts)
        if world.rank == 0:
            print(row_of(name, batch, world.size, rates, facts), flush=True)
        return rates

    def _trainee(
        self, name: str, batch: int, scene: Scene, own: FirstRows | None, world: World
    ) -> Trainee:
        rows = scene.rows if own is None else own.rows
        if name == gsplat_ranks.NAME:
            return GsplatRank(rows, scene, batch, world)
        keys = None if own is None else own.keys.to(world.device)
        return PresetRank(name, rows, keys, scene, batch, self._renderer, world)

    def _axes(self, scene: Scene, batch: int, ranks: int) -> dict[str, Any]:
        plan = self._plan
        return {
            "gaussians": plan["rows"], "size": plan["size"], "views": plan["views"],
            "overlap": round(scene.overlap, 2), "batch": batch, "ranks": ranks,
        }  # fmt: skip


class Runs:
    """Runs of one trainee, each from idle devices to idle devices.

    Args:
        trainee: of this rank.
        source: of batches, the same on all ranks.
        world: all ranks.
    """

    def __init__(self, trainee: Trainee, source: Any, world: World) -> None:
        self._trainee, self._source, self._world = trainee, source, world
        self._following = deque(next(source) for _ in range(2))

    def of(self, steps: int) -> float:
        """Seconds of so many steps."""
        self._settle()
        started = time.perf_counter()
        for _ in range(steps):
            now = self._following.popleft()
            self._following.append(next(self._source))
            self._trainee.step(now, self._following)
        self._settle()
        return time.perf_counter() - started

    def steps_in(self, seconds: float) -> int:
        """Steps that take so long, three at least; the clock of rank 0 decides for all."""
        each = self.of(4) / 4
        steps: int = self._world.broadcast(max(3, math.ceil(seconds / each)))
        return steps

    def _settle(self) -> None:
        self._trainee.finish()
        if self._world.device.type == "cuda":
            torch.cuda.synchronize()
        self._world.barrier()


def clear(device: torch.device) -> None:
    """Give back what the line before has left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def row_of(name: str, batch: int, ranks: int, rates: list[float], facts: dict[str, Any]) -> str:
    """A row of the table, see `HEAD`."""
    rate = statistics.median(rates)
    peaks = " ".join(f"{n / 1e9:.2f}" for n in facts["ranks_peak_bytes"])
    times = f"{facts['times_one']:.2f}" if "times_one" in facts else ""
    waited, on_host = (
        " ".join(f"{share:.1%}" for share in facts.get(name, ()))
        for name in ("waited_share", "host_waited_share")
    )
    sent = f"{facts['sent_bytes_an_image'] / 1e6:.1f}" if "sent_bytes_an_image" in facts else ""
    return (
        f"{name:8s} {batch:5d} {ranks:5d} {rate:9.1f} {times:>9s} {sent:>9s}  {peaks:20s} "
        f"{waited:20s} {on_host}"
    )


HEAD = (
    f"{'':8s} {'batch':>5s} {'ranks':>5s} {'images/s':>9s} {'times one':>9s} {'MB sent':>9s}  "
    f"{'peak GB':20s} {'waited':20s} waited on the host"
)
"""Of `row_of`. Megabytes that a rank sends to others for an image of the batch; the most memory of
tensors on each rank; shares of the time for which compute streams, and main threads, waited."""


def _peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def _shares(waits: Waits, seconds: float, images: int, world: World) -> dict[str, Any]:
    """Of all ranks: how much of a run was waited, and bytes sent for an image."""
    own = [int(1e6 * waits.device_s), int(1e6 * waits.host_s), waits.sent_bytes]
    table = world.gather(own)
    return {
        "waited_share": [float(us) / 1e6 / seconds for us in table[:, 0]],
        "host_waited_share": [float(us) / 1e6 / seconds for us in table[:, 1]],
        "waited_ms_an_image": [float(us) / 1e3 / images for us in table[:, 0]],
        "sent_bytes_an_image": float(table[:, 2].mean()) / images,
    }


def work(world: World, plan: dict[str, Any], lines: Lines) -> None:
    """One rank's part."""
    if world.rank == 0:
        print(HEAD, flush=True)
    Measuring(world, plan, lines).run()


if __name__ == "__main__":
    as_rank(work)
