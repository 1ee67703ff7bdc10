# SPDX-License-Identifier: Apache-2.0
"""Integers of ranks by way of memory: threads stand for ranks, each with a table of its own."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gs_train.world import shared_table
from gs_train.world.failure import Failure, RankFailedError
from gs_train.world.shared_table import MOST, SharedTable, new_table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_table, "FOLDER", str(tmp_path))
    return tmp_path


def _opened(path: Path, size: int) -> list[SharedTable]:
    return [SharedTable(path, rank, size, lambda: None) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_gather_has_the_integers_of_all_whoever_is_late(folder: Path, size: int) -> None:
    path = new_table(size)
    assert path is not None
    tables = _opened(path, size)
    path.unlink()
    widths = [random.Random(0).choice([0, 1, 3, MOST]) for _ in range(300)]

    def wrong(rank: int) -> list[int]:
        chance = random.Random(rank)
        found = []
        for k, width in enumerate(widths):
            time.sleep(chance.choice([0, 0, 0, 1e-4, 2e-3]))
            got = tables[rank].gather(np.arange(width) + 1000 * k + 10_000_000 * rank)
            expected = np.arange(width) + 1000 * k + 10_000_000 * np.arange(size)[:, None]
            if not np.array_equal(got, expected):
                found.append(k)
        return found

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(wrong, range(size))) == [[]] * size


def test_what_was_gathered_stays(folder: Path) -> None:
    path = new_table(1)
    assert path is not None
    (table,) = _opened(path, 1)
    first = table.gather(np.array([1, 2]))
    for k in range(4):
        table.gather(np.array([k, k]))
    assert first.tolist() == [[1, 2]]


def test_who_waits_in_vain_is_told(folder: Path) -> None:
    path = new_table(2)
    assert path is not None
    looks = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise RankFailedError(Failure(1, "gone"))

    with pytest.raises(RankFailedError, match="gone"):
        SharedTable(path, 0, 2, check).gather(np.array([1]))


def test_a_gather_after_one_that_was_cut_short_waits_for_both(folder: Path) -> None:
    """Else it would take the place of integers that a rank has not read yet."""
    path = new_table(2)
    assert path is not None
    looks, cuts, may_look = [], [True], threading.Event()

    def check() -> None:
        looks.append(1)
        if cuts:
            cuts.pop()
            raise KeyboardInterrupt

    cut = SharedTable(path, 0, 2, check)
    late = SharedTable(path, 1, 2, lambda: looks.append(1) or may_look.wait())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(late.gather, np.array([10]))
        while not looks:  # it has written, and does not look yet
            pass
        assert cut.gather(np.array([1])).tolist() == [[1], [10]]
        with pytest.raises(KeyboardInterrupt):
            cut.gather(np.array([2]))
        looks.clear()
        third = pool.submit(cut.gather, np.array([3]))
        while not looks:
            pass
        may_look.set()
        assert first.result().tolist() == [[1], [10]]
        assert late.gather(np.array([20])).tolist() == [[2], [20]]
        assert late.gather(np.array([30])).tolist() == [[3], [30]]
        assert third.result().tolist() == [[3], [30]]


def test_without_room_for_the_file_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_table, "FOLDER", str(tmp_path / "missing"))
    assert new_table(2) is None

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_table, "FOLDER", str(tmp_path))
    monkeypatch.setattr("os.posix_fallocate", full)
    assert new_table(2) is None
    assert not list(tmp_path.iterdir())
