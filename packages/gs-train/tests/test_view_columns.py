# SPDX-License-Identifier: Apache-2.0
"""Counts of the columns of views: all ranks read the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gs_train.ranks.view_columns import ViewColumns

LAG = 3


def after(n_steps: int, columns: ViewColumns) -> None:
    columns.step += n_steps


def test_counts_are_read_when_all_ranks_have_them() -> None:
    columns = ViewColumns(LAG)
    columns.note("a", [5, 6, 7], step=0)
    assert columns.known("a") is None
    after(2, columns)
    assert columns.known("a") is None
    columns.note("a", [1, 1, 1], step=2)  # later: not read yet
    after(1, columns)
    assert np.array_equal(columns.known("a"), [5, 6, 7])  # type: ignore[arg-type]
    after(2, columns)
    assert np.array_equal(columns.known("a"), [1, 1, 1])  # type: ignore[arg-type]
    assert columns.known("b") is None


def test_little_is_kept_and_loads_as_it_was() -> None:
    columns = ViewColumns(LAG)
    for step in range(20):
        columns.note("a", [step, step], step=step)
        columns.note("b", [step, 0, 1], step=step)
        columns.step += 1
    tensors = columns.tensors()
    assert len(tensors["views"]) == 2 * LAG
    again = ViewColumns(LAG)
    again.load(tensors)
    again.load({})
    assert again.step == 20
    assert np.array_equal(again.known("a"), [17, 17])  # type: ignore[arg-type]
    assert np.array_equal(again.known("b"), [17, 0, 1])  # type: ignore[arg-type]
    for name, values in again.tensors().items():
        assert torch.equal(values, tensors[name])
    empty = ViewColumns(LAG)
    empty.load(ViewColumns(LAG).tensors())
    assert empty.known("a") is None


def test_columns_that_are_none_are_refused() -> None:
    columns = ViewColumns(LAG)
    for counts in ([], [[1]], [3, -1]):
        with pytest.raises(ValueError, match=r"counts must be \(C,\) and at least 0, got"):
            columns.note("a", counts, step=0)
    tensors = columns.tensors()
    with pytest.raises(ValueError, match="tensors must be"):
        columns.load({"views": tensors["views"]})
    with pytest.raises(ValueError, match=r"must be \(M,\) int64"):
        columns.load({**tensors, "views": tensors["views"].int()})
    with pytest.raises(ValueError, match="sizes must add up"):
        columns.load({**tensors, "counts": torch.ones(1, dtype=torch.int64)})
