# SPDX-License-Identifier: Apache-2.0
"""Counts of the columns of views: those of crops join, and all ranks read the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gs_train.ranks.view_columns import ViewColumns

LAG = 3


def after(n_steps: int, columns: ViewColumns) -> ViewColumns:
    for _ in range(n_steps):
        columns.end_batch()
    return columns


def test_counts_are_read_when_all_ranks_have_them() -> None:
    columns = ViewColumns(LAG)
    columns.note("a", 3, 0, [5, 6, 7], step=0)
    assert columns.known("a") is None
    after(2, columns)
    assert columns.known("a") is None
    columns.note("a", 3, 0, [1, 1, 1], step=2)  # later: not read yet
    after(1, columns)
    assert np.array_equal(columns.known("a"), [5, 6, 7])  # type: ignore[arg-type]
    after(2, columns)
    assert np.array_equal(columns.known("a"), [1, 1, 1])  # type: ignore[arg-type]
    assert columns.known("b") is None


def test_crops_join_and_half_a_view_is_no_view() -> None:
    columns = ViewColumns(LAG)
    columns.note("a", 4, 0, [1, 2, 3], step=0)
    columns.note("a", 4, 2, [3, 4], step=0)  # both have the column that they meet in
    columns.note("a", 4, 0, [9], step=1)  # the rest was not drawn
    after(4, columns)
    assert np.array_equal(columns.known("a"), [1, 2, 3, 4])  # type: ignore[arg-type]


def test_little_is_kept_and_loads_as_it_was() -> None:
    columns = ViewColumns(LAG)
    for step in range(20):
        columns.note("a", 2, 0, [step, step], step=step)
        columns.note("b", 3, 1, [step], step=step)
        columns.end_batch()
    tensors = columns.tensors()
    assert len(tensors["views"]) <= 2 * LAG  # of "b" nothing was ever whole
    again = ViewColumns(LAG)
    again.load(tensors)
    again.load({})
    assert again.step == 20
    assert np.array_equal(again.known("a"), [17, 17])  # type: ignore[arg-type]
    assert again.known("b") is None
    for name, values in again.tensors().items():
        assert torch.equal(values, tensors[name])
    empty = ViewColumns(LAG)
    empty.load(ViewColumns(LAG).tensors())
    assert empty.known("a") is None


def test_columns_that_are_none_are_refused() -> None:
    columns = ViewColumns(LAG)
    with pytest.raises(ValueError, match=r"counts must be of columns below 3, got \(2,\) from 2"):
        columns.note("a", 3, 2, [1, 1], step=0)
    with pytest.raises(ValueError, match="counts must be at least 0, got -1"):
        columns.note("a", 3, 0, [-1], step=0)
    tensors = columns.tensors()
    with pytest.raises(ValueError, match="tensors must be"):
        columns.load({"views": tensors["views"]})
    with pytest.raises(ValueError, match=r"must be \(M,\) int64"):
        columns.load({**tensors, "views": tensors["views"].int()})
    with pytest.raises(ValueError, match="sizes must add up"):
        columns.load({**tensors, "counts": torch.ones(1, dtype=torch.int64)})
