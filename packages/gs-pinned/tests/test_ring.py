# SPDX-License-Identifier: Apache-2.0
"""Staging slots: order, contents, back-pressure, lifetime."""

import ctypes
import gc
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import ClosedError, Ring, Table, _core, store_compact


def rows(n: int, start: float = 0.0, width: int = 48) -> np.ndarray:
    return (np.arange(n * width, dtype="f4") + start).reshape(n, width)


def test_a_ring_has_the_size_that_was_asked_for() -> None:
    ring = Ring(100)
    assert ring.stats.bytes == 100
    with store_compact(np.ones((100, 1), np.uint8), None, ring) as slot:
        assert slot.numpy().sum() == 100
        assert ring.stats.taken_slots == 1
    with pytest.raises(ValueError, match="a slot of 101 bytes must fit into the ring of 100 bytes"):
        store_compact(np.ones((101, 1), np.uint8), None, ring)


def test_rows_arrive_densely_and_in_order() -> None:
    values = rows(10)
    slot = store_compact(values, np.array([7, 0, 7]), Ring(1 << 16))
    np.testing.assert_array_equal(slot.wait().numpy(), values[[7, 0, 7]])
    np.testing.assert_array_equal(store_compact(values, None, Ring(1 << 16)).numpy(), values)


def test_several_arrays_are_joined_into_rows_and_come_apart_by_name() -> None:
    sh0, rest = torch.rand(6, 1, 3), torch.rand(6, 15, 3)
    positions = torch.tensor([5, 1])
    slot = store_compact({"sh0": sh0, "shN": rest}, positions, Ring(1 << 16))
    expected = torch.cat([sh0.reshape(6, 3), rest.reshape(6, 45)], 1)[positions]
    assert slot.shape == (2, 48)
    assert torch.equal(slot.torch(), expected)
    assert torch.equal(slot.torch("shN"), rest[positions])
    assert torch.equal(store_compact((sh0, rest), positions, Ring(1 << 16)).torch(), expected)


def test_other_code_can_wait_for_the_word_of_a_slot() -> None:
    slot = store_compact(rows(2), None, Ring(1 << 16))
    assert ctypes.c_uint32.from_address(slot.address).value >= slot.value
    assert slot.is_ready


def test_a_full_ring_makes_the_producer_wait_for_a_release() -> None:
    ring = Ring(4 * 192)
    slots = [store_compact(rows(1, i), None, ring) for i in range(4)]
    with pytest.raises(TimeoutError, match="no 192 bytes of the ring became free in time"):
        store_compact(rows(1, 9), None, ring, timeout_s=0.0)
    stored = []
    producer = threading.Thread(target=lambda: stored.append(store_compact(rows(1, 9), None, ring)))
    producer.start()
    slots[2].release()  # not the oldest: order is kept, so this alone frees nothing
    with pytest.raises(TimeoutError):
        store_compact(rows(1, 9), None, ring, timeout_s=0.0)
    np.testing.assert_array_equal(slots[0].numpy(), rows(1, 0))
    slots[0].release()
    producer.join()
    np.testing.assert_array_equal(stored[0].numpy(), rows(1, 9))
    np.testing.assert_array_equal(slots[1].numpy(), rows(1, 1))
    np.testing.assert_array_equal(slots[3].numpy(), rows(1, 3))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_slot_is_ever_overwritten_before_its_release(data: st.DataObject) -> None:
    ring = Ring(2048)
    held = []
    for step in range(data.draw(st.integers(1, 40))):
        n = data.draw(st.integers(0, 20))
        values = rows(n, step * 1000, width=5)
        try:
            held.append((values, store_compact(values, None, ring, timeout_s=0.0)))
        except TimeoutError:
            assert held
            _, slot = held.pop(data.draw(st.integers(0, len(held) - 1)))
            slot.release()
        for expected, slot in held:
            np.testing.assert_array_equal(slot.numpy(), expected)
    # Whatever happened, an emptied ring takes its whole size again.
    for _, slot in held:
        slot.release()
    assert ring.stats.taken_slots == 0
    store_compact(np.zeros((1, 2048), "u1"), None, ring, timeout_s=0.0).release()


def test_every_byte_of_a_ring_can_be_used() -> None:
    ring = Ring(64 * 100)
    slots = [store_compact(np.full((1, 64), i, "u1"), None, ring) for i in range(100)]
    assert ring.stats.taken_bytes == ring.stats.bytes == 6400
    assert [int(slot.numpy()[0, 0]) for slot in slots] == list(range(100))


def test_a_slot_that_is_dropped_frees_its_bytes_and_its_views_keep_it() -> None:
    ring = Ring(192)
    view = store_compact(rows(1), None, ring).numpy()
    gc.collect()
    assert ring.stats.taken_slots == 1
    with pytest.raises(TimeoutError):
        store_compact(rows(1, 5), None, ring, timeout_s=0.0)
    np.testing.assert_array_equal(view, rows(1))
    del view
    gc.collect()
    assert ring.stats.taken_slots == 0


def test_views_outlive_the_ring() -> None:
    ring = Ring(1 << 16)
    tensor = store_compact(rows(3), None, ring).torch()
    ring.close()
    del ring
    gc.collect()
    np.testing.assert_array_equal(tensor.numpy(), rows(3))


def test_closing_turns_away_a_producer_that_waits() -> None:
    ring = Ring(192)
    slot = store_compact(rows(1), None, ring)
    caught: list[BaseException] = []

    def produce() -> None:
        try:
            store_compact(rows(1), None, ring)
        except ClosedError as error:
            caught.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    ring.close()
    producer.join()
    assert "the ring must be open" in str(caught[0])
    np.testing.assert_array_equal(slot.numpy(), rows(1))


def test_a_released_slot_refuses_to_be_read() -> None:
    with store_compact(rows(1), None, Ring(192)) as slot:
        assert not slot.is_released
    slot.release()
    with pytest.raises(ClosedError, match="the slot must be held, got one that was released"):
        slot.numpy()


def test_nor_by_those_who_ask_numpy_for_it() -> None:
    slot = store_compact(np.ones((4, 4), "f4"), None, Ring(1 << 12)).wait()
    slot.release()
    with pytest.raises(ClosedError, match="the slot must be held"):
        np.asarray(slot)


def test_what_never_fits_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="a slot of 384 bytes must fit into the ring of 192 byte"):
        store_compact(rows(2), None, Ring(192))
    with pytest.raises(ValueError, match="bytes must be a whole number of at least 64, got 3"):
        Ring(3)
    with pytest.raises(ValueError, match="bytes must be a whole number of at most 576460752303423"):
        Ring(1 << 70)
    with pytest.raises(MemoryError, match=r"address space failed: .*; ask for less, of a table a "):
        Ring(1 << 50)
    with pytest.raises(ValueError, match="rows must be a whole number of at least 0, got -1"):
        Ring(64).take(-1, Table(0, 1).layout)
    with pytest.raises(TypeError, match="layout must be a table's layout, got int"):
        Ring(64).take(1, 5)  # type: ignore[arg-type]


def test_a_slot_that_was_taken_does_not_wait_for_what_nobody_tells_it() -> None:
    ring, table = Ring(1 << 12), Table(0, 3, fields={"a": 1, "b": 2})
    slot = ring.take(5, table.layout)
    slot.numpy("b")[:] = 4
    assert repr(slot) == "RingSlot(rows=5, width=3, taken)"
    uses = {
        "wait": slot.wait,
        "with": slot.__enter__,
        "is_ready": lambda: slot.is_ready,
        "address": lambda: slot.address,
        "value": lambda: slot.value,
    }
    for use in uses.values():
        with pytest.raises(RuntimeError, match=r"stored into by store_compact .*, got one from R"):
            use()
    assert slot.numpy()[:, 1:].tolist() == [[4, 4]] * 5
    slot.release()
    assert ring.stats.taken_slots == 0


def test_a_slot_whose_wait_fails_on_entry_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> None:
        raise IndexError("a bad position, as a kernel finds it")

    ring = Ring(192)
    monkeypatch.setattr(_core, "raise_faults", found)
    with pytest.raises(IndexError) as caught, store_compact(rows(1), None, ring):
        pass
    assert ring.stats.taken_slots == 0, f"held by the traceback of {caught}"


def test_what_is_released_behind_a_slot_that_is_held_is_not_free() -> None:
    ring, layout = Ring(128), Table(0, 16).layout
    first, second = ring.take(1, layout), ring.take(1, layout)
    second.release()
    assert (ring.stats.taken_slots, ring.stats.taken_bytes) == (2, 128)
    first.release()
    assert (ring.stats.taken_slots, ring.stats.taken_bytes) == (0, 0)


def test_repr_tells_what_is_taken() -> None:
    ring = Ring(1 << 16)
    slot = store_compact(rows(2), None, ring)
    assert "384 bytes in 1 slots taken" in repr(ring)
    assert repr(slot) == "RingSlot(rows=2, width=48, ready)"
