# SPDX-License-Identifier: Apache-2.0
"""Does the trainer reach gsplat's quality on a real capture, at what rate and in how much memory?

Decides whether a user of gsplat loses anything by training here. Ours is ``gs-train fit`` as the
command line runs it. The peer is the loop of gsplat's example trainer (its ``rasterization`` of all
rows, one fused torch Adam for each parameter, its strategy) on the same images, initial rows,
learning rates and loss. ``--faster-gs`` adds that loop with the kernels and the Adam of Faster-GS,
and ``--before`` adds gs-train of another commit: ``none``, in a process of its own. ``--swap`` adds
lines that differ from ours in one part, which is then gsplat's: where two trainers' scores differ,
the lines say which part makes the difference.

All train one after the other, for several seeds: single runs differ by some tenths of a dB. Before
the first seed each trains for some steps that do not count, so that no seed loads kernels. Below
the table of means, ours are compared with each other trainer seed by seed: the median (least to
most) of the ratios of their rates, and the mean difference of their scores with its standard error.
Files of further seeds are joined by ``benchmarks/join_seeds.py``.

    PYTHONPATH=benchmarks python benchmarks/train/bench_real_capture.py CAPTURE --seeds 0 1 2
    ... --no-peer --before SITE --before-commit COMMIT

SITE is made by ``pip install --no-deps --target SITE ./packages/gs-*`` in a checkout of COMMIT.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import earlier
import torch
from pairs import Pair, Scores

import faster_gs
from gs_train.data import Capture, load_capture
from gs_train.densify import AdcConfig
from gs_train.options.config import FitConfig
from gs_train.runs.parts import Parts
from gs_train.runs.strategies import Strategy
from gs_train.runs.training import fit
from gs_train.scene.scene import Scene
from harness import Record, add_json_option
from results import COMMIT

PEER = "gsplat's loop"
FASTER_GS = "Faster-GS's loop"
BEFORE = "before"
SWAPS = {"renderer": "gsplat's renderer", "densifier": "gsplat's densifier",
         "both": "gsplat's renderer and densifier"}  # fmt: skip
WARM_UP = 600
"""Steps: the first refinement is among them."""
UNITS = {
    "psnr": "dB",
    "ssim": "SSIM",
    "n_gaussians": "Gaussians",
    "images_per_second": "images/s",
    "peak_device_mb": "MB",
}

Train = Callable[[FitConfig], Scores]


def ours(config: FitConfig, strategy: Strategy | None = None, **options: Any) -> Scores:
    """One run of the command line's ``fit``, with other options and another densifier."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, out=Path(folder) / "run", **options)
        return scores_of(fit(config, Parts(strategy=strategy)))


def own(options: argparse.Namespace) -> dict[str, Train]:
    """Ours: each preset, and the first preset with parts of gsplat's."""
    first, memory = options.offload[0], options.device_memory
    made: dict[str, Train] = {
        name: partial(ours, offload=name, device_memory=memory) for name in options.offload
    }
    for swap in options.swap:
        more: dict[str, Any] = {} if swap == "densifier" else {"renderer": "gsplat"}
        if swap != "renderer":
            from gsplat_densifier import GsplatDensifier

            more["strategy"] = GsplatDensifier
        name = f"{first}, {SWAPS[swap]}"
        made[name] = partial(ours, offload=first, device_memory=memory, **more)
    return made


def before(config: FitConfig, site: Path) -> Scores:
    """The same of another commit, with all on the device."""
    return scores_of(earlier.fit(site, replace(config, offload="none"), warm_up=WARM_UP))


def scores_of(metrics: dict[str, Any]) -> Scores:
    """What metrics.json says, by column."""
    of_file = {name: name for name in UNITS} | {"peak_device_mb": "peak_device_bytes"}
    found = {column: float(metrics[name]) for column, name in of_file.items()}
    return found | {"peak_device_mb": found["peak_device_mb"] / 1e6}


def peers(capture: Capture, options: argparse.Namespace) -> dict[str, Train]:
    """The loops of other kernels that are asked for."""
    if options.no_peer and not options.faster_gs:
        return {}
    from peer_kernels import FasterGs, Gsplat
    from peer_loop import train

    scene = Scene.load(capture, torch.device("cuda", torch.cuda.current_device()))
    kinds = ({} if options.no_peer else {PEER: Gsplat}) | (
        {FASTER_GS: FasterGs} if options.faster_gs else {}
    )
    return {name: partial(train, kind(scene), scene) for name, kind in kinds.items()}


def config_of(options: argparse.Namespace, seed: int, steps: int) -> FitConfig:
    """What all trainers have in common."""
    # Absolute gradients are larger; this threshold grows about as many Gaussians.
    absgrad = AdcConfig(absgrad=True, grow_grad2d=0.0012)
    return FitConfig(
        data=options.capture,
        out=Path("run"),  # each run has a folder of its own
        steps=steps,
        seed=seed,
        strategy=options.strategy,
        cap=options.cap,
        adc=absgrad if options.absgrad else AdcConfig(),
        renderer=options.renderer,
        checkpoint_every=0,
    )


def write(
    record: Record,
    runs: dict[str, list[Scores]],
    pairs: list[Pair],
    capture: Capture,
    options: argparse.Namespace,
) -> None:
    """The file anew, with a sample for each seed so far."""
    view = capture.views[0]
    axes = {
        "photographs": len(capture.views),
        "test": len(capture.test),
        "size": [view.width, view.height],
        "steps": options.steps,
        "strategy": options.strategy,
    }
    record.facts["seeds"] = options.seeds[: max(map(len, runs.values()))]
    record.clear()
    for name, results in runs.items():
        for column, unit in UNITS.items():
            if results:
                record.add(name, [result[column] for result in results], unit, axes=axes)
    for pair in pairs:
        pair.add_to(record, axes)
    record.write()


def paired(runs: dict[str, list[Scores]], ours: Collection[str]) -> list[Pair]:
    """Each of ours over each trainer after it."""
    return [
        Pair(name, runs[name], other, runs[other])
        for name, other in combinations(runs, 2)
        if name in ours
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--strategy", choices=("adc", "mcmc"), default="adc")
    parser.add_argument("--cap", type=int)
    parser.add_argument("--absgrad", action="store_true", help="gs-train only")
    parser.add_argument("--renderer", default="auto", help="as gs-train's")
    parser.add_argument("--no-peer", action="store_true", help="without gsplat's loop")
    parser.add_argument(
        "--swap", nargs="+", choices=SWAPS, default=[], help="with these parts of gsplat's"
    )
    parser.add_argument("--faster-gs", action="store_true", help="with Faster-GS's loop")
    parser.add_argument("--before", type=Path, help="folder of the packages of another commit")
    parser.add_argument("--before-commit", help="that commit, 40 hexadecimal digits")
    parser.add_argument("--offload", nargs="+", default=["none"], help="presets, one after another")
    parser.add_argument("--device-memory", help="as gs-train's, where the presets shall live")
    add_json_option(parser)
    options = parser.parse_args()
    if options.faster_gs and not faster_gs.is_installed():
        parser.error(f"--faster-gs: {faster_gs.INSTALL}")
    has_peers = options.faster_gs or not options.no_peer
    if has_peers and options.cap is not None and options.strategy == "adc":
        parser.error("--cap needs --strategy mcmc or --no-peer: gsplat's strategy takes it there")
    if options.strategy != "adc" and {"densifier", "both"} & set(options.swap):
        parser.error(f"--swap densifier needs --strategy adc, got {options.strategy}")
    if options.before is not None and not COMMIT.fullmatch(options.before_commit or ""):
        got = options.before_commit
        parser.error(f"--before-commit must be 40 hexadecimal digits with --before, got {got}")
    return options


def main() -> None:
    options = arguments()
    # As the command line does, before the device's memory is first used.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    record = Record(options.json)
    trainers = own(options)
    names = list(trainers)
    with tempfile.TemporaryDirectory() as cache:
        capture = load_capture(options.capture, cache_dir=Path(cache))
        trainers |= peers(capture, options)
        for train in trainers.values():
            train(config_of(options, options.seeds[0], min(WARM_UP, options.steps)))
        if options.before is not None:  # it warms up by itself
            trainers[BEFORE] = partial(before, site=options.before)
            record.facts["before"] = options.before_commit
        runs: dict[str, list[Scores]] = {name: [] for name in trainers}
        for seed in options.seeds:
            for name, train in trainers.items():
                runs[name].append(train(config_of(options, seed, options.steps)))
            write(record, runs, paired(runs, names), capture, options)
    print(f"{options.strategy}, {options.steps} steps, seeds {options.seeds}: mean (least to most)")
    print(f"{'':16s}" + "".join(f"{column:>28s}" for column in UNITS))
    for name, results in runs.items():
        print(f"{name:16s}" + "".join(f"{_spread(results, c):>28s}" for c in UNITS))
    for pair in paired(runs, names):
        print(pair)


def _spread(results: list[Scores], column: str) -> str:
    values = [result[column] for result in results]
    digits = {"psnr": 2, "ssim": 4}.get(column, 0)
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ({low} to {high})"


if __name__ == "__main__":
    main()
