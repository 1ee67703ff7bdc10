# SPDX-License-Identifier: Apache-2.0
"""A store of first rows from a point cloud of any size, in bounded memory.

    PLY ──look──► bounds, sample ──deal──► parts on the drive ──sort──► regions, boxes of groups
    region + halo ──► spacings        region ──kd──► blocks ──► store, and its file goes

A row's key is its point's place on the Morton curve, as in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.block_planes import first_row_bytes
from gs_train.blocks.new_store import NewStore
from gs_train.blocks.partition import kd_partition
from gs_train.clouds.looked import Looked
from gs_train.clouds.making import making
from gs_train.clouds.regions import Curve, Spill, group_boxes
from gs_train.clouds.room import CloudRoom
from gs_train.clouds.spacing import Groups, region_spacing
from gs_train.clouds.thinning import Cells, Thinning
from gs_train.clouds.threads import over_pieces, over_regions
from gs_train.data.point_ply import PlyPoints, PointCloud
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.names import printable
from gs_train.rows.keys import END_OF_KEYS
from gs_train.rows.morton import sample_stride
from gs_train.scene.initialize import check_options, least_spacing, rows_with_spacing
from gs_train.scene.neighbours import Floats


@dataclass(frozen=True)
class FirstRows:
    """How the rows of a scene begin; see :func:`gs_train.scene.initialize.rows_from_cloud`.

    Attributes:
        sh_degree, opacity, scale, seed: as there.
        block_rows: most rows of a block.
        betas, eps: Adam's, of all steps.
        ceilings: of ``means`` and ``scales``: no step has a larger rate.
    """

    sh_degree: int
    opacity: float
    scale: float
    seed: int
    block_rows: int
    betas: tuple[float, float]
    eps: float
    ceilings: Mapping[str, float]


def stored_scene(
    path: Path,
    store: Path,
    first: FirstRows,
    *,
    memory: int,
    stop: StopRequest,
    transform: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    limit: int | None = None,
) -> int:
    """Make a store of a Gaussian for each point of a PLY file.

    Its rows are, by key and to the bit, those of ``StoredRows.create`` with the rows of
    ``rows_from_cloud`` and the points in Morton order. The store appears under its name once it is
    whole: a run that ends before leaves a folder beside it, ``.making`` at the end of its name,
    that the next call removes.

    Args:
        path: of the file.
        store: an empty folder, or none yet; its parent exists.
        first: how rows begin.
        memory: bytes for points. Beside it come some 100 MB, and 32 MB a core for blocks of 1024
            rows that are written.
        stop: looked at now and then.
        transform: as for :func:`gs_train.data.point_ply.read_point_ply`.
        limit: points are thinned to so many, see :func:`gs_train.scene.thinning.thinned_order`.

    Returns:
        The number of rows.

    Raises:
        InputError: the file cannot be used, holds too few points or more than there are keys,
            ``memory`` or the drive is too small, or another process makes the same store.
        Interrupted: a stop was asked for.
        OSError: the drive is full, or errs.

    Cost: the file is read twice. On the drive, 15 bytes a point before the store begins and 19
        before its first block, which go region by region as the store grows. About 2.5 us a
        point, divided by the cores.
    """
    check_options(first.sh_degree, first.opacity, first.scale)
    with making(store) as folder:
        room = CloudRoom(memory)
        with _points_of(path, transform, room) as points:
            looked = _look(points, room, stop)
            n = looked.n_points
            _check_number(n, points.n_rows, path)
            room.require_drive(folder, n, first_row_bytes(first.block_rows))
            curve = looked.curve(room.parts(n, path))
            spill = _deal(points, curve, folder, room, stop)
        spill.gather(room.region_rows())
        room.require_largest(int(spill.sizes.max()), n, path)
        cells = _sort(spill, curve, room, stop)
        if limit is not None and n > limit:
            _thin(spill, curve, Thinning(cells, limit), room, stop)
            n = int(spill.sizes.sum())
            if n < 4:
                raise InputError(f"--init {path} must hold points in 4 places, got {n}")
        looked, groups = _surveyed(spill, room, stop)
        least = least_spacing(*looked.bounds)
        if least == 0:
            raise InputError(f"points of {path} must not all coincide, got {n:,} in one place")
        _space(spill, groups, room, stop)
        _write(spill, folder / "store", first, least, room, stop)
    return n


def _points_of(
    path: Path,
    transform: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None,
    room: CloudRoom,
) -> PlyPoints:
    return PlyPoints(path, transform=transform, piece_rows=room.piece_rows)


def _look(points: PlyPoints, room: CloudRoom, stop: StopRequest) -> Looked:
    """Bounds and a sample. Read again where points that are left out change the sample."""
    looked = _looked(points, points.n_rows, room, stop)
    if sample_stride(looked.n_points) == sample_stride(points.n_rows):
        return looked
    return _looked(points, looked.n_points, room, stop)


def _looked(points: PlyPoints, n_expected: int, room: CloudRoom, stop: StopRequest) -> Looked:
    stride = sample_stride(n_expected)
    nowhere = torch.full((3,), torch.inf), torch.full((3,), -torch.inf)
    low, high = nowhere
    sample = [torch.empty(0, 3)]
    n_points = 0

    def work(piece: PointCloud) -> tuple[Tensor, Tensor, Tensor]:
        own = torch.from_numpy(piece.points)
        bounds = (own.amin(0), own.amax(0)) if len(own) else nowhere
        return own, *bounds

    def take(found: tuple[Tensor, Tensor, Tensor]) -> None:
        nonlocal n_points, low, high
        own, lowest, highest = found
        low, high = torch.minimum(low, lowest), torch.maximum(high, highest)
        sample.append(own[-n_points % stride :: stride].clone())
        n_points += len(own)

    over_pieces(points, "reading points", work, take, room.threads, stop)
    return Looked(n_points, low, high, torch.cat(sample))


def _check_number(n: int, n_all: int, path: Path) -> None:
    if n < n_all:
        why = "not finite, or too far away for float32"
        print(printable(f"{path}: {n_all - n:,} points left out: {why}"), file=sys.stderr)
    if not 4 <= n <= END_OF_KEYS:
        most = f"at least 4 points and at most {END_OF_KEYS:,}"
        raise InputError(f"--init {path} must hold {most}, got {n:,}")


def _deal(
    points: PlyPoints, curve: Curve, folder: Path, room: CloudRoom, stop: StopRequest
) -> Spill:
    spill = Spill(folder, curve.n_parts, room.waiting_bytes)

    def work(piece: PointCloud) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return curve.deal(piece.points, piece.colors)

    def take(dealt: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> None:
        spill.append(*dealt)

    over_pieces(points, "dealing points to regions", work, take, room.threads, stop)
    return spill


def _sort(spill: Spill, curve: Curve, room: CloudRoom, stop: StopRequest) -> list[Cells]:
    cells: list[Cells] = []

    def work(region: int) -> Cells:
        return Cells.of(curve.codes(spill.sort(region, curve)))

    over_regions(spill, "sorting points", work, cells.append, room.threads, stop)
    return cells


def _thin(
    spill: Spill, curve: Curve, thinning: Thinning, room: CloudRoom, stop: StopRequest
) -> None:
    def work(region: int) -> None:
        spill.thin(region, thinning.keeps(region, curve.codes(spill.points(region))))

    over_regions(spill, "thinning points", work, lambda _: None, room.threads, stop)


def _surveyed(spill: Spill, room: CloudRoom, stop: StopRequest) -> tuple[Looked, Groups]:
    """Bounds and a sample of the points along the curve, and groups of all regions."""
    n_points = int(spill.sizes.sum())
    first, stride = np.cumsum(spill.sizes) - spill.sizes, sample_stride(n_points)
    boxes: list[Floats] = []
    sample = [torch.empty(0, 3)]

    def work(region: int) -> tuple[Floats, Tensor]:
        points = spill.points(region)
        own = points[-int(first[region]) % stride :: stride].copy()
        return group_boxes(points), torch.from_numpy(own)

    def take(found: tuple[Floats, Tensor]) -> None:
        boxes.append(found[0])
        sample.append(found[1])

    over_regions(spill, "looking at regions", work, take, room.threads, stop)
    every = np.concatenate(boxes)
    lowest, highest = every[:, :3].min(0), every[:, 3:].max(0)
    bounds = torch.from_numpy(lowest), torch.from_numpy(highest)
    return Looked(n_points, *bounds, torch.cat(sample)), Groups(boxes)


def _space(spill: Spill, groups: Groups, room: CloudRoom, stop: StopRequest) -> None:
    def work(region: int) -> None:
        points = spill.points(region)
        most = max(1, len(points) // 2)
        spacing = region_spacing(region, points, groups, spill.points_of, most)
        spill.set_spacing(region, spacing)

    over_regions(spill, "finding neighbours of points", work, lambda _: None, room.threads, stop)


def _write(
    spill: Spill, path: Path, first: FirstRows, least: float, room: CloudRoom, stop: StopRequest
) -> None:
    sizes = spill.sizes
    first_key = np.cumsum(sizes) - sizes
    n_blocks = -(-sizes // first.block_rows)
    first_block = np.cumsum(n_blocks) - n_blocks
    with NewStore(
        path,
        k=(first.sh_degree + 1) ** 2 - 1,
        n_blocks=int(n_blocks.sum()),
        block_rows=first.block_rows,
        betas=first.betas,
        eps=first.eps,
        ceilings=first.ceilings,
    ) as new:

        def work(region: int) -> None:
            points, colors, spacing = spill.take(region)
            if not len(points):  # all thinned
                return
            start = int(first_key[region])
            keys = torch.arange(start, start + len(points))
            rows = rows_with_spacing(
                points,
                colors,
                spacing,
                ids=keys,
                least=least,
                sh_degree=first.sh_degree,
                opacity=first.opacity,
                scale=first.scale,
                seed=first.seed,
            )
            born = keys.int()
            partition = kd_partition(points, rows["scales"].numpy(), born.numpy(), first.block_rows)
            new.add(int(first_block[region]), partition, rows, born)

        over_regions(spill, "writing rows", work, lambda _: None, room.threads, stop)
        new.finish()
