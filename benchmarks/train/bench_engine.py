# SPDX-License-Identifier: Apache-2.0
"""Is training from host memory as fast as training inside the GPU?

Decides which preset a scene should be trained with, batch by batch size. Everything in one process:
the synthetic city at 1080p, rows in Morton order, and the views of a survey that covers the city,
whose neighbours share a given part of what they see. Epochs are shuffled, or come in tiles of
neighbours, as gs-train's ``--order`` says; ``path`` is the survey's own order, whose batches share
most. Against: all on the device with dense Adam (gradients index-added, torch's fused
kernel), the same with gsplat's SelectiveAdam, and the same without an optimizer. These three draw
copies of rows; the last bounds all that do so, and not ``none`` and ``best``, which draw rows where
they lie. All lines are measured in the first order, and ``none`` and ``best`` in the others.

    PYTHONPATH=benchmarks python benchmarks/train/bench_engine.py --n 20_000_000 --batch 1 4 8

A sample is the rate of a run of ``--seconds``, from an idle device to an idle device. Memory is all
that the process takes of the device.

With ``--trace FOLDER`` each preset runs on for a moment after it was timed, with a trace that
``trace_shares.py`` explains.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import trace_shares
from alone import Alone, process_bytes
from torch import Tensor

import gs_cull
import workloads
from gs_order import ViewSampler
from gs_train.backends import make_backend, mirror_engine
from gs_train.engine.engine import Engine
from gs_train.engine.settings import StepSettings
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, RenderOptions, Splats, View, make_renderer
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.morton import morton_order
from harness import Record, add_json_option

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as gs-train does

CEILING = "none, no optimizer"
TORCH = "torch's fused Adam"
PRESET_NAMES = ("none", "naive", "clm", "gs-scale", "best")
PATH = "path"
ORDERS = ("shuffle", "tiles", PATH)
IN_EVERY_ORDER = ("none", "best")
SURVEY = 880
"""Views that cover the city once, with the default overlap."""


class Nothing(torch.optim.Optimizer):
    """The ceiling: gradients are made and not used."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:
        pass


@dataclass
class Row:
    """One line of the table."""

    name: str
    batch: int
    order: str
    overlap: float
    rates: list[float]  # images a second of each run
    device_gb: float  # of the process, read from the device
    loaded: float = 0.0  # rows over the link per row rendered
    union: float = 0.0  # distinct rows of a batch over the sum of its views
    bound: float = 0.0  # milliseconds per image of the longest part alone
    bound_by: str = ""
    busy: dict[str, float] = field(default_factory=dict)  # share of the time by track, if traced

    @property
    def images_per_second(self) -> float:
        """Of the median run."""
        return statistics.median(self.rates)

    @property
    def milliseconds(self) -> float:
        """Per image."""
        return 1e3 / self.images_per_second


@dataclass(frozen=True)
class Scene:
    """Rows and photographs in host memory, views on the device."""

    rows: dict[str, Tensor]
    views: list[View]
    photos: Tensor
    overlap: float
    visible: float
    means_lr: float


def make_scene(
    city: workloads.City,
    overlap: float,
    n_views: int,
    size: tuple[int, int],
    rows: dict[str, Tensor],
) -> Scene:
    width, height = size
    share = workloads.photo_overlap(overlap)
    flight = workloads.flight(
        city, n_views, overlap=share, sidelap=share, width=width, height=height
    )
    device = city.means.device

    def read(ids: Tensor) -> dict[str, Tensor]:
        at = ids.to(rows["sh0"].device)
        return {name: values[at].to(device) for name, values in rows.items()}

    photos = workloads.targets(city, flight, read)
    photos = photos.pin_memory() if device.type == "cuda" else photos
    views = [View(f"{k}", flight.viewmats[k], flight.Ks[k], width, height) for k in range(n_views)]
    n = min(n_views, 33)
    seen = gs_cull.cull(
        *city.rows, flight.viewmats[:n], flight.Ks[:n], width, height, opacities=city.opacities
    )
    both = seen.and_counts().double().cpu()
    own = both.diagonal()
    neighbours = both.diagonal(1) / (own[1:] + own[:-1] - both.diagonal(1))
    return Scene(
        rows, views, photos, float(neighbours.mean()), float(own.mean()), 1.6e-5 * city.side / 2
    )


def settings(scene: Scene, batch: int) -> StepSettings:
    rates = {
        "means": scene.means_lr, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2,
        "sh0": 2.5e-3, "shN": 1.25e-4,
    }  # fmt: skip
    factor = batch**0.5
    return StepSettings(
        3, {name: rate * factor for name, rate in rates.items()},
        (0.9**batch, 0.999**batch), 1e-15 / factor, 0.2,
    )  # fmt: skip


def in_device(
    scene: Scene, renderer: Renderer, make: Callable[[Any], torch.optim.Optimizer]
) -> Engine:
    model = Gaussians(scene.rows, device=renderer.device, make_optimizer=make)
    return mirror_engine(model, renderer)


def fused(groups: Any) -> torch.optim.Optimizer:
    if groups[0]["params"][0].is_cuda:
        return torch.optim.Adam(groups, eps=1e-15, fused=True)
    return torch.optim.Adam(groups, eps=1e-15)


class Selective:
    """All on the device; only rows that the batch draws are updated, by gsplat's kernel."""

    def __init__(self, scene: Scene, renderer: Renderer) -> None:
        from gsplat.optimizers import SelectiveAdam

        drawn = torch.zeros(len(scene.rows["sh0"]), dtype=torch.bool, device=renderer.device)

        class DrawnRows(SelectiveAdam):  # type: ignore[misc]
            def step(self) -> None:
                super().step(drawn)

        self._drawn = drawn
        self._engine = in_device(
            scene, renderer, lambda groups: DrawnRows(groups, eps=1e-15, betas=(0.9, 0.999))
        )
        self.model, self.finish = self._engine.model, self._engine.finish

    def step(self, batch: Any, settings: Any, observe: Any, *, upcoming: Any = ()) -> Tensor:
        self._drawn.zero_()

        def note(ids: Tensor, splats: Splats) -> None:
            self._drawn[ids.long()] = True

        return self._engine.step(batch, settings, note, upcoming=upcoming)


def batches(
    scene: Scene, size: int, order: str = PATH, tile_views: int | None = None
) -> Iterator[list[int]]:
    """Views of one step after the other, without end."""
    n = len(scene.views)
    if order == PATH:
        for at in itertools.count(0, size):
            yield [(at + k) % n for k in range(size)]
    cameras = torch.stack([view.viewmat for view in scene.views]).double().cpu().numpy()
    tiles = tile_views if order == "tiles" else None
    yield from ViewSampler(n, size, order=order, cameras=cameras, tile_views=tiles)  # type: ignore[arg-type]


def measure(
    name: str,
    make: Callable[[], Engine | Selective],
    scene: Scene,
    batch: int,
    order: str,
    limits: Alone,
    arguments: argparse.Namespace,
) -> Row:
    device = scene.views[0].K.device
    cuda = device.type == "cuda"
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    backend = make()
    options = settings(scene, batch)
    source = batches(scene, batch, order, arguments.tile_views)
    following = deque(next(source) for _ in range(2))

    def step() -> None:
        now = following.popleft()
        following.append(next(source))
        photos = [scene.photos[i].to(device, non_blocking=True) for i in now]
        backend.step(
            [(scene.views[i], photo) for i, photo in zip(now, photos)], options,
            lambda ids, splats: None,
            upcoming=[[scene.views[i] for i in after] for after in following],
        )  # fmt: skip

    def settle() -> None:
        backend.finish()
        if cuda:
            torch.cuda.synchronize()

    def run(seconds: float) -> tuple[int, float]:
        settle()
        started, n = time.perf_counter(), 0
        while n < 3 or time.perf_counter() - started < seconds:
            step()
            n += 1
        settle()
        return n, time.perf_counter() - started

    started, n = time.perf_counter(), 0
    while n < 2 or (n * batch < 16 and time.perf_counter() - started < arguments.seconds):
        step()
        n += 1
    runs = [run(arguments.seconds) for _ in range(arguments.samples)]
    rates = [n * batch / elapsed for n, elapsed in runs]
    row = Row(name, batch, order, scene.overlap, rates, process_bytes() / 1e9)
    if name in PRESET_NAMES and name != "naive":
        row.loaded = backend.stats.loaded / max(1, backend.stats.visible)
        row.union = backend.stats.union / max(1, backend.stats.visible)
        parts = limits.parts(backend, batch)
        row.bound_by = max(parts, key=lambda part: parts[part])
        row.bound = 1e3 * parts[row.bound_by]
        if arguments.trace is not None:
            called = f"{backend.model.n_rows}_{order}_{scene.overlap:.2f}_{batch}_{name}.json"
            path = arguments.trace / called
            backend.trace.start(path)
            run(arguments.seconds / 4)
            backend.trace.write()
            row.busy = trace_shares.shares(trace_shares.read(path))
    if name == CEILING:
        limits.render_s = 1e-3 * row.milliseconds
    backend.model.close()
    return row


def makers(
    scene: Scene, renderer: Renderer, batch: int
) -> dict[str, Callable[[], Engine | Selective]]:
    made: dict[str, Callable[[], Engine | Selective]] = {
        TORCH: lambda: in_device(scene, renderer, fused),
        CEILING: lambda: in_device(scene, renderer, Nothing),
    }
    if renderer.device.type == "cuda":
        made["gsplat's SelectiveAdam"] = lambda: Selective(scene, renderer)
    for name in PRESET_NAMES:
        if name == "gs-scale" and batch != 1:
            continue
        made[name] = lambda name=name: make_backend(
            PRESETS[name], scene.rows, None, renderer=renderer, semantics="dense", mem_limit=0.3
        )
    return made


def lines_of(
    scene: Scene, renderers: Sequence[Renderer], batch: int, order: str, options: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Engine | Selective]]]:
    """What is measured in an order, by name."""
    for renderer in renderers:
        for name, make in makers(scene, renderer, batch).items():
            is_wanted = not options.only or name in options.only
            if is_wanted and (order == options.order[0] or name in IN_EVERY_ORDER):
                yield name if renderer is renderers[0] else f"{name}, {renderer.name}", make


def show(rows: Sequence[Row]) -> None:
    print(
        f"{'':22s} {'images/s':>9s} {'ms':>7s} {'of none':>8s} {'of naive':>8s} "
        f"{'of ceiling':>10s} {'device GB':>9s} {'loaded':>7s} {'union':>6s} {'of bound':>9s}"
    )
    by_name = {row.name: row for row in rows}
    for row in rows:

        def ratio(other: str, row: Row = row) -> str:
            if other not in by_name:
                return ""
            return f"{row.images_per_second / by_name[other].images_per_second:.2f}"

        print(
            f"{row.name:22s} {row.images_per_second:9.1f} {row.milliseconds:7.2f} "
            f"{ratio('none'):>8s} {ratio('naive'):>8s} {ratio(CEILING):>10s} {row.device_gb:9.2f} "
            f"{row.loaded:7.2f} {row.union:6.2f} {row.bound / row.milliseconds:9.2f} "
            f"{row.bound_by:6s} "
            + " ".join(f"{track} {share:.2f}" for track, share in row.busy.items()),
            flush=True,
        )


def note(record: Record, row: Row, scene: Scene) -> None:
    """Give a line to the file."""
    view = scene.views[0]
    axes = {
        "gaussians": len(scene.rows["sh0"]),
        "size": [view.width, view.height],
        "views": len(scene.views),
        "overlap": round(scene.overlap, 2),
        "order": row.order,
        "batch": row.batch,
    }
    of_line = {"name", "rates", *axes}
    facts = {name: value for name, value in vars(row).items() if name not in of_line}
    record.add(row.name, row.rates, "images/s", axes=axes, visible=scene.visible, **facts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16, 64])
    parser.add_argument("--order", nargs="+", choices=ORDERS, default=["shuffle", "tiles"])
    parser.add_argument("--tile-views", type=int, help="as gs-train's")
    parser.add_argument("--overlap", type=float, nargs="+", default=[0.72], help="of neighbours")
    parser.add_argument("--only", nargs="+", help="these lines of the table")
    parser.add_argument(
        "--renderer", nargs="+", default=["auto"], help="each draws every line; the first leads"
    )
    parser.add_argument("--views", type=int, default=SURVEY, help="of the survey")
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--seconds", type=float, default=2.0, help="per sample")
    parser.add_argument("--samples", type=int, default=3, help="runs of a line")
    add_json_option(parser)
    parser.add_argument("--trace", type=Path, help="folder for a trace of each preset")
    arguments = parser.parse_args()
    if arguments.trace is not None:
        arguments.trace.mkdir(parents=True, exist_ok=True)
    record = Record(arguments.json)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    renderers = [make_renderer(name, RenderOptions()) for name in arguments.renderer]
    city = workloads.city(arguments.n, device=device)
    city = city.reordered(morton_order(city.means))
    drawn = workloads.attributes(city)
    rows = {name: values.cpu() for name, values in drawn.items()}
    alone = Alone(device)
    size = tuple(arguments.size)
    scenes = [
        replace(make_scene(city, overlap, arguments.views, size, drawn), rows=rows)
        for overlap in arguments.overlap
    ]
    del city, drawn  # their copies on the device are not the trainer's
    for scene in scenes:
        for batch in arguments.batch:
            for order in arguments.order:
                print(
                    f"\n{arguments.n:,} Gaussians, {order}, batch {batch}, {scene.visible:,.0f} "
                    f"rows a view, neighbours overlap {scene.overlap:.2f}"
                )
                table = [
                    measure(called, make, scene, batch, order, alone, arguments)
                    for called, make in lines_of(scene, renderers, batch, order, arguments)
                ]
                show(table)
                for row in table:
                    note(record, row, scene)
                record.write()


if __name__ == "__main__":
    main()
