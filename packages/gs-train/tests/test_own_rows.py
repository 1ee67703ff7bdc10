# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that some ranks wrote is read by any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from threads_as_ranks import outcomes
from torch import Tensor

from gs_train.checkpoint import open_checkpoint, save_checkpoint
from gs_train.checkpoint.reader import SavedCheckpoint
from gs_train.checkpoint.row_names import KEYS, MEANS, STRANDS
from gs_train.errors import CommonError
from gs_train.rows.own_rows import LATTICE as NAME_OF_LATTICE
from gs_train.rows.own_rows import lattice_of, own_rows, plain_lattice
from gs_train.rows.strands import STRANDS as OF_MODEL
from gs_train.rows.strands import Lattice, dealt, owners

N = 500
LATTICE = Lattice(-1, N)


def written(folder: Path, n_ranks: int, *, without: str = "") -> SavedCheckpoint:
    """Rows one rank after the other, as ranks write them, in small pieces."""
    draw = torch.Generator().manual_seed(0)
    means = 10 * torch.randn(N, 3, generator=draw)
    labels = LATTICE.labels(means)
    order, _ = dealt(labels, n_ranks)
    keys = torch.randperm(N, generator=draw).int()
    tensors = {MEANS: means[order], STRANDS: labels[order], KEYS: keys[order]}
    saved = {name: values for name, values in tensors.items() if name != without}
    path = save_checkpoint(folder, step=1, tensors=saved, state={}, max_shard_bytes=1000)
    return open_checkpoint(path)


def by_key(parts: list[dict[str, Tensor]]) -> Tensor:
    keys = torch.cat([part[KEYS] for part in parts])
    return torch.cat([part[MEANS] for part in parts])[keys.long().argsort()]


@pytest.mark.parametrize("n_writers", [1, 2])
@pytest.mark.parametrize("n_readers", [1, 3])
def test_every_row_has_one_reader(tmp_path: Path, n_writers: int, n_readers: int) -> None:
    saved = written(tmp_path, n_writers)
    parts = []
    for rank in range(n_readers):
        ids, labels = own_rows(saved, LATTICE, rank=rank, n_ranks=n_readers)
        assert (owners(labels, n_readers) == rank).all()
        assert len(ids) == len(labels) > 0
        parts.append(saved.read(rows=ids))
        assert torch.equal(parts[-1][STRANDS], labels)
    assert sum(len(part[KEYS]) for part in parts) == N
    assert torch.equal(by_key(parts), by_key([saved.read()]))


def test_rows_without_labels_get_those_of_their_cells(tmp_path: Path) -> None:
    with_labels = written(tmp_path / "with", 2)
    without = written(tmp_path / "without", 2, without=STRANDS)
    for rank in range(2):
        expected = own_rows(with_labels, LATTICE, rank=rank, n_ranks=2)
        found = own_rows(without, LATTICE, rank=rank, n_ranks=2)
        assert torch.equal(found.ids, expected.ids)
        assert torch.equal(found.labels, expected.labels)


def _lattices(saved: SavedCheckpoint) -> list[Lattice | BaseException]:
    return outcomes(2, lambda world: lattice_of(saved, world))


def test_the_lattice_of_a_run_is_the_saved_one(tmp_path: Path) -> None:
    state = {NAME_OF_LATTICE: plain_lattice(Lattice(-7, 30))}
    path = save_checkpoint(tmp_path, step=1, tensors={}, state=state)
    assert _lattices(open_checkpoint(path)) == [Lattice(-7, 30)] * 2


def test_without_a_saved_lattice_all_ranks_have_that_of_the_rows(tmp_path: Path) -> None:
    saved = written(tmp_path, 1)
    assert _lattices(saved) == [Lattice.of_cloud(saved.read()[MEANS])] * 2


@pytest.mark.parametrize("plain", [[], {"exponent": 1}, {"exponent": 99, "n_rows": 1}, 3])
def test_a_lattice_that_cannot_be_is_damage(tmp_path: Path, plain: object) -> None:
    path = save_checkpoint(tmp_path, step=1, tensors={}, state={NAME_OF_LATTICE: plain})
    for outcome in _lattices(open_checkpoint(path)):
        assert isinstance(outcome, CommonError)
        assert str(outcome).startswith(f"rank 0: {path}/manifest.json is damaged")


def test_labels_have_one_name() -> None:
    assert f"model/{OF_MODEL}" == STRANDS
