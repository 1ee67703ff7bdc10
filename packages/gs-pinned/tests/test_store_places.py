# SPDX-License-Identifier: Apache-2.0
"""Blocks written from and read into any rows of larger arrays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import BlockStore, Plane

PLANES = [Plane("head", 2, "int32", is_head=True), Plane("tail", 3)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    with BlockStore.create(tmp_path / "store", PLANES, block_rows=4) as made:
        yield made


def arrays(n: int) -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.arange(n)[:, None]
    return {
        "head": np.repeat(numbers, 2, 1).astype("i4"),
        "tail": np.repeat(numbers, 3, 1).astype("f4"),
    }


def test_blocks_lie_where_they_are_said_to(store: BlockStore) -> None:
    values = arrays(20)
    store.write_async([7, 2, 5], values, [4, 3, 0], at=[9, 1, 20]).wait()
    assert store.counts([2, 5, 7]) == [3, 0, 4]
    np.testing.assert_array_equal(store.read([2, 7])["head"][:, 0], [1, 2, 3, 9, 10, 11, 12])
    out = {"tail": np.full((30, 3), -1, "f4")}
    found = store.read_async([7, 2, 7], ["tail"], out=out, at=[26, 0, 5]).wait()
    assert found["tail"] is out["tail"]
    expected = np.full(30, -1, "f4")
    expected[[26, 27, 28, 29, 0, 1, 2, 5, 6, 7, 8]] = [9, 10, 11, 12, 1, 2, 3, 9, 10, 11, 12]
    np.testing.assert_array_equal(out["tail"][:, 0], expected)


def test_without_counts_placed_blocks_are_full(store: BlockStore) -> None:
    store.write_async(np.array([0, 1]), arrays(9), at=np.array([5, 0])).wait()
    assert store.counts([0, 1]) == [4, 4]


@pytest.mark.parametrize(
    ("at", "counts", "message"),
    [
        ([0], [4, 4], "at must be one a block, got 1 for 2 blocks"),
        ([0, 7], [4, 4], "at must leave room for 4 rows of 10, got 7"),
        ([0, 11], [4, 0], "at must leave room for 0 rows of 10, got 11"),
        ([0, 1 << 58], [4, 4], "at must leave room for 4 rows of 10, got 288230376151711744"),
        ([3, 0], [4, 4], "at must not give one row to two blocks, got 0 and 3"),
        ([0, -1], [4, 4], "at must be a whole number of at least 0, got -1"),
        ([0, 4], [4], "counts must be 2, one a block, got 1"),
    ],
)
def test_places_that_are_wrong_are_named_and_change_nothing(
    store: BlockStore, at: list[int], counts: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.write_async([0, 1], arrays(10), counts, at=at)
    assert store.blocks == []
    if len(counts) == 2:
        store.write([0, 1], arrays(sum(counts)), counts)
        out = {"head": np.zeros((10, 2), "i4")}
        with pytest.raises(ValueError, match=message):
            store.read_async([0, 1], ["head"], out=out, at=at)
        assert not out["head"].any()


def test_places_need_arrays_of_equal_length(store: BlockStore) -> None:
    store.write([0], arrays(4))
    with pytest.raises(ValueError, match="out must be given where at is, got None"):
        store.read_async([0], at=[0])
    out = {"head": np.zeros((8, 2), "i4"), "tail": np.zeros((9, 3), "f4")}
    with pytest.raises(ValueError, match=r"out of plane tail must have shape \(8, 3\), got \(9"):
        store.read_async([0], out=out, at=[0])
