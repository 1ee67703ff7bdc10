# SPDX-License-Identifier: Apache-2.0
"""One PLY file from the Gaussians of several ranks."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from threads_as_ranks import ThreadWorld, outcomes, results
from torch import Tensor

from gs_train.errors import CommonError
from gs_train.files.ply import load_ply, write_ply
from gs_train.files.ranks_ply import write_ply_of_ranks

N = 100


def _rows(k: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(k)
    shapes = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}
    rows = {name: torch.randn(N, *shape, generator=draw) for name, shape in shapes.items()}
    return {**rows, "shN": torch.randn(N, k, 3, generator=draw)}


def _part(rows: dict[str, Tensor], ends: list[int], rank: int) -> dict[str, Tensor]:
    return {name: values[ends[rank] : ends[rank + 1]] for name, values in rows.items()}


def _chunks(rows: dict[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    for start in range(0, max(len(rows["means"]), 1), size):
        yield {name: values[start : start + size] for name, values in rows.items()}


def _shifted(chunk: Any) -> Any:
    return {**chunk, "means": chunk["means"] + 1}


def _write(
    path: Path,
    rows: dict[str, Tensor],
    ends: list[int],
    *,
    size: int = 7,
    transform: Callable[[Any], Any] = _shifted,
) -> list[Any]:
    def run(world: ThreadWorld) -> int:
        own = _part(rows, ends, world.rank)
        return write_ply_of_ranks(
            path, _chunks(own, size), world=world, n_rows=len(own["means"]), transform=transform
        )

    return outcomes(len(ends) - 1, run)


@pytest.mark.parametrize("k", [0, 3, 15])
@pytest.mark.parametrize(
    "ends", [[0, N], [0, 60, N], [0, 30, 30, N], [0, 0, 50, N], [0, 20, N, N, N]]
)
def test_it_has_the_bytes_of_one_rank_with_the_rows_of_all(
    tmp_path: Path, ends: list[int], k: int
) -> None:
    rows = _rows(k)
    rows["means"][[3, 70]] = math.nan
    assert write_ply(tmp_path / "one.ply", rows, transform=_shifted) == 2
    assert _write(tmp_path / "all.ply", rows, ends) == [2] * (len(ends) - 1)
    assert (tmp_path / "all.ply").read_bytes() == (tmp_path / "one.ply").read_bytes()


def test_no_rows_at_all_are_a_file(tmp_path: Path) -> None:
    nothing = {name: values[:0] for name, values in _rows(3).items()}
    assert _write(tmp_path / "all.ply", nothing, [0, 0, 0]) == [0, 0]
    assert len(load_ply(tmp_path / "all.ply")["means"]) == 0


def test_a_world_of_one_says_nothing_to_anybody(tmp_path: Path) -> None:
    def run(world: ThreadWorld) -> int:
        write_ply_of_ranks(tmp_path / "a.ply", [_rows(0)], world=world, n_rows=N)
        return world.n_calls

    assert results(1, run) == [0]


def _assert_all_raise(found: list[Any], start: str) -> None:
    assert {type(each) for each in found} == {CommonError}
    (line,) = {str(each) for each in found}
    assert line.startswith(start)


@pytest.mark.parametrize("n_written", range(8))
def test_a_disk_that_becomes_full_at_any_chunk_is_told_to_all(
    tmp_path: Path, n_written: int
) -> None:
    path = tmp_path / "all.ply"
    path.write_bytes(b"before")
    calls = []

    def full(chunk: Any) -> Any:
        if len(calls) == n_written:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(1)
        return chunk

    found = _write(path, _rows(3), [0, 30, 60, N], size=15, transform=full)
    if n_written == 7:  # there are two chunks, two and three
        assert found == [0, 0, 0]
        return
    _assert_all_raise(found, f"rank 0: the disk became full while writing {path}, ")
    assert os.listdir(tmp_path) == ["all.ply"]
    assert path.read_bytes() == b"before"


def test_a_disk_too_small_is_told_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(10, 5, 5)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = _write(tmp_path / "all.ply", _rows(3), [0, 30, N])
    _assert_all_raise(found, f"rank 0: the disk of {tmp_path} must have ")


def test_rows_none_of_which_is_finite_are_told_to_all(tmp_path: Path) -> None:
    rows = _rows(0)
    rows["scales"][:] = math.inf
    found = _write(tmp_path / "all.ply", rows, [0, 30, N])
    _assert_all_raise(found, f"rank 0: {tmp_path / 'all.ply'} must hold a finite Gaussian")
    assert os.listdir(tmp_path) == []


def test_a_rank_that_has_no_chunk_makes_a_mistake(tmp_path: Path) -> None:
    def run(world: ThreadWorld) -> int:
        return write_ply_of_ranks(tmp_path / "a.ply", [], world=world, n_rows=0)

    for each in outcomes(2, run):
        assert str(each) == "chunks must hold at least one chunk (it may be empty), got none"
