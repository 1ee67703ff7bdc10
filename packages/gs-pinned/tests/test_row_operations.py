# SPDX-License-Identifier: Apache-2.0
"""Rows appended, dropped, re-ordered and replaced in place, against numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import Table, gather

few = settings(max_examples=60, deadline=None)


def numbered(rows: int, width: int, dtype: str = "float32", **options: Any) -> Table:
    table = Table(rows, width, dtype, **options)
    table.numpy()[:] = np.arange(rows * width).reshape(rows, width)
    return table


@given(counts=st.lists(st.integers(0, 3000), max_size=8), width=st.sampled_from([1, 3, 48, 511]))
@few
def test_appending_is_concatenation_and_moves_nothing(counts: list[int], width: int) -> None:
    table = Table(0, width, "int32")
    address = table.numpy().ctypes.data if counts else 0
    pieces = [np.full((n, width), i + 1, "i4") for i, n in enumerate(counts)]
    for i, piece in enumerate(pieces):
        first = table.rows
        assert table.append(piece) == slice(first, first + counts[i])
    np.testing.assert_array_equal(
        table.numpy(), np.concatenate(pieces) if pieces else np.zeros((0, width), "i4")
    )
    if counts:
        assert table.numpy().ctypes.data == address


def test_views_taken_before_growth_stay_good_and_see_writes() -> None:
    table = Table(10, 48)
    view = table.torch()
    for _ in range(20):
        table.append(np.ones((20_000, 48), "f4"))
    table.numpy()[3] = 5.0
    assert view.shape == (10, 48)
    assert view[3].tolist() == [5.0] * 48


def test_repeated_growth_stays_within_one_percent_of_what_is_used() -> None:
    table = Table((256 << 20) // 192, 48)
    table.append(np.ones((1000, 48), "f4"))
    stats = table.stats
    assert stats.committed_bytes <= 1.01 * stats.used_bytes


def test_fields_are_appended_by_name() -> None:
    table = numbered(2, 4, fields={"a": 1, "b": (3,)})
    table.append({"b": torch.full((2, 3), 7.0), "a": torch.zeros(2, 1)})
    assert table.numpy()[2:].tolist() == [[0, 7, 7, 7]] * 2
    with pytest.raises(ValueError, match="values must name every field, got a"):
        table.append({"a": np.zeros((1, 1), "f4")})
    assert table.rows == 4


def test_the_capacity_is_a_limit_that_leaves_the_table_as_it_was() -> None:
    table = numbered(3, 2, capacity=4)
    with pytest.raises(ValueError, match="rows must stay within the capacity of 4, got 5"):
        table.append(np.zeros((2, 2), "f4"))
    table.append(np.zeros((1, 2), "f4"))
    assert table.shape == (4, 2)


@given(data=st.data(), rows=st.integers(0, 500), width=st.sampled_from([1, 3, 48]))
@few
def test_keeping_rows_is_indexing_by_mask_or_by_ids(
    data: st.DataObject, rows: int, width: int
) -> None:
    mask = np.asarray(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), bool)
    before = numbered(rows, width).numpy().copy()
    for chosen in (mask, torch.from_numpy(mask), np.flatnonzero(mask).astype(np.int32)):
        table = numbered(rows, width)
        table.keep(chosen)
        np.testing.assert_array_equal(table.numpy(), before[mask])


@pytest.mark.parametrize("first_dropped", [0, 1, 100_000, 199_999])
@pytest.mark.parametrize("share", [0.5, 0.001])
def test_large_tables_are_compacted_by_all_threads(first_dropped: int, share: float) -> None:
    rows = 200_000
    mask = np.random.default_rng(1).random(rows) >= share
    mask[:first_dropped] = True
    mask[first_dropped] = False
    table = numbered(rows, 48)
    expected = table.numpy()[mask]
    table.keep(mask)
    np.testing.assert_array_equal(table.numpy(), expected)


@given(data=st.data(), rows=st.integers(0, 300), width=st.sampled_from([1, 16, 17, 48, 700]))
@few
def test_permuting_is_indexing(data: st.DataObject, rows: int, width: int) -> None:
    perm = np.asarray(data.draw(st.permutations(range(rows))), np.int64)
    table = numbered(rows, width)
    expected = table.numpy()[perm]
    table.permute(torch.from_numpy(perm))
    np.testing.assert_array_equal(table.numpy(), expected)


def test_a_large_permutation_and_its_inverse_cancel() -> None:
    table = numbered(300_000, 48)
    before = table.numpy().copy()
    perm = np.random.default_rng(2).permutation(300_000).astype(np.int32)
    table.permute(perm)
    np.testing.assert_array_equal(table.numpy(), before[perm])
    table.permute(np.argsort(perm))
    np.testing.assert_array_equal(table.numpy(), before)


@pytest.mark.parametrize("places", [(0, 299_999), (63, 64), (65_535, 65_536), (131_072, 7)])
def test_a_row_that_a_large_permutation_holds_twice_is_named(places: tuple[int, int]) -> None:
    """Pieces of the permutation are looked at by several threads."""
    table = Table(300_000, 1)
    table.numpy()[:, 0] = np.arange(300_000)
    perm = np.random.default_rng(3).permutation(300_000).astype(np.int32)
    perm[places[0]] = perm[places[1]]
    with pytest.raises(ValueError, match=f"got {perm[places[0]]} more than once"):
        table.permute(perm)
    np.testing.assert_array_equal(table.numpy()[:, 0], np.arange(300_000))


def test_overwriting_replaces_rows_or_single_fields_of_them() -> None:
    table = numbered(5, 4, fields={"a": 1, "b": 3})
    table.overwrite(np.array([4, 0]), np.zeros((2, 4), "f4"))
    table.overwrite(slice(1, 3), {"a": np.array([[-1], [-2]], "f4")})
    assert table.numpy()[[0, 4]].tolist() == [[0] * 4] * 2
    assert table.numpy()[1:3].tolist() == [[-1, 5, 6, 7], [-2, 9, 10, 11]]


@pytest.mark.parametrize(
    ("operation", "argument", "error", "text"),
    [
        (
            "keep",
            np.array([0, 2, 1]),
            ValueError,
            "mask_or_ids must increase strictly, got 2 before 1",
        ),
        (
            "keep",
            np.array([0, 0]),
            ValueError,
            "mask_or_ids must increase strictly, got 0 before 0",
        ),
        ("keep", np.array([0, 5]), IndexError, r"mask_or_ids must lie in \[0, 5\), got 5"),
        ("keep", np.array([True]), ValueError, r"mask_or_ids must have shape \(5,\), got \(1,\)"),
        ("keep", [0, 1], TypeError, "mask_or_ids must be a numpy or torch array, got list"),
        ("keep", np.arange(3.0), TypeError, "mask_or_ids must be int32 or int64, got float64"),
        ("permute", None, TypeError, "perm must be a numpy or torch array, got NoneType"),
        ("permute", np.array([0, 1, 2, 3, 3]), ValueError, "perm must hold each row once, got 3"),
        ("permute", np.array([0, 1, 2, 3, -1]), IndexError, r"perm must lie in \[0, 5\), got -1"),
        ("permute", np.arange(4), ValueError, r"perm must have shape \(5\), got \(4\)"),
        ("permute", np.arange(5.0), TypeError, "perm must be int32 or int64, got float64"),
        ("append", np.zeros((2, 3), "f4"), ValueError, "values must have rows of 4 elements"),
        ("append", np.zeros((2, 4)), TypeError, "values must be float32 like the table, got float"),
    ],
)
def test_a_refused_operation_leaves_the_rows_as_they_were(
    operation: str, argument: Any, error: type[Exception], text: str
) -> None:
    table = numbered(5, 4)
    before = table.numpy().copy()
    with pytest.raises(error, match=text):
        getattr(table, operation)(argument)
    np.testing.assert_array_equal(table.numpy(), before)


@pytest.mark.parametrize(
    ("values", "stream", "text"),
    [
        (np.zeros((50_000, 4)), None, "values must be float32 like the table, got float64"),
        ([np.zeros((50_000, 3), "f4"), np.zeros((9, 1), "f4")], None, "one number of rows"),
        (np.zeros((50_000, 8), "f4")[:, ::2], None, "values must have contiguous rows"),
        (np.zeros((50_000, 4), "f4"), 7, "stream must be None for arrays on the CPU"),
    ],
)
def test_values_that_are_refused_take_no_memory(values: Any, stream: Any, text: str) -> None:
    table = numbered(5, 4)
    before = table.stats
    with pytest.raises((TypeError, ValueError), match=text):
        table.append(values, stream=stream)
    assert table.stats == before


def test_rows_that_were_dropped_are_not_appended_to_where_they_lie() -> None:
    table = numbered(5, 4)
    dropped = table.numpy()[2:]
    table.keep(np.arange(2))
    with pytest.raises(ValueError, match="values must not share memory with the table"):
        table.append(dropped)
    assert table.rows == 2


@given(rows=st.integers(0, 300), data=st.data())
@few
def test_truncating_keeps_the_first_rows_in_their_memory(rows: int, data: st.DataObject) -> None:
    table = numbered(rows, 3)
    expected, address = table.numpy().copy(), table.numpy().ctypes.data
    left = data.draw(st.integers(0, rows))
    table.truncate(left)
    np.testing.assert_array_equal(table.numpy(), expected[:left])
    table.append(np.full((2, 3), -1, "f4"))
    np.testing.assert_array_equal(table.numpy()[left:], np.full((2, 3), -1, "f4"))
    assert table.numpy().ctypes.data == address


@pytest.mark.parametrize(
    ("rows", "text"),
    [(6, "at most 5, got 6"), (-1, "at least 0, got -1"), ("2", "at least 0, got '2'")],
)
def test_a_table_is_not_truncated_to_what_it_has_not(rows: Any, text: str) -> None:
    table = numbered(5, 4)
    with pytest.raises(ValueError, match=f"rows must be a whole number of {text}"):
        table.truncate(rows)
    assert table.rows == 5


def test_slots_are_ids_after_every_operation() -> None:
    table = numbered(6, 3)
    table.keep(np.array([1, 3, 5]))
    new = table.append(np.full((1, 3), -1, "f4"))
    out = np.zeros((2, 3), "f4")
    gather(table, np.array([2, new.start]), out)
    assert out.tolist() == [[15, 16, 17], [-1, -1, -1]]
