# SPDX-License-Identifier: Apache-2.0
"""Real point clouds and cameras: the visible set against gsplat's torch projection."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gs_cull

from .oracle import Scene, compare

DATA = Path(os.environ.get("GS_DATA", Path(__file__).parents[4] / "shared" / "data"))


def read_points(path: Path) -> np.ndarray:
    """(P, 3) positions of a COLMAP points3D.bin."""
    raw = path.read_bytes()
    (n,) = struct.unpack_from("<Q", raw)
    points, at = np.empty((n, 3)), 8
    for i in range(n):
        points[i] = struct.unpack_from("<3d", raw, at + 8)
        (track,) = struct.unpack_from("<Q", raw, at + 43)
        at += 51 + 8 * track
    return points


def read_poses(path: Path, every: int) -> np.ndarray:
    """(B, 4, 4) of every n-th image of a COLMAP images.bin."""
    raw = path.read_bytes()
    (n,) = struct.unpack_from("<Q", raw)
    poses, at = [], 8
    for i in range(n):
        w, x, y, z, *t = struct.unpack_from("<7d", raw, at + 4)
        at = raw.index(b"\0", at + 64) + 1
        (n_points,) = struct.unpack_from("<Q", raw, at)
        at += 8 + 24 * n_points
        if i % every:
            continue
        pose = np.eye(4)
        pose[:3, :3] = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        pose[:3, 3] = t
        poses.append(pose)
    return np.array(poses)


@pytest.mark.parametrize("name", ["fox", "caliterra"])
@pytest.mark.parametrize("antialiased", [False, True])
def test_real_point_clouds_match_gsplat(name: str, antialiased: bool, record_property: Any) -> None:
    model = DATA / name / "sparse" / "0"
    if not (model / "points3D.bin").exists():
        pytest.skip(f"no capture at {model}")
    points = read_points(model / "points3D.bin")
    poses = read_poses(model / "images.bin", every=7)[:12]
    rng = np.random.default_rng(0)
    copies = np.repeat(points, max(1, 60_000 // len(points)), 0)
    extent = np.linalg.norm(np.percentile(points, 95, 0) - np.percentile(points, 5, 0))
    copies += rng.normal(size=copies.shape) * extent * 0.01
    n = len(copies)
    K = np.array([[600.0, 0, 320], [0, 600, 240], [0, 0, 1]], np.float32)
    scene = Scene(
        means=copies.astype(np.float32),
        scales=(np.log(extent * 0.004) + rng.normal(size=(n, 3))).astype(np.float32),
        quats=rng.normal(size=(n, 4)).astype(np.float32),
        opacities=(rng.normal(size=n) * 3).astype(np.float32),
        viewmats=poses.astype(np.float32),
        Ks=np.repeat(K[None], len(poses), 0),
        width=640,
        height=480,
    )
    visibility = gs_cull.cull(*scene.arguments, opacities=scene.opacities, antialiased=antialiased)
    extras = compare(scene, visibility, antialiased=antialiased)
    total = int(visibility.counts.sum())
    record_property("extras", f"{extras} of {total}")
    assert total > 10_000
    assert extras <= 5 + 1e-3 * total
    blocks = gs_cull.Blocks.build(*scene.arguments[:3], block_size=256)
    through = gs_cull.cull(
        *scene.arguments, opacities=scene.opacities, antialiased=antialiased, blocks=blocks
    )
    assert through.ids.tolist() == visibility.ids.tolist()
    assert through.mask.tolist() == visibility.mask.tolist()
