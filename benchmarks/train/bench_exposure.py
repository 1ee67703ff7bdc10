# SPDX-License-Identifier: Apache-2.0
"""What is an exposure for each photograph worth, and what does it cost?

Decides what the documentation says of ``--exposure``. The same capture is trained with the option
and without, seed by seed. Held-out views are scored as they are, and on their right halves after a
fit of colours on the left halves: runs with the option have the colours of the mean photograph, so
their fitted scores are to be compared with fitted scores. With ``--spoil`` each photograph has a
known gain and offset first: there the ceiling is the score of the capture as it is. Without, the
ceiling is no loss; the spread over the seeds says which differences mean nothing.

    PYTHONPATH=benchmarks python benchmarks/train/bench_exposure.py CALITERRA BORUSZYN --seeds 9

On a CPU try

    ... bench_exposure.py FOX --max-side 48 --steps 40 --seeds 1 --renderer cpu --cap 3000
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gs_train
from gs_train.data import FROM_PYTHON, Capture, load_capture, read_image
from gs_train.machine.interrupt import StopRequest
from gs_train.runs.run import Run
from gs_train.runs.scores import score_views
from gs_train.scene.scene import Scene
from harness import Record, add_json_option

KINDS = {"plain": False, "exposure": True}
UNITS = {"psnr": "dB", "fitted_psnr": "dB, colours fitted", "seconds": "s", "n_gaussians": "rows"}
DIGITS = {"psnr": 3, "fitted_psnr": 3, "seconds": 1, "n_gaussians": 0}
DIFFERENCE = "exposure - plain"


def spoilt(capture: Capture) -> Capture:
    """With a gain of 0.6 to 1.2 and an offset of up to a tenth on each photograph."""
    draw, views = np.random.default_rng(0), []
    for view in capture.views:
        gain, offset = draw.uniform(0.6, 1.2), draw.uniform(-0.1, 0.1)
        changed = read_image(view)[..., :3] * gain + 255.0 * offset
        pixels = np.clip(np.round(changed), 0, 255).astype(np.uint8)
        views.append(replace(view, mask=None, pixels=functools.partial(np.copy, pixels)))
    return replace(capture, views=tuple(views), in_memory=True)


def train(
    capture: Capture, *, exposure: bool, seed: int, options: argparse.Namespace
) -> dict[str, float]:
    """Scores of a run's held-out views, its seconds and its Gaussians."""
    with tempfile.TemporaryDirectory() as folder:
        fitted = gs_train.fit(
            capture=capture,
            data=FROM_PYTHON,
            out=Path(folder) / "run",
            steps=options.steps,
            batch_size=options.batch_size,
            strategy=options.strategy,
            cap=options.cap,
            seed=seed,
            exposure=exposure,
            renderer=options.renderer,
            checkpoint_every=0,
        )
        run = Run.open(Path(folder) / "run")
        renderer = run.renderer(options.renderer)
        run, model = run.read(renderer.device)
        scores, _ = score_views(
            model,
            Scene.load(capture, renderer.device, run.frame),
            capture.test,
            renderer=renderer,
            lpips=None,
            stop=StopRequest(),
            fits_colours=True,
            is_quiet=True,
        )
    fits = [score.fitted_psnr for score in scores if score.fitted_psnr is not None]
    return {
        "psnr": statistics.mean(score.psnr for score in scores),
        "fitted_psnr": statistics.mean(fits),
        "seconds": float(fitted.metrics["seconds"]),
        "n_gaussians": float(fitted.metrics["n_gaussians"]),
    }


def differences(runs: dict[str, list[dict[str, float]]]) -> list[dict[str, float]]:
    """What exposures add, seed by seed."""
    return [
        {name: with_[name] - without[name] for name in UNITS}
        for without, with_ in zip(runs["plain"], runs["exposure"])
    ]


def report(axes: dict[str, Any], runs: dict[str, list[dict[str, float]]]) -> None:
    """The table of one capture."""
    print(
        f"{axes['capture']}: {axes['photographs']} photographs, {axes['test']} held out, "
        f"{axes['steps']} steps of {axes['batch']}: mean +- its standard error (least to most)"
    )
    print(f"{'':18s}" + "".join(f"{unit:>40s}" for unit in UNITS.values()))
    for name, results in {**runs, DIFFERENCE: differences(runs)}.items():
        print(f"{name:18s}" + "".join(f"{_spread(results, column):>40s}" for column in UNITS))


def _spread(results: Sequence[dict[str, float]], column: str) -> str:
    values, digits = [result[column] for result in results], DIGITS[column]
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    shown = [f"{value:.{digits}f}" for value in (statistics.mean(values), error)]
    return f"{shown[0]} +- {shown[1]} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("captures", type=Path, nargs="+", help="folders with COLMAP models")
    parser.add_argument("--spoil", action="store_true", help="a gain and an offset each")
    parser.add_argument("--max-side", type=int, help="of a capture's images")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=9, help="how many")
    parser.add_argument("--strategy", choices=("adc", "mcmc"), default="mcmc")
    parser.add_argument("--cap", type=int, default=300_000)
    parser.add_argument("--renderer", default="auto")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json, seeds=list(range(options.seeds)))
    for folder in options.captures:
        with tempfile.TemporaryDirectory() as cache:
            capture = load_capture(folder, cache_dir=cache, max_side=options.max_side)
            capture = spoilt(capture) if options.spoil else capture
            axes = {
                "capture": folder.resolve().name + (", spoilt" if options.spoil else ""),
                "photographs": len(capture.views),
                "test": len(capture.test),
                "size": [capture.views[0].width, capture.views[0].height],
                "steps": options.steps,
                "batch": options.batch_size,
                "strategy": options.strategy,
            }
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in KINDS}
            for seed in range(options.seeds):
                for name, exposure in KINDS.items():
                    runs[name].append(train(capture, exposure=exposure, seed=seed, options=options))
        report(axes, runs)
        for name, results in {**runs, DIFFERENCE: differences(runs)}.items():
            for column, unit in UNITS.items():
                record.add(name, [result[column] for result in results], unit, axes=axes)
        record.write()


if __name__ == "__main__":
    main()
