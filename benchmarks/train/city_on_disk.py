# SPDX-License-Identifier: Apache-2.0
"""Write photographs of the synthetic city as a capture: images, a COLMAP model, a file of points.

    PYTHONPATH=benchmarks python benchmarks/train/city_on_disk.py FOLDER --n 4000 --points 3000

``FOLDER/points.ply`` is for ``gs-train fit --init``: the model holds only some of the points,
because reading millions from a model takes long. Prints one line of JSON: ``psnr`` is the score of
the held-out photographs against one colour, the mean of the others.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import workloads
from gs_train.data.colmap_records import Camera
from gs_train.data.colmap_writer import NamedPose, Observations, write_model
from point_file import PointFile

TEST_EVERY = 8
_OVERLAP = 0.7  # of consecutive photographs: 200 of them then cover a city of 20 million
_MODEL_POINTS = 1000
_SH_0 = 0.28209479177387814  # of a colour, the constant function of the harmonics


def write_city(folder: Path, options: argparse.Namespace) -> float:
    """Write the capture; returns the score of one colour."""
    on_device = torch.cuda.is_available() and options.renderer != "cpu"
    city = workloads.city(options.n, share=options.share, device="cuda" if on_device else "cpu")
    rows = workloads.attributes(city)
    width, height = options.size
    photos = workloads.flight(city, options.views, overlap=_OVERLAP, width=width, height=height)
    images = workloads.targets(
        city, photos, lambda ids: {name: value[ids] for name, value in rows.items()},
        change=0.0, renderer=options.renderer,
    ).numpy()  # fmt: skip
    names = save_photographs(folder, images)
    points = rows["means"][: options.points].cpu().numpy()
    colors = 255 * (0.5 + _SH_0 * rows["sh0"][: options.points, 0]).clamp(0, 1)
    coloured = colors.round().byte().cpu().numpy()
    write_poses(folder, photos, names, points, coloured)
    with PointFile(folder / "points.ply", len(points)) as file:
        file.write(0, points, coloured)
    return psnr_of_one_colour(images)


def save_photographs(folder: Path, images: np.ndarray) -> list[str]:
    """Write (B, height, width, 3) images into a capture; returns their names."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    names = [f"photo_{k:05d}.jpg" for k in range(len(images))]

    def save(k: int) -> None:
        Image.fromarray(images[k]).save(folder / "images" / names[k], quality=95)

    with ThreadPoolExecutor() as pool:
        list(pool.map(save, range(len(images))))
    return names


def write_poses(
    folder: Path, photos: workloads.Flight, names: list[str], points: np.ndarray, colors: np.ndarray
) -> None:
    """The model, with some of the points."""
    fx, _, cx, _, fy, cy = photos.Ks[0].flatten().tolist()[:6]
    nothing = np.empty(0, np.int64)
    write_model(
        folder / "sparse/0",
        [Camera(1, "PINHOLE", photos.width, photos.height, (fx, fy, cx, cy))],
        [
            NamedPose(name, 1, pose)
            for name, pose in zip(names, photos.viewmats.cpu().double().numpy())
        ],
        points=points[:_MODEL_POINTS].astype(np.float64),
        colors=colors[:_MODEL_POINTS],
        observations=Observations(nothing, nothing, np.empty((0, 2))),
    )


def psnr_of_one_colour(images: np.ndarray) -> float:
    """Of held-out photographs against the mean colour of the others."""
    is_test = np.arange(len(images)) % TEST_EVERY == 0
    colour = np.mean([image.mean(axis=(0, 1)) for image in images[~is_test]], axis=0)
    errors = [np.square((image - colour) / 255).mean() for image in images[is_test]]
    return float(np.mean([-10 * math.log10(error) for error in errors]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, required=True, help="Gaussians of the city")
    parser.add_argument("--points", type=int, required=True, help="so many of them are points")
    parser.add_argument("--share", type=float, default=0.02, help="of the city that a view sees")
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--renderer", default="auto", help="as gs-train's")
    options = parser.parse_args()
    print(json.dumps({"psnr": write_city(options.folder, options)}))


if __name__ == "__main__":
    main()
