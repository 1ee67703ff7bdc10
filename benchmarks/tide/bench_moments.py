# SPDX-License-Identifier: Apache-2.0
"""What does it gain that rows keep Adam's moments when their block leaves the device?

Decides whether 476 of the 716 bytes of a row are worth their place on the drive and their way over
the link. The preset ``tide`` trains a capture twice from the same points, with slots for a part of
the blocks: once as it is, which leaves the bits of training in one place; and once so that a block
that comes into a slot has lost its moments, and Adam counts its steps from 1 again, as trainers do
that keep values alone on the drive. Held-out views are compared seed by seed. Nothing in the
product forgets: the benchmark overwrites slots and steps behind its back.

    PYTHONPATH=benchmarks python benchmarks/tide/bench_moments.py CALITERRA --json moments.json

On one core of a server a run of the defaults takes a minute or two with the CPU renderer.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import gs_train
from gs_pinned.block_slots import BlockSlots
from gs_train.blocks.block_planes import MOMENTS, planes_of
from gs_train.blocks.stored_adam import StoredAdam
from gs_train.data import FROM_PYTHON, Capture, load_capture
from gs_train.options.config import FitConfig
from gs_train.options.tide import TideConfig
from harness import Record, add_json_option

KEPT, FORGOTTEN, GAIN = "kept", "forgotten", "kept - forgotten"


class Forgetting:
    """While entered, blocks that come into slots of CPU memory begin Adam anew.

    Rows of a block in a slot take the steps of an Adam whose first step is the first one after the
    block came. What sleeping rows move by is left as it is: it comes from the moments since then.

    Args:
        options: of the run.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        names = [plane.name for plane in planes_of((options.sh_degree + 1) ** 2 - 1)]
        self._moments = [k for k, name in enumerate(names) if ".exp_avg" in name]
        self._block_rows = options.block_rows
        self._step = 0  # that was begun last
        self._since = np.zeros(options.cap, np.int64)  # by slot, the step that was begun before
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> None:
        exchange, begin, update = BlockSlots.exchange, StoredAdam.begin, StoredAdam.update

        def forgets(slots_of: BlockSlots, tables: Any, stored: Any, loaded: Any, at: Any) -> None:
            exchange(slots_of, tables, stored, loaded, at)
            for k in self._moments:
                slots_of._arrays[k][at] = 0.0
            self._since[at] = self._step

        def begins(adam: StoredAdam, rates: Any) -> None:
            begin(adam, rates)
            self._step = adam._step

        def updates(adam: StoredAdam, tables: Any, places: Tensor, *others: Any) -> None:
            update(adam, tables, places, *others)
            self._correct(adam, tables, places)

        for kind, name, new in (
            (BlockSlots, "exchange", forgets),
            (StoredAdam, "begin", begins),
            (StoredAdam, "update", updates),
        ):
            self._patches.enter_context(mock.patch.object(kind, name, new))

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _correct(self, adam: StoredAdam, tables: Any, places: Tensor) -> None:
        """Move rows from where the step has put them to where one counted from 1 would have."""
        values, mean, square = (tables[adam._plane + moment] for moment in MOMENTS)
        groups = adam.schedule.param_groups
        rates = [torch.full((width,), g["lr"]) for g, width in zip(groups, adam._widths)]
        (b1, b2), eps = groups[0]["betas"], groups[0]["eps"]
        m, root, rate = mean[places], square[places].sqrt(), torch.cat(rates)
        own = torch.from_numpy(self._step - self._since)[places // self._block_rows].clamp(min=1)

        def moved(step: Tensor) -> Tensor:
            first, second = 1 - b1 ** step.double(), (1 - b2 ** step.double()).sqrt()
            return rate * (m / first[:, None]) / (root / second[:, None] + eps)

        change = moved(torch.full_like(own, self._step)) - moved(own)
        values[places] += change.float()


def trained(
    capture: Capture, order: str, seed: int, forgets: bool, options: argparse.Namespace
) -> dict[str, Any]:
    """Metrics of a run."""
    n_blocks = -(-options.cap // options.block_rows)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        config = FitConfig(
            data=FROM_PYTHON,
            out=Path(folder) / "run",
            steps=options.epochs * len(capture.train) // options.batch_size,
            batch_size=options.batch_size,
            cap=options.cap,
            strategy="fixed",
            sh_degree=options.sh_degree,
            seed=seed,
            order=order,  # type: ignore[arg-type]
            renderer=options.renderer,
            offload="tide",
            block_rows=options.block_rows,
            tide=TideConfig(slots=max(1, int(options.slots * n_blocks)), arena=options.arena),
            checkpoint_every=0,
        )
        with Forgetting(options) if forgets else contextlib.nullcontext():
            return dict(gs_train.fit(config, capture=capture).metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture", type=Path, help="folder with a COLMAP model")
    parser.add_argument("--max-side", type=int, default=96)
    parser.add_argument("--cap", type=int, default=4000, help="points to start from")
    parser.add_argument("--sh-degree", type=int, default=0)
    parser.add_argument("--block-rows", type=int, default=32)
    parser.add_argument("--slots", type=float, default=0.5, help="share of the blocks")
    parser.add_argument("--arena", default="64MB")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--orders", nargs="+", default=["shuffle", "tiles"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--renderer", default="cpu", choices=["cpu"])
    parser.add_argument("--folder", type=Path, default=None, help="for the stores")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json, seeds=options.seeds, slots=options.slots)
    with tempfile.TemporaryDirectory(dir=options.folder) as cache:
        capture = load_capture(options.capture, cache_dir=Path(cache), max_side=options.max_side)
        view = capture.views[0]
        for order in options.orders:
            axes = {
                "capture": options.capture.resolve().name, "order": order,
                "photographs": len(capture.views), "size": [view.width, view.height],
                "gaussians": options.cap, "epochs": options.epochs, "batch": options.batch_size,
            }  # fmt: skip
            scores: dict[str, list[float]] = {KEPT: [], FORGOTTEN: []}
            loads: dict[str, list[float]] = {KEPT: [], FORGOTTEN: []}
            for seed in options.seeds:
                for name in scores:
                    metrics = trained(capture, order, seed, name == FORGOTTEN, options)
                    scores[name].append(float(metrics["psnr"]))
                    loads[name].append(float(metrics["store"]["blocks_missed"]))
                print(f"{order:8s} seed {seed}: kept {scores[KEPT][-1]:.3f} dB, forgotten "
                      f"{scores[FORGOTTEN][-1]:.3f}, {loads[KEPT][-1]:,.0f} blocks came into slots",
                      flush=True)  # fmt: skip
            for name, values in scores.items():
                record.add(name, values, "dB", axes=axes, blocks_loaded=loads[name])
            gains = [a - b for a, b in zip(scores[KEPT], scores[FORGOTTEN], strict=True)]
            record.add(GAIN, gains, "dB", axes=axes)
            print(f"{order:8s} gain {statistics.mean(gains):+.3f} dB "
                  f"({min(gains):+.3f} to {max(gains):+.3f})")  # fmt: skip
            record.write()


if __name__ == "__main__":
    main()
