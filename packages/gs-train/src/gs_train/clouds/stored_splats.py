# SPDX-License-Identifier: Apache-2.0
"""A store of first rows from Gaussians of any number that lie elsewhere, in bounded memory.

rows ──look──► bounds, sample ──deal──► parts of the Morton curve on the drive
parts of a region ──kd──► blocks ──► store, and their files go
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.new_store import NewStore
from gs_train.blocks.partition import kd_partition
from gs_train.clouds.looked import Looked
from gs_train.clouds.making import making
from gs_train.clouds.regions import Curve, Spill
from gs_train.clouds.room import CloudRoom
from gs_train.clouds.threads import over_regions
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.rows.attributes import row_shapes
from gs_train.rows.morton import sample_stride
from gs_train.rows.saved_rows import KeyedRows
from gs_train.scene.first_splats import FirstSplats

_READ_TIMES = 8
"""Sizes of a row that one takes which is read: with its moments, moved, and dealt."""

_MOST_AT_ONCE = 1 << 16


def stored_splats(
    splats: FirstSplats,
    store: Path,
    *,
    block_rows: int,
    betas: tuple[float, float],
    eps: float,
    ceilings: Mapping[str, float],
    memory: int,
    stop: StopRequest,
) -> int:
    """Make a store of Gaussians that keep their values and keys, without moments.

    The store appears under its name once it is whole, see
    :func:`gs_train.clouds.stored_scene.stored_scene`. In which blocks rows lie follows from
    ``memory`` too, and changes no result.

    Args:
        splats: of the run.
        store: an empty folder, or none yet; its parent exists.
        block_rows: most rows of a block.
        betas, eps: Adam's, of all steps.
        ceilings: of ``means`` and ``scales``: no step has a larger rate.
        memory: bytes for rows. Beside it come some 100 MB, and 32 MB a core for blocks of 1024
            rows that are written.
        stop: looked at now and then.

    Returns:
        The number of rows.

    Raises:
        InputError: the Gaussians are damaged or too few, ``memory`` or the drive is too small, or
            another process makes the same store.
        Interrupted: a stop was asked for.
        OSError: the drive is full, or errs.

    Cost: two passes over the Gaussians. On the drive, the size of a row without moments for each,
        which goes region by region as the store grows.
    """
    record = _record_bytes(splats.n_bases)
    with making(store) as folder:
        room = CloudRoom(memory, row_bytes=3 * record, read_bytes=_READ_TIMES * record)
        room.require_drive(folder, splats.n_rows, record)
        at_once = min(room.piece_rows, _MOST_AT_ONCE)
        looked = _look(splats, at_once, stop)
        splats.tell(looked.n_points)
        curve = looked.curve(room.parts(looked.n_points, splats.path))
        spill = Spill(folder, curve.n_parts, room.waiting_bytes)
        _deal(splats, curve, spill, at_once, stop)
        spill.gather(room.region_rows())
        room.require_largest(int(spill.sizes.max()), looked.n_points, splats.path)
        n_blocks = -(-spill.sizes // block_rows)
        first_block = np.cumsum(n_blocks) - n_blocks
        with NewStore(
            folder / "store",
            k=splats.n_bases,
            n_blocks=int(n_blocks.sum()),
            block_rows=block_rows,
            betas=betas,
            eps=eps,
            ceilings=ceilings,
        ) as new:

            def work(region: int) -> None:
                keys, rows = _rows_of(spill.take_dealt(region), splats.n_bases)
                means, scales = rows["means"].numpy(), rows["scales"].numpy()
                partition = kd_partition(means, scales, keys.numpy(), block_rows)
                new.add(int(first_block[region]), partition, rows, keys)

            over_regions(spill, "writing rows", work, lambda _: None, room.threads, stop)
            new.finish()
    return looked.n_points


def _look(splats: FirstSplats, at_once: int, stop: StopRequest) -> Looked:
    stride = sample_stride(splats.n_rows)
    low, high = torch.full((3,), torch.inf), torch.full((3,), -torch.inf)
    sample, n = [torch.empty(0, 3)], 0
    with task_progress("looking at Gaussians:", splats.n_rows) as progress:
        for keys, rows in splats.chunks(at_once):
            stop.check(splats.what)
            means = rows["means"]
            if len(keys):
                low, high = torch.minimum(low, means.amin(0)), torch.maximum(high, means.amax(0))
            sample.append(means[-n % stride :: stride].clone())
            n += len(keys)
            progress.update(n)
    return Looked(n, low, high, torch.cat(sample))


def _deal(splats: FirstSplats, curve: Curve, spill: Spill, at_once: int, stop: StopRequest) -> None:
    with task_progress("dealing Gaussians to regions:", splats.n_rows) as progress:
        for some in splats.chunks(at_once):
            stop.check(splats.what)
            spill.append(*curve.deal(some.rows["means"].contiguous().numpy(), _others(some)))
            progress.update(int(spill.counts.sum()))


def _record_bytes(n_bases: int) -> int:
    """Of a row on its way: its attributes and its key."""
    sizes = [int(np.prod(shape)) for shape in row_shapes(n_bases).values()]
    return 4 * (sum(sizes) + 1)


def _others(some: KeyedRows) -> NDArray[np.uint8]:
    """(R, W) all of rows but their means: keys, then attributes in their order."""
    n = len(some.keys)
    columns = [some.keys[:, None]]
    for name in row_shapes(0):
        if name != "means":
            columns.append(some.rows[name].contiguous().view(n, -1).view(torch.int32))
    table: NDArray[np.int32] = torch.cat(columns, 1).numpy()
    return table.view(np.uint8)


def _rows_of(dealt: NDArray[np.uint8], n_bases: int) -> KeyedRows:
    """What `Curve.deal` put together, in the same memory."""
    table = torch.from_numpy(dealt.view(np.float32))
    keys = table.view(torch.int32)[:, 3].contiguous()
    rows: dict[str, Tensor] = {"means": table[:, :3]}
    first = 4
    for name, shape in row_shapes(n_bases).items():
        if name != "means":
            stop = first + int(np.prod(shape))
            rows[name] = table[:, first:stop].reshape(len(table), *shape)
            first = stop
    return KeyedRows(keys, rows)
