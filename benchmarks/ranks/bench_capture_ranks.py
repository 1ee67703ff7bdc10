# SPDX-License-Identifier: Apache-2.0
"""Does a capture train faster on several GPUs, and to the same quality?

Decides whether a second GPU pays for a scene of some hundred thousand Gaussians, where launching
bounds a step. Every run is a process that a user could start, ``gs-train fit CAPTURE --gpus W``;
rates, scores and memory are those of its metrics.json. The ceiling is W times one GPU. For each
batch size and seed one GPU comes first, then the others; before them all, a short run of each does
not count, so that no run compiles kernels. All runs see as many images, whatever the batch.

Below the table several GPUs are compared with one seed by seed: the median (least to most) of the
ratios of their rates, and the mean difference of their scores with its standard error. Ranks that
draw whole views leave the bits of one rank; results of cut views differ by rounding.

    PYTHONPATH=benchmarks python benchmarks/ranks/bench_capture_ranks.py CAPTURE --json capture.json

On a CPU try ``--renderer cpu --images 8 --batch 2 --seeds 0`` with a small capture.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from launching import links, worlds

from harness import Record, add_json_option
from train.pairs import Pair, Scores

UNITS = {
    "images_per_second": "images/s",
    "psnr": "dB",
    "ssim": "SSIM",
    "n_gaussians": "Gaussians",
    "peak_device_mb": "MB",
}
WARM_UP = 200
"""Images."""


def trained(options: argparse.Namespace, ranks: int, batch: int, seed: int, images: int) -> Any:
    """What metrics.json of one run holds.

    Raises:
        RuntimeError: the run failed; the message has its last words.
    """
    given = {
        "batch-size": batch, "steps": max(1, images // batch), "seed": seed,
        "offload": options.offload, "renderer": options.renderer, "checkpoint-every": 0,
        **({"gpus": ranks} if ranks > 1 else {}),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "gs_train", "fit", str(options.capture), f"--out={run}"]
        command += [f"--{name}={value}" for name, value in given.items()] + options.fit
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{words}")
        return json.loads((run / "metrics.json").read_text())


def scores_of(metrics: dict[str, Any]) -> Scores:
    """By column."""
    of_file = {name: name for name in UNITS} | {"peak_device_mb": "peak_device_bytes"}
    found = {column: float(metrics[name]) for column, name in of_file.items()}
    return found | {"peak_device_mb": found["peak_device_mb"] / 1e6}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=3000, help="of a run")
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="numbers of ranks; 1 and all GPUs by default"
    )
    parser.add_argument("--offload", default="none", help="as gs-train's")
    parser.add_argument("--renderer", choices=("raster", "cpu"), default="raster")
    parser.add_argument("--fit", action="append", default=[], help="one more option of gs-train")
    add_json_option(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run ends, too
    record = Record(options.json, gpus=torch.cuda.device_count(), links=links())
    record.facts["seeds"] = options.seeds
    sizes = worlds(options.ranks, options.renderer)
    print(f"{'batch':>5s} {'ranks':>5s}" + "".join(f"{column:>28s}" for column in UNITS))
    for n in sizes:
        trained(options, n, options.batch[0], options.seeds[0], min(WARM_UP, options.images))
    pairs = []
    for batch in options.batch:
        runs: dict[int, list[Scores]] = {n: [] for n in sizes}
        peaks: dict[int, list[int]] = {n: [] for n in sizes}
        for seed in options.seeds:
            for n in sizes:
                metrics = trained(options, n, batch, seed, options.images)
                runs[n].append(scores_of(metrics))
                peaks[n] = [rank["peak_device_bytes"] for rank in metrics.get("ranks", [])]
        axes = {"images": options.images, "batch": batch, "offload": options.offload}
        for n, results in runs.items():
            for column, unit in UNITS.items():
                values = [result[column] for result in results]
                record.add("gs-train", values, unit, axes=axes | {"ranks": n},
                           ranks_peak_bytes=peaks[n])  # fmt: skip
            print(f"{batch:5d} {n:5d}" + "".join(f"{_spread(results, c):>28s}" for c in UNITS))
            if n > 1 and 1 in runs:
                pair = Pair(f"{n} GPUs", results, "1", runs[1])
                pair.add_to(record, axes)
                pairs.append(f"batch {batch}, {pair}")
        record.write()
    print("\n".join(pairs))


def _spread(results: list[Scores], column: str) -> str:
    values = [result[column] for result in results]
    digits = {"psnr": 2, "ssim": 4}.get(column, 0)
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{statistics.median(values):.{digits}f} ({low} to {high})"


if __name__ == "__main__":
    main()
