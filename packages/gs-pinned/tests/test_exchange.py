# SPDX-License-Identifier: Apache-2.0
"""Rows that take each other's place: against two indexed assignments of numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from gs_pinned import Signal, Table, exchange, raise_faults

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def scene(
    device: str,
    dtype: torch.dtype,
    n_slots: int,
    n_stored: int,
    n_loaded: int,
    widths: tuple[int, ...] = (48, 48),
) -> dict[str, Any]:
    """Tables of 500 rows, arrays that hold rows of them, and rows that leave and come."""
    random = np.random.default_rng(n_loaded)
    tables = [Table(500, width) for width in widths]
    for k, table in enumerate(tables):
        table.numpy()[:] = random.normal(size=(500, widths[k])) + 10 * k
    rows = random.permutation(500)
    arrays = [
        torch.from_numpy(random.normal(size=(n_slots, width)).astype("f4")) for width in widths
    ]
    return {
        "tables": tables,
        "arrays": [array.to(device) for array in arrays],
        "stored": torch.from_numpy(np.sort(rows[:n_stored])).to(device, dtype),
        "loaded": torch.from_numpy(np.sort(rows[250 : 250 + n_loaded])).to(device, dtype),
        "slots": torch.from_numpy(random.permutation(n_slots)[:n_loaded]).to(device, dtype),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("n_slots", "n_stored", "n_loaded"), [(300, 200, 200), (300, 17, 250), (300, 0, 9), (4, 0, 0)]
)
@pytest.mark.parametrize("max_blocks", [1, 16])
@pytest.mark.parametrize("widths", [(48, 48, 48), (5, 5), (48, 5), (4,) * 6])
def test_rows_take_each_others_place(
    device: str,
    dtype: torch.dtype,
    n_slots: int,
    n_stored: int,
    n_loaded: int,
    max_blocks: int,
    widths: tuple[int, ...],
) -> None:
    made = scene(device, dtype, n_slots, n_stored, n_loaded, widths)
    tables, arrays = made["tables"], made["arrays"]
    stored, loaded, slots = (made[k].cpu().long() for k in ("stored", "loaded", "slots"))
    expected = []
    for table, array in zip(tables, arrays):
        in_table, in_array = table.torch().clone(), array.cpu().clone()
        in_table[stored] = in_array[slots[n_loaded - n_stored :]]
        in_array[slots] = in_table[loaded]
        expected.append((in_table, in_array))
    exchange(**made, max_blocks=max_blocks)
    if device == "cuda":
        torch.cuda.synchronize()
    for table, array, (in_table, in_array) in zip(tables, arrays, expected):
        assert torch.equal(table.torch(), in_table)
        assert torch.equal(array.cpu(), in_array)


@pytest.mark.gpu
@pytest.mark.asynchrony
def test_nothing_moves_before_the_stream_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "0")
    made = scene("cuda", torch.int32, 300, 200, 200)
    arrays = [array.clone() for array in made["arrays"]]
    tables = [table.torch().clone() for table in made["tables"]]
    stream, latch = torch.cuda.Stream(), Signal()
    torch.cuda.synchronize()
    latch.wait_on(stream, 1)
    exchange(**made, stream=stream)
    assert not stream.query()
    assert all(torch.equal(t.torch(), before) for t, before in zip(made["tables"], tables))
    latch.set(1)
    torch.cuda.synchronize()
    for table, array in zip(made["tables"], arrays):
        left = table.torch()[made["stored"].cpu().long()]
        assert torch.equal(left, array[made["slots"].long()].cpu())


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", ["stored", "loaded", "slots"])
def test_a_row_with_an_id_out_of_range_stays_in_its_slot(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "0")
    made = scene("cuda", torch.int32, 300, 200, 200)
    arrays = [array.cpu() for array in made["arrays"]]
    tables = [table.torch().clone() for table in made["tables"]]
    stored, loaded, slots = (made[k].cpu().long() for k in ("stored", "loaded", "slots"))
    made[wrong][[7, 150]] = torch.tensor([-1, 500], dtype=torch.int32, device="cuda")
    exchange(**made)
    torch.cuda.synchronize()
    moved = torch.ones(200, dtype=torch.bool)
    moved[[7, 150]] = False
    for k, (table, array) in enumerate(zip(tables, arrays)):
        coming = table[loaded]
        table[stored[moved]] = array[slots[moved]]
        array[slots[moved]] = coming[moved]
        assert torch.equal(made["tables"][k].torch(), table)
        assert torch.equal(made["arrays"][k].cpu(), array)
    with pytest.raises(IndexError, match=r"(-1|500), which must lie in \[0, (300|500)\)"):
        raise_faults()


@pytest.mark.gpu
def test_tables_that_are_not_locked_take_turns() -> None:
    made = scene("cuda", torch.int32, 300, 200, 250)
    made["tables"][1] = Table(500, 48, pinned=False)
    made["tables"][1].numpy()[:] = made["tables"][0].numpy() + 1
    arrays = [array.cpu() for array in made["arrays"]]
    tables = [table.torch().clone() for table in made["tables"]]
    stored, loaded, slots = (made[k].cpu().long() for k in ("stored", "loaded", "slots"))
    exchange(**made)
    torch.cuda.synchronize()
    for k, (table, array) in enumerate(zip(tables, arrays)):
        coming = table[loaded]
        table[stored] = array[slots[50:]]
        array[slots] = coming
        assert torch.equal(made["tables"][k].torch(), table)
        assert torch.equal(made["arrays"][k].cpu(), array)


@pytest.mark.parametrize("device", DEVICES)
def test_tables_of_unequal_length_are_refused(device: str) -> None:
    made = scene(device, torch.int32, 20, 9, 9)
    made["tables"][1] = Table(400, 48)
    with pytest.raises(
        ValueError, match=r"tables must have equal numbers of rows, got \[500, 400\]"
    ):
        exchange(**made)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"arrays": []}, ValueError, "arrays must be one for each of one or more tables, got 0 "),
        ({"loaded": slice(0, 8)}, ValueError, "stored must be at most the 8 rows of loaded, got 9"),
        ({"slots": slice(0, 8)}, ValueError, "slots must be one for each of the 9 loaded rows"),
        ({"max_blocks": 0}, ValueError, "max_blocks must be a whole number of at least 1, got"),
        (
            {"loaded": "other"},
            TypeError,
            "loaded and slots must be of one type, got int32 and int64",
        ),
        ({"loaded": "far"}, IndexError, r"loaded must lie in \[0, 500\), got 500"),
        ({"stored": "far"}, IndexError, r"stored must lie in \[0, 500\), got 500"),
        (
            {"arrays": "short"},
            ValueError,
            r"arrays\[1\] must have as many rows as arrays\[0\], got 19 and 20",
        ),
        (
            {"arrays": "other"},
            TypeError,
            r"arrays\[1\] must be float32 like the table, got float64",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_moves(
    device: str,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    made = scene(device, torch.int32, 20, 9, 9)
    for name, value in change.items():
        if isinstance(value, slice):
            value = made[name][value]
        elif value == "short":
            value = [made[name][0], made[name][1][:19]]
        elif value == "other" and name == "arrays":
            value = [made[name][0], made[name][1].double()]
        elif value == "other":
            value = made[name].long()
        elif value == "far":
            value = made[name].index_fill(0, torch.tensor([8], device=device), 500)
        made[name] = value
    tables = [table.torch().clone() for table in made["tables"]]
    arrays = made["arrays"]
    before = [array.clone() for array in arrays]
    with pytest.raises(error, match=message):
        exchange(**made)
    assert all(torch.equal(a, b) for a, b in zip(arrays, before))
    assert all(torch.equal(t.torch(), b) for t, b in zip(made["tables"], tables))


@pytest.mark.parametrize("device", DEVICES)
def test_one_array_or_table_twice_is_refused(device: str) -> None:
    made = scene(device, torch.int32, 20, 9, 9)
    table, array = made["tables"][0], made["arrays"][0]
    with pytest.raises(ValueError, match=r"^arrays\[0\] and arrays\[1\] must not share memory"):
        exchange(**made | {"arrays": [array, array]})
    with pytest.raises(ValueError, match=r"^tables\[0\] and tables\[1\] must not share memory"):
        exchange(**made | {"tables": [table, table]})


@pytest.mark.parametrize("listed", [0, 1])
def test_an_array_in_any_of_the_tables_is_refused(listed: int) -> None:
    made = scene("cpu", torch.int32, 20, 9, 9)
    made["arrays"][1] = made["tables"][listed].torch()[:20]
    with pytest.raises(ValueError, match=rf"^tables\[{listed}\] and arrays\[1\] must not share"):
        exchange(**made)


def test_arrays_may_be_columns_of_one() -> None:
    made = scene("cpu", torch.int32, 20, 9, 9)
    expected = scene("cpu", torch.int32, 20, 9, 9)
    wide = torch.cat(made["arrays"], dim=1)
    exchange(**made | {"arrays": [wide[:, :48], wide[:, 48:]]})
    exchange(**expected)
    assert torch.equal(wide, torch.cat(expected["arrays"], dim=1))
