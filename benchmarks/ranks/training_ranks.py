# SPDX-License-Identifier: Apache-2.0
"""What each rank of ``bench_ranks.py`` does."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import gsplat_ranks
import torch
from alone import process_bytes
from bench_engine import Scene, batches, make_scene, settings
from foretold import Foretelling
from gsplat_ranks import GsplatRank
from launching import Lines, as_rank
from torch import Tensor

import workloads
from gs_train.backends import make_backend
from gs_train.engine.pace import DrawingPace, HostClock
from gs_train.engine.together import Sharing
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.ranks.first_rows import FirstRows, first_rows
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.renderers.tables import Direct
from gs_train.rows.keys import RowKeys
from gs_train.rows.morton import morton_order
from gs_train.world.alone import Alone
from gs_train.world.cores import on_cores
from gs_train.world.protocol import Ints, World
from gs_train.world.timed import TimedWorld, Waits

WARM_UP = 96
"""Images, until graphs are kept, and the room of views and the pace of ranks are known."""


class EvenPace(DrawingPace):
    """The same on all ranks, whatever they take: views are dealt as if all drew alike."""

    def __init__(self) -> None:
        super().__init__(HostClock())

    def next_batch(self) -> int:
        """See `DrawingPace`."""
        return 1


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
        balances: ranks that draw faster draw more.
        cuts_views: views that are left over are cut into crops.
        limits: of rows.
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
        *,
        balances: bool = True,
        cuts_views: bool = True,
        limits: Limits = UNLIMITED,
    ) -> None:
        self._scene = scene
        self._settings = settings(scene, batch)
        self._engine = make_backend(
            PRESETS[preset], rows, None, renderer=renderer, semantics="dense", mem_limit=0.3,
            limits=limits, keys=keys, sharing=Sharing(world, cuts_views),
        )  # fmt: skip
        if self._engine.together is not None and not balances:
            self._engine.together.planner.drawing_pace = EvenPace()

    def held_bytes(self) -> list[int]:
        """Of the device, from batch to batch: rows with their moments, gradients, exchanges."""
        engine = self._engine
        # What is gathered for a checkpoint lies elsewhere and is not held.
        rows, own = 0, engine.placement.n_bytes
        sums = getattr(engine.placement, "sums_bytes", own)
        for values in engine.model.tensors().values():
            rows += values.nbytes * (values.device.type == engine.model.device.type)
        exchanged = 0 if engine.together is None else engine.together.drawing.exchange_bytes
        return [rows + own - sums, sums, exchanged]

    def news(self) -> list[str]:
        """Lines about views that were drawn in parts."""
        return [] if self._engine.together is None else self._engine.together.news.lines()

    def step(self, now: Sequence[int], upcoming: Sequence[Sequence[int]]) -> None:
        """See `Trainee`. A photograph goes to the ranks that draw its view, and density control
        takes whole views as that of every training does, which makes no splats of them."""
        views = self._scene.views
        self._engine.step(
            [(views[i], self._photo(i)) for i in now], self._settings, lambda ids, splats: None,
            direct=Direct(None, len(now)),
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


class Made(NamedTuple):
    """A scene as one rank has it.

    Attributes:
        scene: views and photographs; all rows where they are asked for.
        own: this rank's rows.
    """

    scene: Scene
    own: FirstRows


def made(
    world: World,
    plan: Mapping[str, Any],
    overlap: float,
    *,
    keeps_all: bool,
    look: Callable[[dict[str, Tensor], Scene], object] = lambda rows, scene: None,
) -> Made:
    """Views, photographs and rows. Every rank makes all rows on its device, and keeps its own.

    Args:
        plan: ``rows``, ``share``, ``views`` and ``size`` of the scene.
        overlap: of neighbours.
        keeps_all: all rows are kept as well.
        look: called with all rows on the device and the scene, while both are there.
    """
    city = workloads.city(plan["rows"], device=world.device, share=plan["share"])
    city = city.reordered(morton_order(city.means))
    drawn = workloads.attributes(city)
    sums = [int(values.view(torch.int32).sum()) for values in drawn.values()]
    world.agree("the made scene", sums)
    scene = make_scene(city, overlap, plan["views"], tuple(plan["size"]), drawn)
    own = first_rows(drawn, rank=world.rank, n_ranks=world.size)
    own = own._replace(rows={name: values.cpu() for name, values in own.rows.items()})
    everything = {}
    if keeps_all:
        everything = {name: values.cpu() for name, values in drawn.items()}
    look(drawn, scene)
    return Made(replace(scene, rows=everything), own)


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
        self._foretold: Foretelling | None = None

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

    def _made(self, overlap: float) -> Made:
        """The scene, with all rows where one rank is measured here."""
        is_first = self._world.rank == 0

        def look(drawn: dict[str, Tensor], scene: Scene) -> None:
            if is_first and self._plan["forecast"] == "on":
                with self._all_cores():
                    self._foretold = Foretelling(
                        drawn, scene.views, self._renderer, self._plan["batch"],
                        self._plan["between_gpus"],
                    )  # fmt: skip

        made_ = made(
            self._world, self._plan, overlap,
            keeps_all=self._plan["measures_one"] and is_first, look=look,
        )  # fmt: skip
        self._world.barrier()
        return made_

    def _all_cores(self) -> AbstractContextManager[object]:
        """While entered, this rank has the cores of all: the others wait."""
        return on_cores(self._cores) if self._world.size > 1 else nullcontext()

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
        try:
            with self._all_cores():
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
        timed, before = TimedWorld(world), _allocated_bytes(world.device)
        trainee = self._trainee(name, batch, scene, own, timed)
        source = batches(scene, batch, self._plan["order"], self._plan["tile_views"])
        run = Runs(trainee, source, timed)
        run.of(max(2, math.ceil(WARM_UP / batch)))
        steps = run.steps_in(self._plan["seconds"])
        seconds = [run.of(steps) for _ in range(self._plan["samples"])]
        waits = Waits()
        with timed.noting(waits):
            noted = run.of(steps)
        waits.settle()
        memory = world.gather([_peak_bytes(world.device), process_bytes(), before])
        held = None
        if isinstance(trainee, PresetRank):
            held = world.gather(trainee.held_bytes())
        trainee.close()
        rates = [batch * steps / one for one in seconds]
        facts = {
            "ranks_peak_bytes": memory[:, 0].tolist(),
            "ranks_process_bytes": memory[:, 1].tolist(),
            "steps": steps,
            "visible": scene.visible,
        }
        if held is not None:  # the peer waits in calls of its own
            facts |= _shares(waits, noted, steps * batch, world)
            facts |= _parts_of(memory, held)
            if self._foretold is not None:
                facts |= self._foretold.of(name, batch, world.size)
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
        return PresetRank(
            name, rows, keys, scene, batch, self._renderer, world,
            balances=self._plan["balance"] == "on",
            cuts_views=self._plan["cut_views"] == "auto",
        )  # fmt: skip

    def _axes(self, scene: Scene, batch: int, ranks: int) -> dict[str, Any]:
        plan = self._plan
        return {
            "gaussians": plan["rows"], "size": plan["size"], "views": plan["views"],
            "overlap": round(scene.overlap, 2), "batch": batch, "ranks": ranks,
            "order": plan["order"], "balance": plan["balance"],
            "cut_views": plan["cut_views"],
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
        f"{min(facts[name]):.1%} to {max(facts[name]):.1%}" if name in facts else ""
        for name in ("waited_share", "host_waited_share")
    )
    sent = f"{facts['sent_bytes_an_image'] / 1e6:.1f}" if "sent_bytes_an_image" in facts else ""
    foretold = ""
    if "foretold_images_per_second" in facts:
        foretold = f"{facts['foretold_images_per_second']:.1f}"
        peaks += f" ({facts['foretold_device_bytes'] / 1e9:.2f})"
    parts = ""
    if "ranks_rows_bytes" in facts:
        of = ("rows", "sums", "exchange", "rendering")
        parts = " ".join(f"{max(facts[f'ranks_{part}_bytes']) / 1e9:.2f}" for part in of)
    return (
        f"{name:8s} {batch:5d} {ranks:5d} {rate:9.1f} {foretold:>9s} {times:>9s} {sent:>9s}  "
        f"{peaks:20s} {parts:20s} {waited:18s} {on_host}"
    )


HEAD = (
    f"{'':8s} {'batch':>5s} {'ranks':>5s} {'images/s':>9s} {'foretold':>9s} {'times one':>9s} "
    f"{'MB sent':>9s}  {'peak GB (foretold)':20s} {'GB of parts':20s} {'waited':18s} "
    "waited on the host"
)
"""Of `row_of`. Images a second that ``plan`` foretells; megabytes that a rank sends to others for
an image of the batch; the most memory of tensors on each rank, and what ``plan`` foretells of one;
rows, gradients, exchanges and rendering, each on the rank that has most; shares of the time for
which compute streams, and main threads, waited: on the rank that waits least and on that which
waits most."""


def _peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def _allocated_bytes(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _parts_of(memory: Ints, held: Ints) -> dict[str, Any]:
    """Bytes of each rank by part.

    Args:
        memory: (W, 3) the peak, that of the process, and what there was before the trainee.
        held: (W, 3) see `PresetRank.held_bytes`.
    """
    rendering = (memory[:, 0] - memory[:, 2] - held.sum(axis=1)).clip(min=0)
    return {
        "ranks_rows_bytes": held[:, 0].tolist(),
        "ranks_sums_bytes": held[:, 1].tolist(),
        "ranks_exchange_bytes": held[:, 2].tolist(),
        "ranks_rendering_bytes": rendering.tolist(),
    }


def _shares(waits: Waits, seconds: float, images: int, world: World) -> dict[str, Any]:
    """Of all ranks: how much of a run was waited, and bytes sent for an image."""
    own = [int(1e6 * waits.device_s), int(1e6 * waits.host_s), waits.sent_bytes]
    table = world.gather(own)
    waited = [float(us) / 1e6 / seconds for us in table[:, 0]]
    return {
        "waited_share": waited,
        "waited_share_least": min(waited),
        "waited_share_worst": max(waited),
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
