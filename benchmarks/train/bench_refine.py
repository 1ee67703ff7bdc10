# SPDX-License-Identifier: Apache-2.0
"""What does densification cost a scene that is large already?

Decides whether a refinement may touch all rows, or only those that change. The synthetic city at
1080p trains as in ``bench_engine.py``. Every so many images a share of its rows, drawn at random,
is removed and as many are added, copies of others a little beside them, by the operations that
densification uses. So the number of rows stays. Against: the same without refinements, in the same
process, runs of both in turn. The ceiling is 1.0, a refinement that costs nothing.

    PYTHONPATH=benchmarks python benchmarks/train/bench_refine.py --n 20_000_000 --batch 8

A sample is the rate of a run of ``--images``, from an idle device to an idle device. The parts of a
refinement are timed with the device idle before and after each of them:

    choose      which rows go and which are copied: a pass over all rows' opacities and scales
    read        the rows that are copied, caught up, wherever they are
    replace     the edit itself, in all tiers
    rest        how much longer the next batch takes than a usual one: lists found early are lost

    re-sort     all rows are put in the order of the Morton curve, once in so many refinements, as
                in training: after ``resort_every`` times N rows have come or gone

Two re-sorts fall into a run of 5,000 images with the defaults.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from bench_engine import Scene, batches, make_scene, settings
from torch import Tensor

import workloads
from gs_train.backends import make_backend
from gs_train.engine.engine import Engine
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, RenderOptions, make_renderer
from gs_train.rows.morton import morton_order
from harness import Record, add_json_option

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as gs-train does

PIECE = 1 << 22  # rows that are looked at at once, as densification does
PARTS = ("choose", "read", "replace", "re-sort", "rest")


@dataclass
class Row:
    """One line of the table.

    Attributes:
        with_refinements, without: images a second of each run.
        parts: milliseconds of each refinement, by part.
        changed: rows that a refinement removes, and adds.
    """

    name: str
    batch: int
    with_refinements: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS})
    changed: int = 0

    @property
    def ratios(self) -> list[float]:
        """Of each pair of runs."""
        return [a / b for a, b in zip(self.with_refinements, self.without, strict=True)]


class Training:
    """Steps of a backend, and refinements of its rows."""

    def __init__(self, backend: Engine, scene: Scene, batch: int, share: float) -> None:
        self.backend = backend
        self._scene = scene
        self._batch = batch
        self._share = share
        self._settings = settings(scene, batch)
        self._source = batches(scene, batch)
        self._following = deque(next(self._source) for _ in range(2))
        self._device = scene.views[0].K.device
        self._random = torch.Generator(self._device).manual_seed(1)
        self._changes = 0  # of rows, since they were in order

    def step(self) -> None:
        """One batch."""
        scene, now = self._scene, self._following.popleft()
        self._following.append(next(self._source))
        photos = [scene.photos[i].to(self._device, non_blocking=True) for i in now]
        self.backend.step(
            [(scene.views[i], photo) for i, photo in zip(now, photos)], self._settings,
            lambda ids, splats: None,
            upcoming=[[scene.views[i] for i in after] for after in self._following],
        )  # fmt: skip

    def refine(self, row: Row) -> None:
        """Remove rows and add as many."""
        model = self.backend.model
        self.settle()
        with self._timed(row, "choose"):
            removed, parents = self._chosen()
        with self._timed(row, "read"):
            new = model.read_rows(parents)
            keys = model.keys.born(len(parents))
        with self._timed(row, "replace"):
            offsets = torch.randn(new["means"].shape, generator=self._random, device=self._device)
            new["means"] += offsets * new["scales"].exp()
            model.replace(removed, new, keys)
        row.changed = len(removed)
        self._changes += 2 * len(removed)
        if self._changes >= FitConfig.resort_every * model.n_rows:
            with self._timed(row, "re-sort"):
                self.backend.make_room()
                model.permute(morton_order(model.read("means")))
            self._changes = 0

    def settle(self) -> None:
        """Wait until the device is idle; rows that are there stay there."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, images: int, every: int, row: Row | None) -> float:
        """Images a second of a run, with refinements noted in ``row`` or without any."""
        usual = 1e3 * self._batch / statistics.median(row.without) if row else 0.0
        self.settle()
        started, seen = time.perf_counter(), 0
        while seen < images:
            self.step()
            seen += self._batch
            if row is None or seen // every == (seen - self._batch) // every:
                continue
            self.refine(row)
            before = time.perf_counter()
            self.step()
            seen += self._batch
            self.settle()
            row.parts["rest"].append(1e3 * (time.perf_counter() - before) - usual)
        self.settle()
        return seen / (time.perf_counter() - started)

    def _chosen(self) -> tuple[Tensor, Tensor]:
        """Ids of rows to remove and of rows to copy, as many."""
        model = self.backend.model
        opacities, scales, n = model.read("opacities"), model.read("scales"), model.n_rows
        found: list[tuple[Tensor, Tensor]] = []
        for first in range(0, n, PIECE):
            part = slice(first, min(first + PIECE, n))
            drawn = torch.rand(part.stop - first, generator=self._random, device=self._device)
            # What densification looks at; all rows of the city stay within these bounds.
            fits = torch.sigmoid(opacities[part]) >= 0.0
            fits &= scales[part].amax(dim=-1).exp() < torch.inf
            goes, grows = fits & (drawn < self._share), fits & (drawn > 1.0 - self._share)
            goes, grows = (mask.nonzero().flatten().add_(first) for mask in (goes, grows))
            found.append((goes, grows))
        removed, parents = (torch.cat(ids) for ids in zip(*found, strict=True))
        count = min(len(removed), len(parents))
        return removed[:count], parents[:count]

    @contextmanager
    def _timed(self, row: Row, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.settle()
        row.parts[part].append(1e3 * (time.perf_counter() - started))


def measure(
    name: str, scene: Scene, renderer: Renderer, batch: int, arguments: argparse.Namespace
) -> Row:
    gc.collect()
    if renderer.device.type == "cuda":
        torch.cuda.empty_cache()
    backend = make_backend(
        PRESETS[name], scene.rows, None, renderer=renderer, semantics="dense", mem_limit=0.3
    )
    training, row = Training(backend, scene, batch, arguments.share), Row(name, batch)
    n_rows = backend.model.n_rows
    for _ in range(max(2, 16 // batch)):
        training.step()
    for _ in range(arguments.samples):
        row.without.append(training.run(arguments.images, arguments.every, None))
        row.with_refinements.append(training.run(arguments.images, arguments.every, row))
    assert backend.model.n_rows == n_rows
    backend.model.close()
    return row


def show(row: Row) -> None:
    n = max(1, len(row.parts["replace"]))
    parts = {name: sum(times) / n for name, times in row.parts.items()}
    print(
        f"{row.name:6s} batch {row.batch:3d}: {statistics.median(row.with_refinements):7.1f} of "
        f"{statistics.median(row.without):7.1f} images/s, {statistics.median(row.ratios):.2f}; a "
        f"refinement of {row.changed:,} rows takes {sum(parts.values()):.1f} ms ("
        + ", ".join(f"{name} {value:.1f}" for name, value in parts.items())
        + f"), {len(row.parts['re-sort'])} re-sorts of "
        f"{statistics.mean(row.parts['re-sort'] or [0.0]):.0f} ms",
        flush=True,
    )


def note(record: Record, row: Row, scene: Scene, arguments: argparse.Namespace) -> None:
    """Give the lines of a preset to the file."""
    view = scene.views[0]
    axes = {
        "gaussians": len(scene.rows["sh0"]),
        "size": [view.width, view.height],
        "batch": row.batch,
        "every": arguments.every,
        "share": arguments.share,
    }
    facts = {"visible": scene.visible, "changed": row.changed}
    record.add(row.name, row.with_refinements, "images/s", axes=axes, **facts)
    record.add(f"{row.name}, no refinement", row.without, "images/s", axes=axes)
    record.add(f"{row.name}, ratio", row.ratios, "", axes=axes)
    for part, times in row.parts.items():
        if times:
            record.add(f"{row.name}, {part}", times, "ms", axes=axes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--only", nargs="+", default=["none", "best"], choices=sorted(PRESETS))
    parser.add_argument(
        "--images", type=int, default=2600, help="of a run: one re-sort falls into it"
    )
    parser.add_argument("--every", type=int, default=100, help="images between refinements")
    parser.add_argument("--share", type=float, default=0.02, help="of the rows, that is replaced")
    parser.add_argument("--overlap", type=float, default=0.72, help="of neighbours")
    parser.add_argument("--views", type=int, default=128)
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--samples", type=int, default=3, help="pairs of runs of a preset")
    add_json_option(parser)
    arguments = parser.parse_args()
    record = Record(arguments.json, resort_every=FitConfig.resort_every)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    renderer = make_renderer("auto", RenderOptions())
    city = workloads.city(arguments.n, device=device)
    city = city.reordered(morton_order(city.means))
    rows = {name: values.cpu() for name, values in workloads.attributes(city).items()}
    size = tuple(arguments.size)
    scene = make_scene(city, arguments.overlap, arguments.views, size, rows)
    del city  # its copy on the device is not the trainer's
    print(
        f"{arguments.n:,} Gaussians, {scene.visible:,.0f} rows a view, every {arguments.every} "
        f"images {arguments.share:.1%} of the rows are replaced"
    )
    for batch in arguments.batch:
        for name in arguments.only:
            row = measure(name, scene, renderer, batch, arguments)
            show(row)
            note(record, row, scene, arguments)
            record.write()


if __name__ == "__main__":
    main()
