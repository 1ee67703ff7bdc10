# SPDX-License-Identifier: Apache-2.0
"""Small captures, point clouds and runs that are as they should be."""

from __future__ import annotations

import dataclasses
import shutil
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from gs_train.cli import main
from gs_train.data.capture import load_capture
from gs_train.data.colmap_records import Camera
from gs_train.data.colmap_writer import NamedPose, Observations, write_model
from gs_train.data.synthetic import write_demo_capture

N_POINTS = 120
STEPS, MORE_STEPS = 3, 5
"""Of a run, and of a run that goes on."""
OPTIONS = ("--renderer", "cpu", "--cap", "200", "--sh-degree", "1", "--checkpoint-every", "2")

IN_STORE = (
    *("--offload", "tide", "--strategy", "fixed", "--block-rows", "16"),
    *("--tide.slots", "4", "--tide.arena", "30kB"),
)
"""Of a run whose rows are in a store on the drive, and few of them in memory."""


def write_captures(folder: Path) -> None:
    """``binary`` (JPEG), ``distorted`` (PNG, OPENCV) and ``text`` (JPEG), of 6 views each."""
    whole = write_demo_capture(folder / "whole", n_views=6, width=32, height=24)
    capture = load_capture(whole, cache_dir=folder / "unused")
    fx, fy, cx, cy = (float(capture.views[0].K[i, j]) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    pinhole = Camera(1, "PINHOLE", 32, 24, (fx, fy, cx, cy))
    opencv = Camera(1, "OPENCV", 32, 24, (fx, fy, cx, cy, 0.05, -0.01, 0.001, 0.001))
    poses = [NamedPose(view.name, 1, view.world_to_camera) for view in capture.views]
    every = len(capture.points) // N_POINTS
    points, colors = capture.points[::every][:N_POINTS], capture.colors[::every][:N_POINTS]
    seen = np.arange(4)
    pixels = np.full((4, 2), 8.0)
    for name, camera, suffix in (("binary", pinhole, ".jpg"), ("distorted", opencv, ".png")):
        named = [dataclasses.replace(p, name=Path(p.name).stem + suffix) for p in poses]
        write_model(
            folder / name / "sparse/0",
            [camera],
            named,
            points=points,
            colors=colors,
            observations=Observations(seen, seen, pixels),
        )
        (folder / name / "images").mkdir()
        for old, new in zip(poses, named):
            with Image.open(whole / "images" / old.name) as image:
                image.save(folder / name / "images" / new.name)
    shutil.copytree(folder / "binary" / "images", folder / "text" / "images")
    _write_text(folder / "binary" / "sparse/0", folder / "text" / "sparse", points, colors)
    shutil.rmtree(whole)


def _write_text(binary: Path, text: Path, points: np.ndarray, colors: np.ndarray) -> None:
    text.mkdir(parents=True)
    data = (binary / "cameras.bin").read_bytes()
    numbers = " ".join(map(repr, struct.unpack_from("<4d", data, 32)))
    (text / "cameras.txt").write_text(f"# cameras\n1 PINHOLE 32 24 {numbers}\n")
    data, lines, at = (binary / "images.bin").read_bytes(), ["# images"], 8
    (count,) = struct.unpack_from("<Q", data)
    for _ in range(count):
        id, *pose, camera = struct.unpack_from("<I7dI", data, at)
        end = data.index(b"\0", at + 64)
        lines += [f"{id} {' '.join(map(repr, pose))} {camera} {data[at + 64 : end].decode()}"]
        lines += ["8.0 8.0 1"]
        at = end + 9 + 24 * struct.unpack_from("<Q", data, end + 1)[0]
    (text / "images.txt").write_text("\n".join(lines) + "\n")
    rows = zip(points.tolist(), colors.tolist())
    lines = [
        f"{k} {' '.join(map(repr, xyz))} {' '.join(map(str, rgb))} 0.5 1 0 2 0"
        for k, (xyz, rgb) in enumerate(rows, start=1)
    ]
    (text / "points3D.txt").write_text("\n".join(["# points", *lines]) + "\n")


def write_points(capture: Path, folder: Path) -> None:
    """``binary.ply`` and ``ascii.ply``, the points of a capture."""
    loaded = load_capture(capture, cache_dir=folder / "unused")
    kinds = [(name, "float") for name in "xyz"]
    kinds += [(name, "uchar") for name in ("red", "green", "blue")]
    header = [f"element vertex {len(loaded.points)}"]
    header += [*(f"property {kind} {name}" for name, kind in kinds), "end_header"]
    rows = list(zip(loaded.points.tolist(), loaded.colors.tolist()))
    first = "ply\nformat binary_little_endian 1.0\n" + "\n".join(header) + "\n"
    packed = b"".join(struct.pack("<3f3B", *xyz, *rgb) for xyz, rgb in rows)
    (folder / "binary.ply").write_bytes(first.encode() + packed)
    lines = [" ".join(map(str, (*xyz, *rgb))) for xyz, rgb in rows]
    text = "\n".join(["ply", "format ascii 1.0", *header, *lines])
    (folder / "ascii.ply").write_text(text + "\n")


def write_run(capture: Path, run: Path, *more: str) -> None:
    """A run of `STEPS` steps with two checkpoints."""
    command = ["fit", str(capture), "--out", str(run), "--steps", str(STEPS), *OPTIONS, *more]
    assert main(command) == 0
