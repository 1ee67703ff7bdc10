# SPDX-License-Identifier: Apache-2.0
"""Each transfer against its numpy definition, on the CPU and, marked gpu, on a device.

Everything here copies bytes or adds small integers held in floats, so all comparisons are exact.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import Table, exchange, gather, gather_retained, scatter, scatter_add

# A device that sees the table, and one that must go through the locked buffer.
PLACES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cuda-pageable", marks=pytest.mark.gpu),
]
DTYPES = ["float32", "float16", "uint8", "int32", "int64"]
on_every_place = pytest.mark.parametrize("place", PLACES)
few = settings(max_examples=60, deadline=None)


def filled(place: str, rows: int, width: int, dtype: str = "float32", **options: Any) -> Table:
    """A table of small distinct numbers, 0 .. 120, exact in every dtype."""
    table = Table(rows, width, dtype, pinned=False if place != "cuda" else "auto", **options)
    table.numpy()[:] = (np.arange(rows * width) % 121).reshape(rows, width)
    return table


def there(values: Any, place: str) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values)).to(place.split("-")[0])


def back(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return tensor.cpu().numpy()


def settle(place: str) -> None:
    if place != "cpu":
        torch.cuda.synchronize()


@st.composite
def selections(draw: st.DrawFn, distinct: bool) -> tuple[int, np.ndarray[Any, Any]]:
    """Rows of a table and some ids into it, the first and last row often among them."""
    rows = draw(st.sampled_from([0, 1, 2, 7, 64, 1000]))
    ids: list[int] = []
    if rows:
        ids = draw(
            st.lists(
                st.sampled_from([0, rows - 1]) | st.integers(0, rows - 1),
                max_size=60,
                unique=distinct,
            )
        )
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    return rows, np.asarray(ids, dtype)


@on_every_place
@few
@given(
    selection=selections(distinct=False),
    width=st.sampled_from([1, 3, 4, 5, 17, 45, 48, 49, 100]),
    dtype=st.sampled_from(DTYPES),
)
def test_gather_is_indexing(place: str, selection: Any, width: int, dtype: str) -> None:
    rows, ids = selection
    table = filled(place, rows, width, dtype)
    out = there(np.full((len(ids), width), 7, dtype), place)
    assert gather(table, there(ids, place), out) is out
    settle(place)
    np.testing.assert_array_equal(back(out), table.numpy()[ids])


@on_every_place
@few
@given(
    selection=selections(distinct=True),
    width=st.sampled_from([1, 3, 16, 45, 48, 49]),
    dtype=st.sampled_from(DTYPES),
)
def test_scatter_is_assignment_and_comes_back(
    place: str, selection: Any, width: int, dtype: str
) -> None:
    rows, ids = selection
    table = filled(place, rows, width, dtype)
    values = (np.arange(len(ids) * width) % 97 + 3).reshape(len(ids), width).astype(dtype)
    expected = table.numpy().copy()
    expected[ids] = values
    scatter(there(values, place), there(ids, place), table)
    settle(place)
    np.testing.assert_array_equal(table.numpy(), expected)
    out = there(np.zeros_like(values), place)
    gather(table, there(ids, place), out)
    settle(place)
    np.testing.assert_array_equal(back(out), values)


@on_every_place
@few
@given(
    selection=selections(distinct=True),
    width=st.sampled_from([1, 3, 16, 45, 48]),
    dtype=st.sampled_from(DTYPES),
    times=st.integers(1, 3),
)
def test_scatter_add_is_addition_however_often(
    place: str, selection: Any, width: int, dtype: str, times: int
) -> None:
    rows, ids = selection
    table = filled(place, rows, width, dtype)
    values = (np.arange(len(ids) * width) % 9).reshape(len(ids), width).astype(dtype)
    expected = table.numpy().copy()
    for _ in range(times):
        expected[ids] += values
        scatter_add(there(values, place), there(ids, place), table)
    settle(place)
    np.testing.assert_array_equal(table.numpy(), expected)


FIELDS = {"means": 3, "opacities": (), "sh0": (1, 3), "shN": (15, 3), "spare": (2,)}
WIDTH = 3 + 1 + 3 + 45 + 2


@on_every_place
@few
@given(
    selection=selections(distinct=True),
    names=st.permutations(list(FIELDS)),
    n_fields=st.integers(1, len(FIELDS)),
    dtype=st.sampled_from(["float32", "float16", "uint8"]),
)
def test_fields_go_apart_and_together_in_any_order(
    place: str, selection: Any, names: list[str], n_fields: int, dtype: str
) -> None:
    rows, ids = selection
    table = filled(place, rows, WIDTH, dtype, fields=FIELDS)
    chosen = names[:n_fields]
    out = {
        name: there(np.full((len(ids), *table[name].shape[1:]), 5, dtype), place) for name in chosen
    }
    gather(table, there(ids, place), out)
    settle(place)
    for name in chosen:
        np.testing.assert_array_equal(back(out[name]), table[name][ids])

    expected = table.numpy().copy()
    plus_one = {name: tensor + 1 for name, tensor in out.items()}
    for name in chosen:
        layout = table.layout.field(name)
        columns = slice(layout.first, layout.first + layout.width)
        expected[ids, columns] = expected[ids, columns] + 1
    scatter(plus_one, there(ids, place), table)
    settle(place)
    np.testing.assert_array_equal(table.numpy(), expected)


@on_every_place
def test_a_row_is_split_over_a_sequence_of_arrays_in_its_order(place: str) -> None:
    table = filled(place, 20, 48)
    ids = np.array([0, 3, 19])
    sh0, rest = there(np.zeros((3, 1, 3), "f4"), place), there(np.zeros((3, 15, 3), "f4"), place)
    gather(table, there(ids, place), (sh0, rest))
    settle(place)
    np.testing.assert_array_equal(back(sh0).reshape(3, 3), table.numpy()[ids, :3])
    np.testing.assert_array_equal(back(rest).reshape(3, 45), table.numpy()[ids, 3:])


@on_every_place
def test_fields_are_added_one_by_one(place: str) -> None:
    table = filled(place, 9, 48, fields={"sh0": 3, "shN": 45})
    ids = np.array([8, 0, 4], np.int32)
    expected = table.numpy().copy()
    expected[ids, 3:] += 2
    expected[ids, :3] += 1
    values = {"shN": there(np.full((3, 45), 2, "f4"), place)}
    values["sh0"] = there(np.ones((3, 3), "f4"), place)
    scatter_add(values, there(ids, place), table)
    settle(place)
    np.testing.assert_array_equal(table.numpy(), expected)


@on_every_place
@pytest.mark.parametrize("run", [slice(None), slice(3, 8), slice(5, 5), slice(-2, None)])
def test_a_slice_is_a_dense_run_both_ways(place: str, run: slice) -> None:
    table = filled(place, 10, 5)
    expected = table.numpy().copy()
    out = there(np.zeros_like(expected[run]), place)
    gather(table, run, out)
    settle(place)
    np.testing.assert_array_equal(back(out), expected[run])
    scatter(out * 2, run, table)
    expected[run] *= 2
    settle(place)
    np.testing.assert_array_equal(table.numpy(), expected)


@on_every_place
def test_one_row_can_be_a_whole_image(place: str) -> None:
    height, width = 431, 577  # an odd number of bytes, several pieces of work
    table = filled(place, 3, height * width * 3, "uint8")
    out = there(np.zeros((2, height, width, 3), "u1"), place)
    gather(table, there(np.array([2, 0]), place), out)
    settle(place)
    np.testing.assert_array_equal(back(out).reshape(2, -1), table.numpy()[[2, 0]])


@on_every_place
def test_rows_of_the_output_may_lie_apart(place: str) -> None:
    table = filled(place, 30, 5)
    wide = there(np.full((4, 9), -1, "f4"), place)
    gather(table, there(np.array([4, 1, 29, 0]), place), wide[:, 2:7])
    settle(place)
    np.testing.assert_array_equal(back(wide)[:, 2:7], table.numpy()[[4, 1, 29, 0]])
    assert (back(wide)[:, [0, 1, 7, 8]] == -1).all()


@on_every_place
@few
@given(data=st.data(), width=st.sampled_from([1, 3, 45, 48]), wide=st.booleans())
def test_rows_move_between_a_table_and_slots(
    place: str, data: st.DataObject, width: int, wide: bool
) -> None:
    kind = np.int64 if wide else np.int32
    count = data.draw(st.integers(0, 12))
    slots = np.asarray(data.draw(st.permutations(range(12)))[:count], kind)
    ids = np.asarray(data.draw(st.permutations(range(50)))[:count], kind)
    table = filled(place, 50, width)
    expected = np.full((12, width), -1, "f4")
    expected[slots] = table.numpy()[ids]
    out = there(np.full((12, width), -1, "f4"), place)
    gather(table, there(ids, place), out, slots=there(slots, place))
    settle(place)
    np.testing.assert_array_equal(back(out), expected)
    stored = table.numpy().copy()
    stored[ids] += 1000
    scatter(out + 1000, there(ids, place), table, slots=there(slots, place))
    settle(place)
    np.testing.assert_array_equal(table.numpy(), stored)


@pytest.mark.parametrize(
    ("slots", "error", "message"),
    [
        (np.array([1, 2]), ValueError, "slots must be one for each of the 3 ids, got 2"),
        (np.array([1, 2, 3], np.int32), TypeError, "one type"),
        (np.array([1, 2, 2]), ValueError, "slots must be distinct, got 2"),
        (np.array([1, 2, 4]), IndexError, r"slots must lie in \[0, 4\), got 4"),
    ],
)
def test_slots_that_cannot_be_are_refused(
    slots: np.ndarray[Any, Any], error: type[Exception], message: str
) -> None:
    out = np.full((4, 5), -1, "f4")
    with pytest.raises(error, match=message):
        gather(filled("cpu", 30, 5), np.array([4, 1, 29]), out, slots=slots)
    assert (out == -1).all()


@on_every_place
@few
@given(data=st.data(), width=st.sampled_from([1, 3, 45, 48]), wide=st.booleans())
def test_gather_retained_fills_slots_from_both_sides(
    place: str, data: st.DataObject, width: int, wide: bool
) -> None:
    kind = np.int64 if wide else np.int32
    slots = data.draw(st.permutations(range(12)))
    n_load, n_keep = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    table = filled(place, 50, width)
    source = np.arange(8 * width, dtype="f4").reshape(8, width) + 1000
    load_ids = np.asarray(data.draw(st.lists(st.integers(0, 49), min_size=6, max_size=6)), kind)
    load_ids = load_ids[:n_load]
    source_slots = np.asarray(data.draw(st.lists(st.integers(0, 7), min_size=6, max_size=6)), kind)[
        :n_keep
    ]
    load_slots = np.asarray(slots[:n_load], kind)
    out_slots = np.asarray(slots[n_load : n_load + n_keep], kind)
    expected = np.full((12, width), -1, "f4")
    expected[load_slots] = table.numpy()[load_ids]
    expected[out_slots] = source[source_slots]
    out = there(np.full((12, width), -1, "f4"), place)
    gather_retained(
        table,
        there(load_ids, place),
        there(load_slots, place),
        there(source, place),
        there(source_slots, place),
        there(out_slots, place),
        out,
    )
    settle(place)
    np.testing.assert_array_equal(back(out), expected)


@on_every_place
def test_scatter_add_also_reaches_a_compact_array_in_memory_of_the_same_place(place: str) -> None:
    sums = there(np.zeros((5, 48), "f4"), place)
    for slots in ([0, 4], [4, 2], [4]):
        ones = there(np.ones((len(slots), 48), "f4"), place)
        scatter_add(ones, there(np.array(slots, np.int32), place), sums)
    settle(place)
    assert back(sums)[:, 7].tolist() == [1, 0, 1, 0, 3]


def test_large_copies_go_past_the_caches_and_stay_exact() -> None:
    table = filled("cpu", 400_000, 48)
    ids = np.flatnonzero(np.random.default_rng(0).random(400_000) < 0.5)
    out = np.zeros((len(ids), 48), "f4")
    gather(table, ids, out)
    np.testing.assert_array_equal(out, table.numpy()[ids])


def test_numpy_goes_in_and_comes_out() -> None:
    table = filled("cpu", 6, 3)
    out = gather(table, np.array([5, 5, 0]), np.zeros((3, 3), "f4"))
    assert isinstance(out, np.ndarray)
    np.testing.assert_array_equal(out, table.numpy()[[5, 5, 0]])
    frozen = table.numpy().copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(
        gather(frozen, np.array([1]), np.zeros((1, 3), "f4")), frozen[[1]]
    )


def test_halves_are_added_as_numpy_adds_them() -> None:
    # Every half against a few terms: rounding, subnormals, infinities.
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    for term in (0.0, 6e-8, 1e-4, 0.3333, 1.0, 2049.0, 65504.0, -65504.0):
        table = Table(len(every), 1, "float16", pinned=False)
        table.numpy()[:, 0] = every
        terms = np.full((len(every), 1), term, np.float16)
        scatter_add(terms, np.arange(len(every)), table)
        with np.errstate(over="ignore"):
            expected = every[:, None] + terms
        np.testing.assert_array_equal(table.numpy(), expected)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_autograd_is_told_what_was_written(place: str) -> None:
    table = filled(place, 4, 2)
    two, first = there([0, 1], place), there([0], place)
    out, source, rows = (torch.zeros(2, 2, device=place) for _ in range(3))
    writes = {
        "gather": lambda: gather(table, two, out),
        "gather a field": lambda: gather(table, two, [out[:, :1], out[:, 1:]]),
        "gather_retained": lambda: gather_retained(
            table, first, first, source, first, there([1], place), out
        ),
        "exchange": lambda: exchange([table], [out], two[:0], two, two),
        "scatter": lambda: scatter(out, two, rows),
        "scatter_add": lambda: scatter_add(out, two, rows),
    }
    for name, write in writes.items():
        written, read = (rows, out) if name.startswith("scatter") else (out, source)
        before = written._version, read._version
        write()
        assert written._version > before[0], name
        assert read._version == before[1], name
    weight = torch.ones(2, 2, device=place, requires_grad=True)
    loss = (weight * out).sum()
    gather(table, two, out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        gather(table, two, torch.zeros(2, 2, device=place))  # has no version


def test_unaligned_ids_and_rows_are_refused() -> None:
    table, out = np.eye(3, dtype="f4"), np.full((2, 3), 7, "f4")
    ids = np.frombuffer(b"\0" + np.array([2, 0], "i4").tobytes(), "i4", offset=1)
    with pytest.raises(ValueError, match=r"ids must be aligned to 4 bytes, got .* 1 beyond; pass"):
        gather(table, ids, out)
    rows = np.frombuffer(b"\0\0" + table.tobytes(), "f4", offset=2).reshape(3, 3)
    with pytest.raises(ValueError, match=r"table must be aligned to 4 bytes, got .* 2 beyond"):
        gather(rows, ids.copy(), out)
    assert (out == 7).all()
    gather(rows.copy(), ids.copy(), out)
    assert out.tolist() == [[0, 0, 1], [1, 0, 0]]
