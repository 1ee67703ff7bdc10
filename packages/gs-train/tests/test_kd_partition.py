# SPDX-License-Identifier: Apache-2.0
"""Blocks are balanced, small, and the same for any storage order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.blocks.kd_cuts import nth
from gs_train.blocks.kd_tree import sort_into_leaves
from gs_train.blocks.partition import Partition, kd_partition


def cloud(n: int, seed: int, *, grid: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, log scales and keys; with ``grid`` many equal coordinates."""
    draw = np.random.default_rng(seed)
    means = draw.normal(size=(n, 3)).astype(np.float32) * (10, 10, 1)
    if grid:
        means = np.round(means / grid) * grid
    scales = draw.normal(-2, 0.5, (n, 3)).astype(np.float32)
    keys = draw.permutation(3 * n)[:n].astype(np.int32)
    return means.astype(np.float32), scales, keys


def by_key(partition: Partition, keys: np.ndarray) -> list[list[int]]:
    """The keys of each block, in their order."""
    return [part.tolist() for part in np.split(keys[partition.rows], partition.offsets[1:-1])]


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(0, 300),
    block_rows=st.integers(1, 70),
    grid=st.sampled_from([0, 1, 40]),
    seed=st.integers(0, 1000),
)
def test_blocks_are_few_and_of_equal_size(n: int, block_rows: int, grid: int, seed: int) -> None:
    means, scales, keys = cloud(n, seed, grid=grid)
    partition = kd_partition(means, scales, keys, block_rows)
    assert len(partition) == -(-n // block_rows)
    assert sorted(partition.rows.tolist()) == list(range(n))
    if n:
        assert partition.counts.max() <= block_rows
        assert partition.counts.max() - partition.counts.min() <= 1
    assert all(block == sorted(block) for block in by_key(partition, keys))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 300), grid=st.sampled_from([0, 1, 40]), seed=st.integers(0, 1000))
def test_the_storage_order_of_rows_makes_no_difference(n: int, grid: int, seed: int) -> None:
    rows = cloud(n, seed, grid=grid)
    order = np.random.default_rng(seed).permutation(n)
    moved = [part[order] for part in rows]
    one = kd_partition(*rows, 16)
    other = kd_partition(moved[0], moved[1], moved[2], 16)
    assert by_key(one, rows[2]) == by_key(other, moved[2])


@pytest.mark.parametrize(("n", "grid"), [(4000, 0), (4000, 40), (1, 0), (0, 0)])
def test_threads_make_no_difference(n: int, grid: int) -> None:
    means, scales, _ = cloud(n, 3, grid=grid)
    axes = np.concatenate([means.T, scales.T[:1]])
    one = sort_into_leaves(axes.copy(), -(-n // 16), 1)
    several = sort_into_leaves(axes.copy(), -(-n // 16), 3, alone=100)
    for ours, theirs in zip(one, several, strict=True):
        assert np.array_equal(ours, theirs)


def test_blocks_of_a_plane_are_compact() -> None:
    means, scales, keys = cloud(4096, 0)
    means = np.random.default_rng(1).uniform(0, 64, (4096, 3)).astype(np.float32) * (1, 1, 0)
    partition = kd_partition(means.astype(np.float32), scales - 3, keys, 64)
    ends = [
        np.ptp(means[part], axis=0) for part in np.split(partition.rows, partition.offsets[1:-1])
    ]
    assert np.mean(ends, axis=0).max() < 10  # squares of 8 hold 64 rows


def test_large_rows_are_gathered_in_few_blocks() -> None:
    means, scales, keys = cloud(2048, 0)
    large = np.arange(0, 2048, 64)  # the sky, far apart
    scales[large] = 4.0
    partition = kd_partition(means, scales, keys, 64)
    blocks = np.split(partition.rows, partition.offsets[1:-1])
    assert sum(bool(np.isin(large, rows).any()) for rows in blocks) <= 2


def test_rows_that_are_not_finite_have_places_too() -> None:
    means, scales, keys = cloud(100, 0)
    means[::7], scales[::11] = np.nan, np.inf
    partition = kd_partition(means, scales, keys, 8)
    assert sorted(partition.rows.tolist()) == list(range(100))


def along_x(xs: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Means and log scales of rows on the x axis."""
    means = np.zeros((len(xs), 3), np.float32)
    means[:, 0] = xs
    return means, np.full((len(xs), 3), -3.0, np.float32)


def test_equal_values_are_cut_by_key_the_lower_keys_first() -> None:
    keys = np.array([7, 3, 5, 1, 9, 0], np.int32)
    partition = kd_partition(*along_x([2.0] * 5 + [8.0]), keys, 3)
    assert by_key(partition, keys) == [[1, 3, 5], [0, 7, 9]]


def test_rows_that_are_not_finite_cost_the_others_nothing() -> None:
    xs = [float(x) for x in range(16)]
    means, scales = along_x([*xs, *xs])
    means[16:, 1] = 100.0
    means[3, 2], scales[20, 1] = np.nan, np.inf
    keys = np.arange(32, dtype=np.int32)
    blocks = kd_partition(means, scales, keys, 16)
    assert by_key(blocks, keys) == [list(range(16)), list(range(16, 32))]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1), st.data())
def test_the_nth_value_is_that_of_the_sorted_ones(values: list[float], data: st.DataObject) -> None:
    n = data.draw(st.integers(0, len(values) - 1))
    array = np.array([*values, 0.0, -0.0, -0.0], np.float32)
    value, before = nth(array, n)
    assert value == np.sort(array)[n]
    assert before == n - (array < value).sum()


def test_bad_arguments_are_refused() -> None:
    means, scales, keys = cloud(4, 0)
    with pytest.raises(ValueError, match="block_rows must be at least 1, got 0"):
        kd_partition(means, scales, keys, 0)
    with pytest.raises(ValueError, match=r"means and scales must be \(4, 3\)"):
        kd_partition(means[:3], scales, keys, 8)
