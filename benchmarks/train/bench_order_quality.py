# SPDX-License-Identifier: Apache-2.0
"""Do tiles of neighbouring views cost quality?

Decides what the documentation says of ``--order tiles``. Adam's moments of a row see the visits of
a tile close together, so the same recipe in another order may end elsewhere. ``none`` trains the
same capture in both orders with the same seed, and the scores of held-out views are compared seed
by seed. The ceiling is no difference; the spread of ``shuffle`` over the seeds says which
differences mean nothing. Captures are folders, and photographs of the synthetic city along the
lines of a survey, which has many places that no two tiles share.

    PYTHONPATH=benchmarks python benchmarks/train/bench_order_quality.py FOX CALITERRA

On an H100 each capture of at most a megapixel takes less than a minute with
``--steps 1500 --max-side 640``; on a CPU try

    ... bench_order_quality.py --city 20000 --city-views 40 --city-size 96 64 --steps 40 --seeds 0
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import gs_train
import workloads
from gs_train.data import FROM_PYTHON, Capture, capture_from_arrays, load_capture
from gs_train.options.config import FitConfig
from gs_train.scene.view_order import view_sampler
from harness import Record, add_json_option

ORDERS = ("shuffle", "tiles")
UNITS = {"psnr": "dB", "ssim": "SSIM", "n_gaussians": "Gaussians"}
DIGITS = {"psnr": 2, "ssim": 4, "n_gaussians": 0}
DIFFERENCE = "tiles - shuffle"
_SH_0 = 0.28209479177387814  # of a colour, the constant function of the harmonics
_POINTS_SHARE = 8  # of the city's Gaussians, one in so many is a point to start from


def city_capture(n: int, n_views: int, size: list[int], device: torch.device) -> Capture:
    """A survey of the city, with some of its Gaussians as points."""
    city = workloads.city(n, device=device)
    rows = workloads.attributes(city)
    photos = workloads.flight(city, n_views, width=size[0], height=size[1])
    images = workloads.targets(
        city, photos, lambda ids: {name: value[ids] for name, value in rows.items()}, change=0.0
    )
    some = slice(None, None, _POINTS_SHARE)
    colors = 255 * (0.5 + _SH_0 * rows["sh0"][some, 0]).clamp(0, 1)
    return capture_from_arrays(
        images.numpy(),
        photos.viewmats.cpu().numpy(),
        photos.Ks.cpu().numpy(),
        points=rows["means"][some].cpu().numpy(),
        colors=colors.round().byte().cpu().numpy(),
    )


def train(capture: Capture, order: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Scores of a run's held-out views, and its Gaussians at the end."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(order, seed, Path(folder) / "run", options)
        metrics = gs_train.fit(config, capture=capture).metrics
    return {name: float(metrics[name]) for name in UNITS}


def config_of(order: str, seed: int, out: Path, options: argparse.Namespace) -> FitConfig:
    """The options of one run."""
    return FitConfig(
        data=FROM_PYTHON,
        out=out,
        steps=options.steps,
        batch_size=options.batch_size,
        strategy=options.strategy,
        cap=options.cap,
        seed=seed,
        order=order,  # type: ignore[arg-type]
        tile_views=options.tile_views if order == "tiles" else None,
        renderer=options.renderer,
        offload="none",
        checkpoint_every=0,
    )


def captures(options: argparse.Namespace, cache: Path) -> Iterator[tuple[str, Capture]]:
    """Each by its name.

    Args:
        cache: folder for images that are made of photographs.
    """
    for k, folder in enumerate(options.captures):
        made = cache / str(k)
        yield folder.resolve().name, load_capture(folder, cache_dir=made, max_side=options.max_side)
    if options.city:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        yield "city", city_capture(options.city, options.city_views, options.city_size, device)


def axes_of(name: str, capture: Capture, options: argparse.Namespace) -> dict[str, Any]:
    """What a line of the result is about."""
    sampler = view_sampler(config_of("tiles", 0, Path(), options), capture)
    view = capture.views[0]
    return {
        "capture": name,
        "photographs": len(capture.views),
        "test": len(capture.test),
        "size": [view.width, view.height],
        "steps": options.steps,
        "batch": options.batch_size,
        "strategy": options.strategy,
        "tile_views": max(len(tile) for tile in sampler.tiles(0)),
    }


def report(axes: dict[str, Any], runs: dict[str, list[dict[str, float]]], seeds: list[int]) -> None:
    """The table of one capture."""
    print(
        f"{axes['capture']}: {axes['photographs']} photographs, {axes['test']} held out, "
        f"{axes['steps']} steps of {axes['batch']}, tiles of up to {axes['tile_views']} views, "
        f"seeds {seeds}: mean (least to most)"
    )
    print(f"{'':16s}" + "".join(f"{column:>32s}" for column in UNITS))
    for order, results in {**runs, DIFFERENCE: differences(runs)}.items():
        print(f"{order:16s}" + "".join(f"{_spread(results, column):>32s}" for column in UNITS))


def differences(runs: dict[str, list[dict[str, float]]]) -> list[dict[str, float]]:
    """What tiles have more than shuffling, seed by seed."""
    shuffled, tiled = (runs[order] for order in ORDERS)
    return [{column: b[column] - a[column] for column in UNITS} for a, b in zip(shuffled, tiled)]


def _spread(results: list[dict[str, float]], column: str) -> str:
    values, digits = [result[column] for result in results], DIGITS[column]
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captures", type=Path, nargs="*", help="folders with COLMAP models")
    parser.add_argument("--city", type=int, default=500_000, help="its Gaussians; 0: no city")
    parser.add_argument("--city-views", type=int, default=320)
    parser.add_argument("--city-size", type=int, nargs=2, default=[640, 360])
    parser.add_argument("--max-side", type=int, help="of a capture's images")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--tile-views", type=int, help="as gs-train's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--strategy", choices=("adc", "mcmc"), default="adc")
    parser.add_argument("--cap", type=int)
    parser.add_argument("--renderer", default="auto")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json, seeds=options.seeds)
    with tempfile.TemporaryDirectory() as cache:
        for name, capture in captures(options, Path(cache)):
            axes = axes_of(name, capture, options)
            runs: dict[str, list[dict[str, float]]] = {order: [] for order in ORDERS}
            for seed in options.seeds:
                for order in ORDERS:
                    runs[order].append(train(capture, order, seed, options))
            report(axes, runs, options.seeds)
            for order, results in {**runs, DIFFERENCE: differences(runs)}.items():
                for column, unit in UNITS.items():
                    record.add(order, [result[column] for result in results], unit, axes=axes)
            record.write()


if __name__ == "__main__":
    main()
