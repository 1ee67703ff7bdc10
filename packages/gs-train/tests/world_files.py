# SPDX-License-Identifier: Apache-2.0
"""Files that ranks write in tests; functions of a module, so that another process finds them."""

from __future__ import annotations

import resource
from pathlib import Path

import torch
from saved_by_ranks import made_up_tensors, part_of

from gs_train.checkpoint import save_by_ranks
from gs_train.files.one_folder import require_one_folder
from gs_train.files.ranks_ply import write_ply_of_ranks
from gs_train.world import World

N = 200


def check_folder(world: World, folder: str) -> None:
    require_one_folder(world, Path(folder), option="--out")


def save(world: World, folder: str, step: int) -> str:
    own = part_of(made_up_tensors(N), world.rank, world.size)
    return str(save_by_ranks(folder, world=world, step=step, tensors=own, state={}))


def save_with_small_files(world: World, folder: str, step: int) -> str:
    """Rank 1 cannot write files of the size of a shard."""
    if world.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    return save(world, folder, step)


def export(world: World, path: str) -> int:
    """Row i has the opacity i."""
    numbers = torch.arange(N).tensor_split(world.size)[world.rank].float()
    n = len(numbers)
    rows = {
        "means": torch.zeros(n, 3),
        "scales": torch.zeros(n, 3),
        "quats": torch.ones(n, 4),
        "opacities": numbers,
        "sh0": torch.zeros(n, 1, 3),
        "shN": torch.zeros(n, 3, 3),
    }
    chunks = [{name: values[i : i + 30] for name, values in rows.items()} for i in range(0, n, 30)]
    return write_ply_of_ranks(path, chunks, world=world, n_rows=n)
