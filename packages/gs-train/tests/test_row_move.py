# SPDX-License-Identifier: Apache-2.0
"""Rows move to the ranks that own their strands, with all that belongs to them."""

from __future__ import annotations

import itertools

import pytest
import torch
from threads_as_ranks import ThreadWorld, results
from torch import Tensor

from gs_train.ranks.row_move import RowMove
from gs_train.rows.strands import Lattice, dealt, owners

CPU = torch.device("cpu")
N = 300


def all_rows() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(5)
    means = 20 * torch.randn(N, 3, generator=draw)
    return {
        "means": means,
        "opacities": torch.randn(N, generator=draw),
        "shN": torch.randn(N, 15, 3, generator=draw),
        "nothing": torch.empty(N, 0, 3),
        "last_step": torch.randint(0, 99, (N,), generator=draw),
        "keys": torch.randperm(N, generator=draw).int(),
        "strands": Lattice(0, N).labels(means),
    }


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("all_on_first", [False, True])
def test_rows_arrive_whole_and_once(n_ranks: int, all_on_first: bool) -> None:
    rows = all_rows()
    shares = [N, *([0] * (n_ranks - 1))] if all_on_first else [N // n_ranks] * n_ranks
    ends = torch.tensor([0, *shares]).cumsum(0).tolist()
    # What the gather of `sent` would bring.
    table = [
        dealt(rows["strands"][start:stop], n_ranks)[1].tolist()
        for start, stop in itertools.pairwise(ends)
    ]

    def run(carrier: ThreadWorld) -> dict[str, Tensor]:
        part = slice(ends[carrier.rank], ends[carrier.rank + 1])
        own = {name: values[part] for name, values in rows.items()}
        move = RowMove(own["strands"], carrier, n_ranks)
        assert move.sent == table[carrier.rank]
        received = move.received(table)
        return {name: move.of(values, received) for name, values in own.items()}

    found = results(n_ranks, run)
    for rank, own in enumerate(found):
        assert (owners(own["strands"], n_ranks) == rank).all()
        assert {name: values.shape[1:] for name, values in own.items()} == {
            name: values.shape[1:] for name, values in rows.items()
        }
    order, expected = rows["keys"].argsort(), torch.cat([own["keys"] for own in found]).argsort()
    assert len(expected) == N
    for name, values in rows.items():
        moved = torch.cat([own[name] for own in found])
        assert moved.dtype == values.dtype
        assert torch.equal(moved[expected], values[order]), name
