# SPDX-License-Identifier: Apache-2.0
"""Does the trainer reach gsplat's quality on a real capture, at what rate and in how much memory?

Decides whether a user of gsplat loses anything by training here. Ours is ``gs-train fit`` as the
command line runs it; the peer is the loop of gsplat's example trainer (its ``rasterization`` of all
rows, one fused torch Adam for each parameter, its ``DefaultStrategy``) on the same images, initial
rows, learning rates and loss. Both in one process, one after the other, for several seeds: single
runs differ by some tenths of a dB.

    PYTHONPATH=benchmarks python benchmarks/train/bench_real_capture.py CAPTURE --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gsplat
import torch
from torch import Tensor

from gs_order import ViewSampler
from gs_train.data import Capture, load_capture, read_image
from gs_train.densify import AdcConfig
from gs_train.losses.loss import Crop, photometric_loss
from gs_train.options.config import FitConfig
from gs_train.options.schedule import LearningRates
from gs_train.runs.feed import ImageFeed
from gs_train.runs.metrics import psnr, ssim
from gs_train.runs.training import fit
from gs_train.scene.initialize import rows_from_points
from gs_train.scene.scene import Scene
from harness import Record, add_json_option

PEER = "gsplat's loop"
UNITS = {
    "psnr": "dB",
    "ssim": "SSIM",
    "n_gaussians": "Gaussians",
    "images_per_second": "images/s",
    "peak_device_mb": "MB",
}
COLUMNS = tuple(UNITS)


def ours(data: Path, seed: int, offload: str, options: argparse.Namespace) -> dict[str, float]:
    """One run of the command line's ``fit``."""
    # Absolute gradients are larger; this threshold grows about as many Gaussians.
    absgrad = AdcConfig(absgrad=True, grow_grad2d=0.0012)
    with tempfile.TemporaryDirectory() as out:
        config = FitConfig(
            data=data,
            out=Path(out) / "run",
            steps=options.steps,
            seed=seed,
            strategy=options.strategy,
            cap=options.cap,
            adc=absgrad if options.absgrad else AdcConfig(),
            renderer=options.renderer,
            checkpoint_every=0,
            offload=offload,  # type: ignore[arg-type]
            device_memory=options.device_memory,
        )
        torch.cuda.reset_peak_memory_stats()
        metrics = fit(config)
    return {
        "psnr": metrics["psnr"],
        "ssim": metrics["ssim"],
        "n_gaussians": metrics["n_gaussians"],
        "images_per_second": metrics["images_per_second"],
        "peak_device_mb": metrics["peak_device_bytes"] / 1e6,
    }


def gsplats_loop(capture: Capture, seed: int, steps: int) -> dict[str, float]:
    """The example trainer's loop with its defaults."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(seed)
    scene = Scene.load(capture, device)
    rows = rows_from_points(
        scene.frame.points_in(capture.points), capture.colors, sh_degree=3, seed=seed
    )
    params = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(value.to(device)) for name, value in rows.items()}
    )
    rates = vars(LearningRates()) | {"means": 1.6e-4 * scene.frame.extent}
    optimizers = {
        name: torch.optim.Adam([{"params": p, "lr": rates[name]}], eps=1e-15, fused=True)
        for name, p in params.items()
    }
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizers["means"], 0.01 ** (1 / steps))
    strategy = gsplat.DefaultStrategy()
    strategy.check_sanity(params, optimizers)
    state = strategy.initialize_state(scene_scale=scene.frame.extent)

    def render(index: int, sh_degree: int) -> tuple[Tensor, dict[str, Any]]:
        view = scene.views[index]
        image, _, info = gsplat.rasterization(
            params["means"],
            params["quats"],
            torch.exp(params["scales"]),
            torch.sigmoid(params["opacities"]),
            torch.cat([params["sh0"], params["shN"]], 1),
            view.viewmat[None],
            view.K[None],
            view.width,
            view.height,
            sh_degree=sh_degree,
            packed=False,
        )
        return image[0], info

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with ImageFeed(
        _sequence(capture, seed, steps),
        lambda i: read_image(capture.views[i]),
        device=device,
        cache_bytes=4 << 30,
        largest_bytes=max(v.width * v.height * 3 for v in capture.views),
    ) as feed:
        started = time.perf_counter()
        for step in range(steps):
            index, truth = feed.next()
            image, info = render(index, min(step // 1000, 3))
            strategy.step_pre_backward(params, optimizers, state, step, info)
            view = scene.views[index]
            photometric_loss(image, truth, Crop(view, view.rect), 0.2).backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            decay.step()
            strategy.step_post_backward(params, optimizers, state, step, info)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated()
    psnrs, ssims = [], []
    with torch.no_grad():
        for index in capture.test:
            image = render(index, 3)[0].clamp(0, 1)
            truth = torch.from_numpy(read_image(capture.views[index])).to(device).float() / 255
            psnrs.append(psnr(image, truth))
            ssims.append(ssim(image, truth))
    return {
        "psnr": statistics.mean(psnrs),
        "ssim": statistics.mean(ssims),
        "n_gaussians": len(params["means"]),
        "images_per_second": steps / seconds,
        "peak_device_mb": peak / 1e6,
    }


def _sequence(capture: Capture, seed: int, steps: int) -> Iterator[int]:
    for batch in ViewSampler(len(capture.train), 1, seed=seed, n_steps=steps):
        yield capture.train[batch[0]]


def write(
    record: Record, runs: dict[str, list[dict[str, float]]], capture: Capture, options: Any
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
    record.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--strategy", choices=("adc", "mcmc"), default="adc")
    parser.add_argument("--cap", type=int)
    parser.add_argument("--absgrad", action="store_true")
    parser.add_argument("--renderer", default="auto", help="as gs-train's")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--offload", nargs="+", default=["none"], help="presets, one after another")
    parser.add_argument("--device-memory", help="as gs-train's, where the presets shall live")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)

    runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.offload}
    runs |= {} if options.no_peer else {PEER: []}
    with tempfile.TemporaryDirectory() as cache:
        capture = load_capture(options.capture, cache_dir=Path(cache))
        for seed in options.seeds:
            for name in options.offload:
                runs[name].append(ours(options.capture, seed, name, options))
            if not options.no_peer:
                runs[PEER].append(gsplats_loop(capture, seed, options.steps))
            write(record, runs, capture, options)
    print(f"{options.strategy}, {options.steps} steps, seeds {options.seeds}: mean (least to most)")
    print(f"{'':14s}" + "".join(f"{column:>28s}" for column in COLUMNS))
    for name, results in runs.items():
        if results:
            print(f"{name:14s}" + "".join(f"{_spread(results, c):>28s}" for c in COLUMNS))
    other = options.offload[0] if options.no_peer else PEER
    for name in options.offload:
        if name != other:
            rate = _mean(runs[name], "images_per_second") / _mean(runs[other], "images_per_second")
            print(f"rate of {name} over {other}: {rate:.2f}")


def _mean(results: list[dict[str, float]], column: str) -> float:
    return statistics.mean(result[column] for result in results)


def _spread(results: list[dict[str, float]], column: str) -> str:
    values = [result[column] for result in results]
    digits = {"psnr": 2, "ssim": 4}.get(column, 0)
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ({low} to {high})"


if __name__ == "__main__":
    main()
