# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that threads write as the ranks of a world, and their rows in the order of keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from threads_as_ranks import ThreadWorld, outcomes
from torch import Tensor

from gs_train.checkpoint import save_by_ranks
from gs_train.checkpoint.row_names import KEYS, STRANDS, row_names
from gs_train.rows.strands import owners


def made_up_tensors(n_rows: int) -> dict[str, Tensor]:
    """A small model in training, with sleeping rows and all that has no rows."""
    draw = torch.Generator().manual_seed(n_rows)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw)

    tensors = {
        "model/means": random(n_rows, 3),
        "model/opacities": random(n_rows),
        "model/shN": random(n_rows, 0, 3),
        "model/means.exp_avg": random(3, n_rows).T,
        "model/means.step": torch.tensor(7.0),
        "model/appearance.last_step": torch.arange(n_rows).int(),
        "model/appearance.schedule.sh0.missed": random(8, 4).double(),
        KEYS: torch.randperm(n_rows, generator=draw).int(),
        "model/next_key": torch.tensor(n_rows),
        STRANDS: torch.randint(256, (n_rows,), generator=draw).to(torch.uint8),
        "densify/count": random(n_rows),
        "costs/views": torch.arange(5),
        "order/changes": torch.tensor(3),
    }
    return tensors


def part_of(tensors: Mapping[str, Tensor], rank: int, n_ranks: int) -> dict[str, Tensor]:
    """The tensors of a rank: its own rows, and all that has no rows."""
    own = (owners(tensors[STRANDS], n_ranks) == rank).nonzero().squeeze(1)
    by_row = row_names({name: tuple(values.shape) for name, values in tensors.items()})
    return {
        name: values.index_select(0, own) if name in by_row else values
        for name, values in tensors.items()
    }


def save(
    folder: Path, tensors: Mapping[str, Tensor], n_ranks: int, **options: Any
) -> list[Path | BaseException]:
    """Write a checkpoint by so many ranks; what each of them returns or raises."""
    options = {"step": 5, "state": {"a": 1}, **options}

    def run(world: ThreadWorld) -> Path:
        own = part_of(tensors, world.rank, world.size)
        return save_by_ranks(folder, world=world, tensors=own, **options)

    return outcomes(n_ranks, run)


def saved(folder: Path, tensors: Mapping[str, Tensor], n_ranks: int, **options: Any) -> Path:
    """Write a checkpoint by so many ranks; where it is."""
    (path,) = {*save(folder, tensors, n_ranks, **options)}
    assert isinstance(path, Path)
    return path


def by_key(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows in the order of their keys."""
    order = tensors[KEYS].long().argsort()
    by_row = row_names({name: tuple(values.shape) for name, values in tensors.items()})
    return {
        name: values.index_select(0, order) if name in by_row else values
        for name, values in tensors.items()
    }


def assert_same(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
    """The same bits under the same names."""
    assert list(some) == list(others)
    for name, values in some.items():
        assert values.dtype == others[name].dtype, name
        assert torch.equal(values, others[name]), name
