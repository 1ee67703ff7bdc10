# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that several ranks write into one folder, each its own rows.

    rank 0                                    every rank
    ---------------------------------------   ------------------------------------------
                                              say step and bytes; all compare
    remove leftovers, check space for all,
    make the temporary folder
                                              write and sync own shards, say where all lies
    write the manifest, sync, rename
    remove the oldest checkpoints

Every line ends with all ranks knowing its outcome. An error of one rank is raised by all of them,
and rank 0 removes the temporary folder.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gs_train.checkpoint.dtypes import dtype_name
from gs_train.checkpoint.joined import joined
from gs_train.checkpoint.layout import Layout
from gs_train.checkpoint.manifest import rank_shard_name
from gs_train.checkpoint.writer import (
    Unsaved,
    complete,
    new_path,
    require_limits,
    save_checkpoint,
    settle,
    temporary_of,
)
from gs_train.errors import CommonError
from gs_train.files.agreement import by_each, by_first
from gs_train.files.atomic import disk_full_is_input_error
from gs_train.world import World


def save_by_ranks(
    folder: str | Path,
    *,
    world: World,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    by_row: Collection[str] | None = None,
    keep: int = 2,
    max_shard_bytes: int = 2 << 30,
) -> Path:
    """Write a checkpoint of the rows of all ranks. A collective.

    A world of one writes what :func:`~gs_train.checkpoint.save_checkpoint` does.

    Args:
        folder: the same one for all ranks, see
            :func:`~gs_train.files.one_folder.require_one_folder`.
        world: of the ranks.
        tensors: of this rank. Those by row hold its own rows and are alike on all ranks but for
            their lengths; of the others, rank 0's are saved.
        state: rank 0's is saved.
        step, by_row, keep, max_shard_bytes: as for :func:`~gs_train.checkpoint.save_checkpoint`.

    Returns:
        The new checkpoint's folder.

    Raises:
        CommonError: the disk has not enough space, a rank cannot write, or ranks are about to save
            different steps or tensors; on all ranks. The earlier checkpoints are as they were.
        TypeError, ValueError: as :func:`~gs_train.checkpoint.save_checkpoint`, on a rank that has
            such arguments.

    Cost: each rank writes its own rows at the speed of the disk, with 16 MiB of memory and one sync
        per shard. Small messages between ranks, some kilobytes for each. A rank that ends at any
        moment leaves the earlier checkpoints and at most one temporary folder, which the next save
        removes.
    """
    if world.size == 1:
        return save_checkpoint(
            folder,
            step=step,
            tensors=tensors,
            state=state,
            by_row=by_row,
            keep=keep,
            max_shard_bytes=max_shard_bytes,
        )
    require_limits(step, keep, max_shard_bytes)
    own = Unsaved.of(step, tensors, state if world.rank == 0 else {}, by_row=by_row)
    if world.rank:
        own = dataclasses.replace(own, tensors={name: tensors[name] for name in _rows_of(own)})
    n_bytes = _agreed_bytes(world, own)
    folder = Path(folder)
    path = folder / by_first(world, lambda: _made(folder, step, n_bytes))
    try:
        written = by_each(world, lambda: _written(path, own, world.rank, max_shard_bytes))
        by_first(world, lambda: _completed(path, written))
    except BaseException:
        if world.rank == 0:
            shutil.rmtree(temporary_of(path), ignore_errors=True)
        raise
    by_first(world, lambda: settle(path, keep=keep))
    return path


def _rows_of(own: Unsaved) -> list[str]:
    """Names of the tensors by row, in their order."""
    return [name for name in own.tensors if name in own.by_row]


def _agreed_bytes(world: World, own: Unsaved) -> int:
    """How much all ranks together are about to write.

    Raises:
        CommonError: they are about to save different steps, or tensors that do not fit together.
    """
    told = by_each(world, lambda: _announced(own))
    for rank, each in enumerate(told):
        if each["step"] != told[0]["step"]:
            raise CommonError(
                f"ranks must save the same step, got {told[0]['step']} on rank 0 and "
                f"{each['step']} on rank {rank}"
            )
        kinds, first = each["kinds"], told[0]["kinds"]
        different = sorted(name for name, _ in kinds.items() ^ first.items())
        if different:
            name = different[0]
            raise CommonError(
                f"tensors by row must be alike on all ranks, got {name} "
                f"{first.get(name, 'not')} on rank 0 and {kinds.get(name, 'not')} on rank {rank}"
            )
    return sum(each["bytes"] for each in told)


def _announced(own: Unsaved) -> dict[str, Any]:
    """What a rank says of the tensors that it is about to write."""
    kinds = {
        name: f"{dtype_name(own.tensors[name].dtype)} {list(own.tensors[name].shape[1:])}"
        for name in _rows_of(own)
    }
    return {"step": own.step, "kinds": kinds, "bytes": own.n_bytes}


def _made(folder: Path, step: int, n_bytes: int) -> str:
    """Make the temporary folder; the name that the checkpoint will have."""
    path = new_path(folder, step, n_bytes)
    with disk_full_is_input_error(path):
        temporary_of(path).mkdir(parents=True)
    return path.name


def _written(path: Path, own: Unsaved, rank: int, max_shard_bytes: int) -> dict[str, Any]:
    """Write a rank's shards; their layout."""
    name_of = functools.partial(rank_shard_name, rank)
    with disk_full_is_input_error(path):
        return own.write(temporary_of(path), max_shard_bytes, name_of).to_plain()


def _completed(path: Path, written: list[dict[str, Any]]) -> None:
    with disk_full_is_input_error(path):
        complete(path, joined([Layout.from_plain(plain) for plain in written]))
