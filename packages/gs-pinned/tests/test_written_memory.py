# SPDX-License-Identifier: Apache-2.0
"""What must not be written, or not while it is read: refused before anything moves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gs_pinned import Table, exchange, gather, gather_retained, scatter, scatter_add


def ids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values)


@pytest.mark.parametrize("write", [scatter, scatter_add])
def test_a_read_only_array_is_no_table_to_write_to(write: Any, tmp_path: Path) -> None:
    target = np.zeros((5, 4), "f4")
    target.flags.writeable = False
    np.zeros((5, 4), "f4").tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", "f4", "r", shape=(5, 4))
    for table in (target, mapped):
        with pytest.raises(ValueError, match="table must be writable"):
            write(np.ones((2, 4), "f4"), ids(0, 1), table)
        assert not table.any()


def test_ids_do_not_lie_in_what_is_written() -> None:
    table = Table(4, 1, "int64")
    table.numpy()[:, 0] = [1, 0, 3, 2]
    own = table.numpy()[:, 0]
    values = np.full((4, 1), 10**12)
    many, numbers = np.full((10, 1), 10**13), np.arange(10)
    calls = {
        "ids": lambda: scatter(values, own, table),
        "slots": lambda: gather(many, ids(0, 1), numbers[:, None], slots=numbers[:2]),
        "perm": lambda: table.permute(own),
        "ids ": lambda: table.keep(own[:2]),
        "load_ids": lambda: gather_retained(
            table, numbers[:2], None, many, numbers[:0].copy(), numbers[:0].copy(), numbers[:, None]
        ),
        "loaded": lambda: exchange([table], [values], ids(0)[:0], own[:2], ids(0, 1)),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name.strip()} must not share memory with"):
            call()
    assert own.tolist() == [1, 0, 3, 2]
    assert numbers.tolist() == list(range(10))
    assert (values == 10**12).all()


def test_no_fields_array_lies_in_another_field() -> None:
    table = Table(3, 2, fields={"a": 1, "b": 1})
    table.numpy()[:] = [[1, 10], [2, 20], [3, 30]]
    a, b, free = table["a"], table["b"], np.zeros((3, 1), "f4")
    calls = {
        "out": lambda: gather(table, ids(2, 1, 0), {"a": b, "b": free}),
        "values": lambda: table.overwrite(ids(0, 1, 2), {"a": b, "b": a}),
        "values ": lambda: scatter([b, free], ids(0, 1, 2), table),
        "values  ": lambda: scatter_add([free, a], ids(0, 1, 2), table.numpy()),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name.strip()} must not share memory with the tab"):
            call()
    assert table.numpy().tolist() == [[1, 10], [2, 20], [3, 30]]


def test_rows_that_are_written_are_apart() -> None:
    table = np.arange(12, dtype="f4").reshape(3, 4)
    block = torch.zeros(20)
    overlapping = torch.as_strided(block, (3, 4), (2, 1))
    for out in (torch.empty(1, 4).expand(3, 4), overlapping):
        with pytest.raises(ValueError, match="out must have rows that do not overlap"):
            gather(table, ids(0, 1, 2), out)
    with pytest.raises(ValueError, match="table must have rows that do not overlap"):
        scatter(table, ids(0, 1, 2), overlapping)
    rows = Table(3, 4, fields={"a": 2, "b": 2})
    one = np.zeros((3, 2), "f4")
    with pytest.raises(ValueError, match="out must be arrays that share no memory"):
        gather(rows, ids(0, 1, 2), {"a": one, "b": one})
    both = np.zeros((3, 4), "f4")
    gather(rows, ids(0, 1, 2), {"a": both[:, :2], "b": both[:, 2:]})
    gather(table, ids(2, 1), torch.empty(1, 4).expand(2, 4).clone())
    assert not block.any()


def test_what_is_read_may_lie_in_one_place() -> None:
    table = np.zeros((3, 4), "f4")
    scatter(torch.ones(1, 4).expand(3, 4), ids(0, 1, 2), table)
    assert table.all()
    out = np.zeros((2, 4), "f4")
    gather(torch.ones(1, 4).expand(3, 4), ids(2, 0), out)
    assert out.all()


def test_a_row_does_not_leave_and_come() -> None:
    table, array = Table(4, 1), np.ones((3, 1), "f4")
    with pytest.raises(ValueError, match="stored and loaded must have no row in common, got 2"):
        exchange([table], [array], ids(2), ids(1, 2), ids(0, 1))
    assert not table.numpy().any()


def test_no_arrays_and_scalars_are_told_from_bad_ids() -> None:
    table = Table(5, 4, fields={"a": 4})
    for call in (
        lambda: gather(table, ids(0), {}),
        lambda: scatter({}, ids(0), table),
        lambda: gather(table, ids(0), []),
    ):
        with pytest.raises(ValueError, match=r"(out|values) must be at least one array, got none"):
            call()
    with pytest.raises(ValueError, match="values must have rows, got a scalar"):
        table.append(np.float32(3))
