# SPDX-License-Identifier: Apache-2.0
"""Clouds of points in PLY files, and stores of rows that begin from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gs_pinned import BlockStore
from gs_train.blocks.stored_rows import StoredRows
from gs_train.clouds.stored_scene import FirstRows, stored_scene
from gs_train.data.point_ply import read_point_ply
from gs_train.machine.interrupt import StopRequest
from gs_train.scene.initialize import rows_from_cloud
from gs_train.scene.thinning import thinned_order

FIRST = FirstRows(
    sh_degree=1,
    opacity=0.2,
    scale=1.5,
    seed=7,
    block_rows=64,
    betas=(0.9, 0.999),
    eps=1e-15,
    ceilings={"means": 0.1, "scales": 0.02},
)

_RECORD = [("x", "<f4"), ("y", "<f4"), ("z", "<f4")] + [
    (name, "u1") for name in ("red", "green", "blue")
]


def hills(n: int, seed: int = 0, strays: int = 0) -> NDArray[np.float32]:
    """(n, 3) points of a wavy ground; some of them in one place, some astray."""
    draw = np.random.default_rng(seed)
    points = draw.uniform(0, 100, (n, 3))
    points[:, 2] = 5 * np.sin(points[:, 0] / 7) + draw.normal(0, 0.1, n)
    points[: n // 20] = points[n // 20 : 2 * (n // 20)]
    if n >= 30:
        points[n // 5 : n // 5 + 6] = points[n // 5]
    points[n - strays :] *= 1e4
    return points.astype(np.float32)[draw.permutation(n)]


def write_cloud(path: Path, points: NDArray[np.float32], *, as_text: bool = False) -> Path:
    """A PLY file of points with made-up colours."""
    records = np.empty(len(points), _RECORD)
    for axis, name in enumerate("xyz"):
        records[name] = points[:, axis]
    draw = np.random.default_rng(1)
    for name in ("red", "green", "blue"):
        records[name] = draw.integers(0, 256, len(points))
    kinds = ["float"] * 3 + ["uchar"] * 3
    properties = [f"property {k} {n}" for k, n in zip(kinds, records.dtype.names, strict=True)]
    form = "ascii" if as_text else "binary_little_endian"
    header = ["ply", f"format {form} 1.0", f"element vertex {len(points)}", *properties]
    with path.open("wb") as file:
        file.write(("\n".join([*header, "end_header"]) + "\n").encode())
        if as_text:
            lines = [" ".join(map(str, record)) for record in records.tolist()]
            file.write(("\n".join(lines) + "\n").encode())
        else:
            records.tofile(file)
    return path


def make_store(
    path: Path,
    store: Path,
    first: FirstRows = FIRST,
    *,
    memory: int = 1 << 30,
    limit: int | None = None,
) -> int:
    return stored_scene(path, store, first, memory=memory, stop=StopRequest(), limit=limit)


def make_in_memory(
    path: Path, store: Path, first: FirstRows = FIRST, *, limit: int | None = None
) -> None:
    """The same store by way of rows that are all in memory."""
    cloud = read_point_ply(path)
    order = thinned_order(cloud.points, limit)
    rows = rows_from_cloud(
        cloud.points[order],
        cloud.colors[order],
        sh_degree=first.sh_degree,
        opacity=first.opacity,
        scale=first.scale,
        seed=first.seed,
    )
    StoredRows.create(
        store,
        rows,
        torch.arange(len(order)).int(),
        block_rows=first.block_rows,
        betas=first.betas,
        eps=first.eps,
        ceilings=first.ceilings,
    )


def rows_by_key(store: Path) -> dict[str, bytes]:
    """The bytes of each plane, rows in the order of their keys."""
    with BlockStore.open(store, read_only=True) as opened:
        values = opened.read(opened.blocks)
    order = np.argsort(values["key"][:, 0])
    return {name: array[order].tobytes() for name, array in values.items()}
