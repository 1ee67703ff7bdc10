# SPDX-License-Identifier: Apache-2.0
"""What is a learning rate of the means worth that does not grow with the capture?

Decides what the documentation says of ``--means-extent view``. The learning rate of the means is a
multiple of the extent of all cameras, so in a survey it grows with the survey, though a view sees
no more. Surveys of the synthetic city of several sizes, with equal density, altitude and visits of
a row, train with both extents from the same points. With ``view`` the scores of held-out views
should stay as a survey grows. Surveys too wide to train here are stood for by the learning rate
that ``cameras`` would give them (``--wider``): what a view sees is the same.

    PYTHONPATH=benchmarks python benchmarks/train/bench_means_extent.py --json means-extent.json

On a CPU of two cores try

    ... bench_means_extent.py --sides 80 160 --thin 32 --size 64 48 --epochs 6 --seeds 0
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import torch

import gs_train
import workloads
from gs_train.data import FROM_PYTHON, Capture, capture_from_arrays
from gs_train.data.frame import Frame
from gs_train.options.config import FitConfig
from gs_train.options.schedule import LearningRates
from gs_train.runs.run import Run
from harness import Record, add_json_option

_SH_0 = 0.28209479177387814  # of a colour, the constant function of the harmonics


def survey(side: int, options: argparse.Namespace, device: torch.device) -> Capture:
    """Photographs of a square city of so many metres, all of whose Gaussians are points to start
    from. There is a Gaussian for ``thin`` of the city's, and wider."""
    n_all = int(workloads.DENSITY * side * side)
    share = options.visible * options.thin / n_all
    full = workloads.city(n_all, share=share, device=device)
    some = slice(None, None, options.thin)
    wider = math.log(options.thin) / 2
    city = workloads.City(
        full.means[some].contiguous(),
        full.scales[some] + wider,
        full.quats[some].contiguous(),
        full.opacities[some].contiguous(),
        full.side,
        full.altitude,
    )
    rows = workloads.attributes(city)
    n_views = options.visits * len(city.means) // options.visible
    photos = workloads.scattered(city, n_views, width=options.size[0], height=options.size[1])
    images = workloads.targets(
        city, photos, lambda ids: {name: value[ids] for name, value in rows.items()}, change=0.0
    )
    colors = 255 * (0.5 + _SH_0 * rows["sh0"][:, 0]).clamp(0, 1)
    return capture_from_arrays(
        images.numpy(),
        photos.viewmats.cpu().numpy(),
        photos.Ks.cpu().numpy(),
        points=rows["means"].cpu().numpy(),
        colors=colors.round().byte().cpu().numpy(),
    )


def train(
    capture: Capture, means_extent: str, wider: int, seed: int, options: argparse.Namespace
) -> tuple[float, Frame]:
    """PSNR of a run's held-out views, and its frame.

    Args:
        wider: the learning rate of the means is that of a capture so many times as wide.
    """
    steps = max(1, options.epochs * len(capture.train) // options.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        config = FitConfig(
            data=FROM_PYTHON,
            out=Path(folder) / "run",
            steps=steps,
            batch_size=options.batch_size,
            cap=len(capture.points),
            seed=seed,
            means_extent=means_extent,  # type: ignore[arg-type]
            lr=LearningRates(means=wider * LearningRates.means),
            renderer=options.renderer,
            offload="none",
            checkpoint_every=0,
        )
        metrics = gs_train.fit(config, capture=capture).metrics
        return float(metrics["psnr"]), Run.open(config.out).frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[80, 160, 320], help="metres")
    parser.add_argument("--thin", type=int, default=4, help="the city's Gaussians for one of these")
    parser.add_argument("--visible", type=int, default=250, help="Gaussians that a view shows")
    parser.add_argument("--visits", type=int, default=8, help="views that show a Gaussian")
    parser.add_argument("--size", type=int, nargs=2, default=[320, 180])
    parser.add_argument("--wider", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--renderer", default="auto")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json, seeds=options.seeds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'metres':>7s} {'Gaussians':>10s} {'photos':>7s} {'extent':>8s} {'ratio':>6s}  PSNR")
    for side in options.sides:
        capture = survey(side, options, device)
        n, n_views = len(capture.points), len(capture.views)
        axes = {"side": side, "gaussians": n, "photographs": n_views, "visible": options.visible,
                "epochs": options.epochs, "batch": options.batch_size}  # fmt: skip
        for means_extent, wider in [("view", 1), *(("cameras", k) for k in options.wider)]:
            found = [train(capture, means_extent, wider, seed, options) for seed in options.seeds]
            scores, frames = [score for score, _ in found], [frame for _, frame in found]
            own = (frames[0].means_extent or frames[0].extent) * wider
            ratio = own / frames[0].extent
            record.add(means_extent, scores, "dB", axes=axes | {"wider": wider}, ratio=ratio)
            said = f"{statistics.mean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"
            print(f"{side:7d} {n:10,d} {n_views:7,d} {means_extent:>8s} {ratio:6.2f}  {said}")
        record.write()


if __name__ == "__main__":
    main()
