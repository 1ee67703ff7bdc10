# SPDX-License-Identifier: Apache-2.0
"""Write a survey of a synthetic city of any size as a capture, in bounded memory.

    PYTHONPATH=benchmarks:benchmarks/train \\
        python benchmarks/tide/survey_on_disk.py FOLDER --n 100_000_000 --seen 480_000

``FOLDER/points.ply``, or the file that ``--points`` names, has all of the points, for ``gs-train
fit --init``. The photographs show those
below the flight as Gaussians. Prints one line of JSON: ``psnr`` as `city_on_disk` has it, ``below``
the number of points below the flight, ``seconds`` of the file of points.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from city_on_disk import psnr_of_one_colour, save_photographs, write_poses
from torch import Tensor

import workloads
from point_file import PointFile

_WAVES = torch.tensor([[0.9, 0.3, 0.5], [0.2, 1.1, 0.4], [0.5, 0.6, 0.8]])
_SH_0 = 0.28209479177387814  # of a colour, the constant function of the harmonics


def write_points(path: Path, survey: workloads.Survey, reach: tuple[float, float]) -> Tensor:
    """Write the file of all points; returns those whose x and y are within ``reach``."""

    def write(chunk: int) -> Tensor:
        means = survey.means(chunk)
        colors = (255 * (0.5 + _SH_0 * torch.sin(means @ _WAVES))).round().byte()
        file.write(chunk * workloads.CHUNK, means.numpy(), colors.numpy())
        return means[(means[:, :2].abs() < torch.tensor(reach)).all(1)]

    torch.set_num_threads(1)  # of each of the threads here
    with (
        PointFile(path, survey.n) as file,
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
    ):
        below = list(pool.map(write, range(survey.n_chunks)))
    torch.set_num_threads(os.cpu_count() or 1)
    return torch.cat(below)


def reach_of(flight: workloads.Flight) -> tuple[float, float]:
    """How far from the middle the ground of the photographs lies, on both axes."""
    poses = flight.viewmats.double()
    centres = -(poses[:, :3, :3].transpose(1, 2) @ poses[:, :3, 3:])[..., 0]
    half = float(centres[0, 2]) * math.tan(workloads.FIELD_OF_VIEW / 2)
    x, y = (centres[:, :2].abs().amax(0) + 1.3 * half).tolist()
    return x, y


def write_survey(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Write the capture; returns what is printed."""
    on_device = torch.cuda.is_available() and options.renderer != "cpu"
    device = "cuda" if on_device else "cpu"
    width, height = options.size
    survey = workloads.Survey(options.n, options.seen / options.n)
    nowhere = survey.city(torch.empty((0, 3)))
    photos = workloads.flight(
        nowhere, options.views, overlap=options.overlap, width=width, height=height
    )
    (folder / "images").mkdir(parents=True)
    started = time.perf_counter()
    below = write_points(options.points or folder / "points.ply", survey, reach_of(photos))
    seconds = time.perf_counter() - started
    city = survey.city(below, device=device)
    rows = workloads.attributes(city)
    # The colours of the points, without the noise that rows of one place differ by.
    rows["sh0"] = torch.sin(city.means @ _WAVES.to(device))[:, None]
    there = workloads.Flight(photos.viewmats.to(device), photos.Ks.to(device), width, height)
    images = workloads.targets(
        city, there, lambda ids: {name: value[ids] for name, value in rows.items()},
        change=0.0, renderer=options.renderer,
    ).numpy()  # fmt: skip
    names = save_photographs(folder, images)
    colors = (255 * (0.5 + _SH_0 * rows["sh0"][:1000, 0])).round().byte()
    write_poses(folder, photos, names, below[:1000].numpy(), colors.cpu().numpy())
    return {"psnr": psnr_of_one_colour(images), "below": len(below), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=Path, help="file of all points (FOLDER/points.ply)")
    parser.add_argument("--n", type=int, required=True, help="points of the city")
    parser.add_argument("--seen", type=int, default=480_000, help="points that a view sees, about")
    parser.add_argument("--views", type=int, default=340)
    parser.add_argument("--overlap", type=float, default=0.7, help="of consecutive photographs")
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--renderer", default="auto", help="as gs-train's")
    options = parser.parse_args()
    print(json.dumps(write_survey(options.folder, options)))


if __name__ == "__main__":
    main()
