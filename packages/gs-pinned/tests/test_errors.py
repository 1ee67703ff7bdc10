# SPDX-License-Identifier: Apache-2.0
"""What a transfer answers to arguments that don't fit, before it moves anything."""

from typing import Any

import numpy as np
import pytest
import torch

from gs_pinned import (
    CudaError,
    Ring,
    Table,
    device,
    exchange,
    gather,
    gather_retained,
    scatter,
    store_compact,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def ids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values)


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, "f4")


@pytest.mark.parametrize(
    ("index", "out", "error", "text"),
    [
        (ids(5), zeros(1, 4), IndexError, r"ids must lie in \[0, 5\), got 5"),
        (ids(0, -1), zeros(2, 4), IndexError, r"ids must lie in \[0, 5\), got -1"),
        (ids(0), zeros(2, 4), ValueError, "out must have one row per id, got 2 rows for 1 ids"),
        (ids(0), zeros(1, 3), ValueError, r"out must have rows of 4 elements, got shape \(1, 3\)"),
        (ids(0), np.zeros((1, 4)), TypeError, "out must be float32 like the table, got float64"),
        (ids(0).astype("f4"), zeros(1, 4), TypeError, "ids must be int32 or int64, got float32"),
        (ids(0).reshape(1, 1), zeros(1, 4), ValueError, r"ids must have shape \(any\), got \(1, 1"),
        ([0], zeros(1, 4), TypeError, "ids must be an array or a slice, got list"),
        (slice(0, 4, 2), zeros(2, 4), ValueError, "ids must be a slice of step 1, got step 2"),
        (ids(0), [[1.0]], TypeError, "out must be a numpy or torch array, got list"),
        (ids(0), {"b": zeros(1, 1)}, KeyError, "field must be one of the table's .a, rest., got"),
        (ids(0), {"a": zeros(1, 2)}, ValueError, r"out\['a'\] must have rows of 1 elements, got"),
        (ids(0), zeros(4, 1).T, None, ""),
        (ids(0), zeros(1, 8)[:, ::2], ValueError, "out must have contiguous rows, got strides"),
    ],
)
def test_gather_names_the_argument_that_does_not_fit(
    index: Any, out: Any, error: type[Exception] | None, text: str
) -> None:
    table = Table(5, 4, fields={"a": 1, "rest": 3})
    if error is None:
        gather(table, index, out)
        return
    with pytest.raises(error, match=text):
        gather(table, index, out)


def test_a_row_of_more_than_a_gibibyte_is_refused() -> None:
    wide = np.broadcast_to(np.zeros((1, 1), "u1"), (1, (1 << 30) + 1))
    with pytest.raises(ValueError, match="table must have contiguous rows"):
        gather(wide, ids(), np.zeros((0, (1 << 30) + 1), "u1"))
    table = Table(0, (1 << 30) + 1, "u1", capacity=1)
    with pytest.raises(ValueError, match="table must have rows of at most 1073741824 bytes, got"):
        gather(table, ids(), np.zeros((0, (1 << 30) + 1), "u1"))


def test_a_read_only_output_is_refused() -> None:
    out = zeros(1, 4)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable, got a read-only array"):
        gather(Table(5, 4), ids(0), out)


@pytest.mark.parametrize("where", DEVICES)
def test_tensors_that_negate_what_lies_in_memory_are_refused(where: str) -> None:
    view = torch.complex(torch.ones(3, 1), torch.ones(3, 1)).to(where).conj().imag
    ring = Ring(4096)
    with pytest.raises(TypeError, match="values must be a tensor without the negative bit, got a"):
        store_compact(view, None, ring)
    with store_compact(view.resolve_neg(), None, ring) as slot:
        assert slot.numpy().ravel().tolist() == [-1, -1, -1]
    order = torch._neg_view(-torch.arange(3, device=where))
    with pytest.raises(TypeError, match=r"ids must be a tensor .*; call its resolve_neg\(\)"):
        gather(Table(5, 1), order, torch.zeros(3, 1, device=where))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (torch.zeros(3, 1, device="meta"), "DLPack can pass on, got Tensor: "),
        (torch.ones(3, 1).to_sparse(), "DLPack can pass on, got Tensor: "),
        (torch._efficientzerotensor(3, 1), "have memory, got Tensor without any"),
        (np.zeros((3, 1), ">f4"), "DLPack can pass on, got ndarray: "),
    ],
)
def test_arrays_without_memory_to_share_are_refused(array: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"out must .*{text}"):
        gather(Table(5, 1), np.arange(3), array)


def test_an_out_of_range_id_moves_no_row_at_all() -> None:
    table = Table(5, 4)
    with pytest.raises(IndexError, match="ids must lie in"):
        scatter(np.ones((3, 4), "f4"), ids(0, 1, 99), table)
    assert not table.numpy().any()


def test_repeated_ids_are_refused_where_rows_are_written() -> None:
    with pytest.raises(ValueError, match="ids must be distinct, got 3 more than once"):
        scatter(zeros(3, 4), ids(3, 1, 3), Table(5, 4))


def test_a_mapping_needs_a_table_with_fields() -> None:
    with pytest.raises(TypeError, match="out must not be a mapping for a table without fields"):
        gather(Table(5, 4), ids(0), {"a": zeros(1, 4)})


def test_a_stream_makes_no_sense_on_the_cpu() -> None:
    with pytest.raises(ValueError, match="stream must be None for arrays on the CPU, got 1"):
        gather(Table(5, 4), ids(0), zeros(1, 4), stream=1)


def test_blocks_are_counted_from_one() -> None:
    for bad, limit in ((0, "least 1"), (2.5, "least 1"), ("a", "least 1"), (1 << 40, "most 2147")):
        message = f"max_blocks must be a whole number of at {limit}.*, got {bad!r}"
        with pytest.raises(ValueError, match=message):
            gather(Table(5, 4), ids(0), zeros(1, 4), max_blocks=bad)  # type: ignore[arg-type]


def test_streams_may_be_numbers_of_numpys() -> None:
    assert device.stream_handle(np.uint64(7), device=0) == 7
    with pytest.raises(ValueError, match="stream must be a whole number of at least 0, got -1"):
        device.stream_handle(-1, device=0)


def test_gather_retained_refuses_a_source_that_it_would_overwrite() -> None:
    out = zeros(4, 4)
    with pytest.raises(ValueError, match="source must not share memory with out"):
        gather_retained(Table(5, 4), ids(0), ids(0), out, ids(1), ids(2), out)


def test_gather_retained_refuses_ids_of_two_widths() -> None:
    narrow = np.array([0], np.int32)
    with pytest.raises(TypeError, match="load_ids and load_slots must be of one type, got int32"):
        gather_retained(Table(5, 4), ids(0), narrow, zeros(2, 4), ids(0), ids(1), zeros(4, 4))


@pytest.mark.parametrize("where", DEVICES)
def test_gather_retained_refuses_a_slot_that_both_would_fill(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    load, both, kept = (torch.tensor(rows, device=where) for rows in ([0, 1], [3, 1], [1]))
    out, source = torch.full((4, 4), 7.0, device=where), torch.zeros(2, 4, device=where)
    message = "load_slots and out_slots must have no slot in common, got 1 in both"
    for slots in (both, None):
        with pytest.raises(ValueError, match=message):
            gather_retained(Table(5, 4), load, slots, source, kept, kept, out)
    assert (out == 7.0).all()


def test_rows_that_have_no_slot_are_refused() -> None:
    memory, load, none = zeros(8, 4), np.arange(5), np.arange(0)
    with pytest.raises(ValueError, match="a row for each of the 5 load_ids where load_slots is"):
        gather_retained(Table(8, 4), load, None, zeros(2, 4), none, none, memory[:3])
    with pytest.raises(ValueError, match="a row for each of the 5 source_slots where out_slots"):
        gather_retained(Table(8, 4), none, none, zeros(8, 4), load, None, memory[:3])
    assert not memory.any()


def test_errors_name_the_argument_that_an_id_is_in() -> None:
    out, source, three = zeros(4, 4), zeros(3, 4), Table(3, 4)
    good, bad = ids(0), ids(9)
    cases = {
        "load_ids": (bad, good, good, ids(1)),
        "load_slots": (good, bad, good, ids(1)),
        "source_slots": (good, good, bad, ids(1)),
        "out_slots": (good, good, good, bad),
    }
    for name, (load, slots, kept, targets) in cases.items():
        with pytest.raises(IndexError, match=f"{name} must lie in"):
            gather_retained(three, load, slots, source, kept, targets, out)
    with pytest.raises(IndexError, match=r"positions must lie in \[0, 3\), got 9"):
        store_compact(zeros(3, 4), bad, Ring(4096))
    with pytest.raises(IndexError, match=r"slots must lie in \[0, 4\), got 9"):
        gather(three, good, out, slots=bad)


def test_rows_are_not_copied_within_one_array() -> None:
    """In no order: a row could be overwritten before it is read."""
    table = Table(6, 4)
    with pytest.raises(ValueError, match="out must not share memory with the table"):
        gather(table, ids(0, 1, 2), table.numpy()[1:4])
    with pytest.raises(ValueError, match="values must not share memory with the table"):
        scatter(table.numpy()[:3], ids(1, 2, 3), table)
    array = np.arange(20, dtype="f4").reshape(5, 4)
    for one, other in ((array[::-1], array), (array, array[::-1])):
        with pytest.raises(ValueError, match="out must not share memory with the table"):
            gather(one, np.arange(5), other)


@pytest.mark.parametrize("every", [1, 2])
def test_columns_between_the_rows_of_others_are_no_shared_memory(every: int) -> None:
    wide = np.arange(40, dtype="f4").reshape(5, 8)
    gather(wide[:, :4], ids(4, 0), wide[: 2 * every : every, 4:])
    np.testing.assert_array_equal(wide[0, 4:], [32, 33, 34, 35])
    np.testing.assert_array_equal(wide[every, 4:], [0, 1, 2, 3])


def test_nor_is_memory_that_begins_where_the_last_row_ends() -> None:
    n = 50
    memory = np.zeros(n * 8 + n * 4, "f4")
    table, out = memory[: n * 8].reshape(n, 8)[:, 4:], memory[n * 8 :].reshape(n, 4)
    table[:] = np.arange(n)[:, np.newaxis]
    gather(table, np.arange(n), out)
    assert (out == table).all()
    gather_retained(table, ids(1), ids(0), table, ids(2), ids(1), out)
    assert (out[:2, 0] == [1, 2]).all()


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (
            [zeros(2, 3), np.zeros((2, 1))],
            TypeError,
            "values must be of one dtype, got float32 and",
        ),
        (np.zeros((2, 3)), TypeError, "values must be one of float32, .* int64, got float64"),
        (zeros(5, 0), ValueError, r"values must have rows of at least 1 element, got shape \(5, 0"),
        ({}, ValueError, "values must be at least one array, got none"),
        (zeros(2000, 3), ValueError, "a slot of 24000 bytes must fit into the ring of 4096 bytes"),
        (None, TypeError, "values must be a numpy or torch array, got NoneType"),
    ],
)
def test_values_that_are_refused_take_no_room(
    values: Any, error: type[Exception], text: str
) -> None:
    ring = Ring(4096)
    with pytest.raises(error, match=text):
        store_compact(values, None, ring)
    assert ring.stats.taken_slots == 0


def test_arrays_of_numpy_and_torch_are_of_one_dtype() -> None:
    with store_compact([zeros(2, 3), torch.ones(2, 1)], None, Ring(4096)) as slot:
        assert slot.numpy()[1].tolist() == [0, 0, 0, 1]


def test_what_stands_in_the_place_of_another_kind_is_named() -> None:
    table, out = Table(5, 4), zeros(2, 4)
    with pytest.raises(TypeError, match="ring must be a Ring, got NoneType"):
        store_compact(out, None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="values must be a numpy or torch array, got Table"):
        scatter(table, ids(1, 2), out)
    with pytest.raises(TypeError, match="out must be a numpy or torch array, got list"):
        gather_retained(table, ids(0), ids(0), out, ids(1), ids(1), [out])
    with pytest.raises(ValueError, match="table must have rows, got a scalar"):
        gather(np.zeros((), "f4"), ids(0), out)
    with pytest.raises(TypeError, match=r"tables\[0\] must be a Table, got ndarray"):
        exchange([out], [out], ids(0), ids(1), ids(0))  # type: ignore[list-item]
    with pytest.raises(TypeError, match="tables must be a list or a tuple, got Table"):
        exchange(table, [out], ids(0), ids(1), ids(0))  # type: ignore[arg-type]


@pytest.mark.skipif(device.has_device(), reason="there is a CUDA device")
def test_without_a_device_an_array_that_claims_one_is_answered_with_the_reason() -> None:
    class Elsewhere:
        shape = (1, 4)
        dtype = torch.float32

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(CudaError, match="out must be on the CPU, got cuda:0: "):
        gather(Table(5, 4), ids(0), Elsewhere())


def test_a_memoryview_is_no_array() -> None:
    table = Table(2, 3)
    ids = memoryview(np.array([0, 1], np.int32))
    with pytest.raises(TypeError, match="mask_or_ids must be a numpy or torch array, got memory"):
        table.keep(ids)
