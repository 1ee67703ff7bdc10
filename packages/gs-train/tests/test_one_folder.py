# SPDX-License-Identifier: Apache-2.0
"""All ranks of a run must have one output folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from threads_as_ranks import ThreadWorld, outcomes, results

from gs_train.errors import CommonError
from gs_train.files.one_folder import require_one_folder


@pytest.mark.parametrize("out", ["", "new", "new/and/deeper"])
def test_one_folder_is_seen_by_all_and_left_as_it_was(tmp_path: Path, out: str) -> None:
    results(3, lambda world: require_one_folder(world, tmp_path / out, option="--out"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("out", ["", "new", "new/and/deeper"])
def test_a_rank_with_another_folder_is_named_by_all(tmp_path: Path, out: str) -> None:
    for name in ("shared", "own"):
        (tmp_path / name).mkdir()

    def run(world: ThreadWorld) -> None:
        root = tmp_path / ("own" if world.rank == 2 else "shared")
        require_one_folder(world, root / out, option="--out")

    found = outcomes(3, run)
    assert {type(each) for each in found} == {CommonError}
    assert {str(each) for each in found} == {
        f"rank 2: --out must be one folder for all ranks, {socket.gethostname()} does not see in "
        f"{tmp_path / 'own'} what rank 0 has written there"
    }
    assert os.listdir(tmp_path / "shared") == os.listdir(tmp_path / "own") == []


def test_a_folder_that_rank_0_cannot_write_is_one_line(tmp_path: Path) -> None:
    place = Path("/proc")  # which takes no file, of root neither
    found = outcomes(2, lambda world: require_one_folder(world, place / "out", option="--out"))
    (line,) = {str(each) for each in found}
    assert line.startswith("rank 0: /proc/.gs-train-")


def test_a_world_of_one_writes_nothing(tmp_path: Path) -> None:
    def run(world: ThreadWorld) -> int:
        require_one_folder(world, Path("/proc/out"), option="--out")
        return world.n_calls

    assert results(1, run) == [0]
