# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and PLY files of ranks that are processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import world_files as files
from saved_by_ranks import assert_same, by_key, made_up_tensors
from world_workers import Workers, lines

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.files.ply import load_ply

W = 2


@pytest.fixture
def ranks() -> Iterator[Workers]:
    with Workers(W) as workers:
        yield workers


def test_processes_write_files_together_until_one_cannot(ranks: Workers, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    assert ranks.call(files.check_folder, out) == [None] * W
    (first,) = {*ranks.call(files.save, out, 1)}
    assert_same(by_key(load_checkpoint(first).tensors), by_key(made_up_tensors(files.N)))

    ply = tmp_path / "all.ply"
    assert ranks.call(files.export, str(ply)) == [0] * W
    assert load_ply(ply)["opacities"].tolist() == list(range(files.N))

    ends = ranks.ends(files.save_with_small_files, out, 2)
    (line,) = lines(ends)
    assert f"rank 1: {out}/step_000002: File too large" in line
    assert [end.exit_status for end in ends] == [2] * W
    assert os.listdir(out) == ["step_000001"]
    assert str(latest_checkpoint(out)) == first
