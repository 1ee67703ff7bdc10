# SPDX-License-Identifier: Apache-2.0
"""Transfers on a device: asynchrony, lifetimes, growth and errors.

A signal that a stream waits for is the latch: the stream stays where it is until the test sets it,
so that what is asserted in between does not depend on time. Checked mode would wait for the stream,
so these tests switch it off.
"""

import threading
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from gs_pinned import (
    CudaError,
    PageableWarning,
    Ring,
    Signal,
    Table,
    gather,
    gather_retained,
    raise_faults,
    scatter,
    scatter_add,
    store_compact,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "0")


@pytest.fixture(scope="module", autouse=True)
def _everything_is_loaded() -> None:
    """The first launch of a kernel, and locking memory, may wait for the latched stream."""
    out = torch.full((1, 48), 1.0, device="cuda")
    gather(Table(1, 48, pinned=False), torch.zeros(1, dtype=torch.int64, device="cuda"), out)
    assert (out == 0).all()


@pytest.fixture
def latch() -> Signal:
    return Signal()


def numbered(rows: int, width: int = 48, **options: object) -> Table:
    table = Table(rows, width, **options)  # type: ignore[arg-type]
    table.numpy()[:] = np.arange(rows, dtype="f4")[:, None]
    return table


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="cuda")


def held(latch: Signal) -> torch.cuda.Stream:
    stream = torch.cuda.Stream()
    latch.wait_on(stream, 1)
    return stream


def test_a_table_is_page_locked_and_torch_knows() -> None:
    table = Table(1000, 48, pinned=True)
    assert table.is_pinned
    assert table.torch().is_pinned()
    assert table.stats.locked_bytes == table.stats.committed_bytes


@pytest.mark.asynchrony
@pytest.mark.parametrize("pinned", [True, False])
def test_a_gather_returns_before_it_is_done(latch: Signal, pinned: bool) -> None:
    table = numbered(100, pinned=pinned)
    out = torch.full((2, 48), -1.0, device="cuda")
    torch.cuda.synchronize()
    stream = held(latch)
    gather(table, ids(99, 3), out, stream=stream)
    assert not stream.query()
    assert (out == -1).all()
    latch.set(1)
    stream.synchronize()
    assert out[:, 7].tolist() == [99, 3]


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("add", [True, False])
def test_a_scatter_returns_before_it_is_done(latch: Signal, pinned: bool, add: bool) -> None:
    table = numbered(100, pinned=pinned)
    values = torch.ones(2, 48, device="cuda")
    chosen = ids(99, 3)
    torch.cuda.synchronize()
    stream = held(latch)
    (scatter_add if add else scatter)(values, chosen, table, stream=stream)
    assert not stream.query()
    assert table.numpy()[[99, 3], 0].tolist() == [99, 3]
    latch.set(1)
    stream.synchronize()
    assert table.numpy()[[99, 3], 0].tolist() == ([100, 4] if add else [1, 1])


def test_storing_returns_before_it_is_done_and_the_slot_tells_when(latch: Signal) -> None:
    values = torch.arange(10.0, device="cuda")[:, None].repeat(1, 48)
    positions, ring = ids(9, 0), Ring(1 << 16)
    torch.cuda.synchronize()
    stream = held(latch)
    slot = store_compact(values, positions, ring, stream=stream)
    assert not slot.is_ready
    with pytest.raises(TimeoutError, match=r"the rows did not land in 0\.0 s"):
        slot.wait(0.0)
    latch.set(1)
    assert slot.wait().numpy()[:, 5].tolist() == [9, 0]


@pytest.mark.parametrize("dense", [True, False])
def test_retained_rows_join_loaded_ones_in_one_launch(latch: Signal, dense: bool) -> None:
    table = numbered(100, pinned=dense)
    source = torch.arange(10.0, 18.0, device="cuda")[:, None].repeat(1, 48)
    out = torch.full((6, 48), -1.0, device="cuda")
    arrays = (ids(50, 60), ids(5, 0), source, ids(7, 0), ids(1, 3))
    torch.cuda.synchronize()
    stream = held(latch)
    gather_retained(table, *arrays, out, stream=stream)
    assert not stream.query()
    latch.set(1)
    stream.synchronize()
    assert out[:, 0].tolist() == [60, 17, -1, 10, -1, 50]


def test_an_empty_list_of_ids_may_be_of_another_width() -> None:
    table, out = numbered(100), torch.full((6, 48), -1.0, device="cuda")
    load, slots = (ids(*rows).int() for rows in ((50, 60, 70), (5, 0, 2)))
    nothing = torch.empty(0, dtype=torch.int64, device="cuda")
    source = torch.zeros(8, 48, device="cuda")
    gather_retained(table, load, slots, source, nothing, nothing, out)
    torch.cuda.synchronize()
    assert out[:, 0].tolist() == [60, -1, 70, -1, -1, 50]


def test_asking_for_what_is_in_flight_leaves_a_capture_alone() -> None:
    table, out = numbered(100), torch.zeros(2, 48, device="cuda")
    busy = numbered(100)
    chosen = ids(7, 8)
    gather(busy, chosen, out.clone())
    torch.cuda.synchronize()
    graph, found = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph, capture_error_mode="global"):
        gather(table, chosen, out)
        asks = threading.Thread(target=lambda: found.append(busy._memory.is_busy))
        asks.start()
        asks.join()
    graph.replay()
    torch.cuda.synchronize()
    assert found == [False]
    assert out[:, 0].tolist() == [7, 8]


def test_transfers_take_no_device_memory() -> None:
    table, ring = numbered(10_000), Ring(1 << 20)
    out = torch.empty(100, 48, device="cuda")
    zeros = torch.zeros(5, dtype=torch.int64, device="cuda")
    chosen = torch.arange(0, 10_000, 100, device="cuda")
    allocated = torch.cuda.memory_allocated()

    def free_after_transfers() -> int:
        for _ in range(200):
            gather(table, chosen, out)
            scatter(out, chosen, table)
            store_compact(out, zeros, ring).wait().release()
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    # The first transfers load kernels. The whole device's memory is counted: what another process
    # takes may come between some counts, what a transfer keeps comes between all.
    free = (free_after_transfers() for _ in range(30))
    assert any(before == after for before, after in pairwise(free))
    assert torch.cuda.memory_allocated() == allocated


def grown_in_chunks() -> Table:
    """Rows of 192 bytes over several locked chunks, whose ends are not ends of rows."""
    table = Table(1001, 48, pinned=True)
    for step in range(3):
        table.append(np.full((12_000, 48), step, "f4"))
    assert table.stats.locked_chunks >= 3
    table.numpy()[:] = np.arange(table.rows * 48, dtype="f4").reshape(-1, 48) % 65536
    return table


def test_rows_and_runs_across_locked_chunks_arrive_whole() -> None:
    table = grown_in_chunks()
    ends = [end // 192 for end in table._memory.chunk_ends[:-1]]
    around = np.array(sorted({row + d for row in ends for d in (-1, 0, 1)}))
    out = torch.empty(len(around), 48, device="cuda")
    gather(table, torch.from_numpy(around).cuda(), out)
    np.testing.assert_array_equal(out.cpu().numpy(), table.numpy()[around])
    everything = torch.empty(table.rows, 48, device="cuda")
    gather(table, slice(None), everything)  # the copy engine
    np.testing.assert_array_equal(everything.cpu().numpy(), table.numpy())
    expected = table.numpy() + 1
    scatter(everything + 1, slice(None), table)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(table.numpy(), expected)


def test_a_table_grows_while_a_transfer_uses_it(latch: Signal) -> None:
    table = numbered(1000, pinned=True)
    out = torch.empty(2, 48, device="cuda")
    chosen = ids(0, 999)
    torch.cuda.synchronize()
    stream = held(latch)
    gather(table, chosen, out, stream=stream)
    table.append(np.full((100_000, 48), -5, "f4"))
    assert not stream.query()
    latch.set(1)
    stream.synchronize()
    assert out[:, 0].tolist() == [0, 999]


def finishes(work: Callable[[], object], latch: Signal) -> None:
    """Runs work that waits for the latched stream beside the test, which then opens the latch."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    latch.set(1)
    thread.join()


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("how", ["close", "drop", "keep", "permute", "overwrite"])
def test_what_would_disturb_a_transfer_waits_for_it(latch: Signal, how: str, pinned: bool) -> None:
    tables = [numbered(1000, pinned=pinned)]
    out = torch.empty(2, 48, device="cuda")
    chosen = ids(0, 999)
    torch.cuda.synchronize()
    stream = held(latch)
    gather(tables[0], chosen, out, stream=stream)
    work: dict[str, Callable[[], object]] = {
        "close": lambda: tables[0].close(),
        "drop": tables.clear,
        "keep": lambda: tables[0].keep(np.arange(500, 1000)),
        "permute": lambda: tables[0].permute(np.arange(1000)[::-1].copy()),
        "overwrite": lambda: tables[0].overwrite(slice(None), np.zeros((1000, 48), "f4")),
    }
    finishes(work[how], latch)
    stream.synchronize()
    assert out[:, 0].tolist() == [0, 999]


def test_tensors_freed_while_in_use_are_not_given_to_others(latch: Signal) -> None:
    table = numbered(1000)
    out = torch.zeros(1000, 48, device="cuda")
    chosen = torch.arange(1000, device="cuda")
    torch.cuda.synchronize()
    stream = held(latch)
    gather(table, chosen, out, stream=stream)
    scatter_add(out, chosen, table, stream=stream)
    del out, chosen
    # What torch hands out next must not be the memory that the stream will still write.
    others = [torch.full((1000, 48), 7.0, device="cuda") for _ in range(4)]
    latch.set(1)
    stream.synchronize()
    assert all((other == 7).all() for other in others)
    assert (table.numpy()[:, 0] == 2 * np.arange(1000)).all()


@pytest.mark.asynchrony
def test_two_tables_on_two_streams_do_not_wait_for_each_other(latch: Signal) -> None:
    first, second = numbered(100), numbered(100)
    out, other_out = torch.empty(1, 48, device="cuda"), torch.empty(1, 48, device="cuda")
    chosen = ids(42)
    torch.cuda.synchronize()
    stream, free = held(latch), torch.cuda.Stream()
    gather(first, chosen, out, stream=stream)
    gather(second, chosen, other_out, stream=free)
    free.synchronize()
    assert other_out[0, 0] == 42
    assert not stream.query()
    latch.set(1)
    stream.synchronize()
    assert out[0, 0] == 42


def test_pageable_tables_of_two_streams_take_turns_at_the_buffer() -> None:
    tables = [numbered(200_000, pinned=False) for _ in range(2)]
    chosen = torch.arange(200_000, device="cuda")  # 38 MB: more than the buffer at once
    outs = [torch.empty(200_000, 48, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(3):
        for table, out, stream in zip(tables, outs, streams):
            gather(table, chosen, out, stream=stream)
    torch.cuda.synchronize()
    assert all(torch.equal(out[:, 0], chosen.float()) for out in outs)


@pytest.mark.parametrize("pinned", [True, False])
def test_bad_ids_skip_their_row_and_are_raised_by_a_later_call(pinned: bool) -> None:
    table = numbered(10, pinned=pinned)
    before = table.numpy().copy()
    values = torch.full((3, 48), 77.0, device="cuda")
    scatter(values, ids(2, 10, -1), table)
    torch.cuda.synchronize()
    before[2] = 77
    np.testing.assert_array_equal(table.numpy(), before)
    with pytest.raises(IndexError, match=r"an earlier transfer met row id (10|-1), which must lie"):
        raise_faults()
    raise_faults()
    gather(table, ids(10), values[:1])
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match="an earlier transfer met row id 10"):
        gather(table, ids(0), values[:1])


@pytest.mark.parametrize("pinned", [True, False])
def test_rows_with_bad_ids_on_either_side_are_left_alone(pinned: bool) -> None:
    table = numbered(10, pinned=pinned)
    gather(table, ids(3, 4, 5), torch.zeros(3, 48, device="cuda"))  # what the buffer has held
    out = torch.full((4, 48), -1.0, device="cuda")
    gather(table, ids(1, 10, -1, 2), out)
    assert out[:, 0].tolist() == [1, -1, -1, 2]
    with pytest.raises(IndexError, match=r"row id (10|-1), which must lie in \[0, 10\)"):
        raise_faults()
    out.fill_(-1.0)
    gather(table, ids(6, 7, 8), out, slots=ids(0, 4, 3))
    assert out[:, 0].tolist() == [6, -1, -1, 8]
    with pytest.raises(IndexError, match=r"row id 4, which must lie in \[0, 4\)"):
        raise_faults()
    before = table.numpy().copy()
    scatter(torch.full((4, 48), 77.0, device="cuda"), ids(0, 1, 2), table, slots=ids(3, 4, -1))
    torch.cuda.synchronize()
    before[0] = 77
    np.testing.assert_array_equal(table.numpy(), before)
    with pytest.raises(IndexError, match=r"row id (4|-1), which must lie in \[0, 4\)"):
        raise_faults()
    narrow = torch.full((3, 20), -1.0, device="cuda"), torch.full((3, 28), -1.0, device="cuda")
    gather(table, ids(1, 10, 2), narrow)
    assert narrow[0][:, 0].tolist() == [1, -1, 2]
    assert narrow[1][:, 27].tolist() == [1, -1, 2]
    with pytest.raises(IndexError, match="row id 10"):
        raise_faults()
    scatter_add(torch.ones(3, 48, device="cuda"), ids(1, -1, 10), table)
    torch.cuda.synchronize()
    before[1] += 1
    np.testing.assert_array_equal(table.numpy(), before)
    with pytest.raises(IndexError, match=r"row id (10|-1)"):
        raise_faults()
    source, out = torch.full((5, 48), 55.0, device="cuda"), torch.full((4, 48), -1.0, device="cuda")
    gather_retained(table, ids(2, 10), ids(0, 1), source, ids(4, 5), ids(2, 3), out)
    assert out[:, 0].tolist() == [2, -1, 55, -1]
    with pytest.raises(IndexError, match=r"row id (10|5)"):
        raise_faults()


def test_a_row_stored_from_a_bad_position_is_told_to_who_waits_for_it() -> None:
    values, ring = torch.arange(4.0, device="cuda")[:, None].repeat(1, 48), Ring(1 << 16)
    slot = store_compact(values, ids(3, 4, -1, 0), ring)
    with pytest.raises(IndexError, match=r"row id (4|-1), which must lie in \[0, 4\)"):
        slot.wait()
    assert slot.wait().numpy()[[0, 3], 0].tolist() == [3, 0]


def test_a_ring_that_may_not_be_locked_is_pageable_with_a_warning_and_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GS_PINNED_LIMIT_BYTES", "4096")
    with pytest.warns(PageableWarning, match="the ring is pageable"):
        ring = Ring(1 << 20)
    assert not ring.is_pinned
    values = torch.arange(100.0, device="cuda")[:, None].expand(100, 48).contiguous()
    with store_compact(values, ids(99, 1), ring) as slot:
        assert slot.numpy()[:, 7].tolist() == [99, 1]


def test_what_may_not_be_locked_works_however_little_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GS_PINNED_LIMIT_BYTES", "0")
    with pytest.warns(PageableWarning, match="GS_PINNED_LIMIT_BYTES=0 would be exceeded"):
        table = numbered(1000)
    out = torch.zeros(3, 48, device="cuda")
    gather(table, ids(5, 999, 7), out)
    assert out[:, 3].tolist() == [5, 999, 7]
    for _ in range(200):  # more than a page of them
        Signal().set(1)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_pageable_table_is_not_captured_into_a_graph() -> None:
    table, out = numbered(100, pinned=False), torch.zeros(1, 48, device="cuda")
    chosen = ids(3)
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CudaError, match="table must be page-locked where its transfers are"),
        torch.cuda.graph(graph, capture_error_mode="relaxed"),
    ):
        gather(table, chosen, out)
    gather(table, chosen, out)
    assert out[0, 0] == 3


def test_dense_runs_of_views_of_a_table_that_grew_come_in_one_piece() -> None:
    table = numbered(200_000)
    table.append(numbered(300_000).torch())
    out = torch.zeros(400_000, 48, device="cuda")
    gather(table.torch(), slice(50_000, 450_000), out)
    assert torch.equal(out.cpu(), table.torch()[50_000:450_000])


def test_checked_mode_raises_in_the_call_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    table = numbered(10)
    before = table.numpy().copy()
    with pytest.raises(IndexError, match=r"ids must lie in \[0, 10\), got 10"):
        scatter(torch.zeros(2, 48, device="cuda"), ids(0, 10), table)
    with pytest.raises(ValueError, match="ids must be distinct, got 3 more than once"):
        scatter(torch.zeros(2, 48, device="cuda"), ids(3, 3), table)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(table.numpy(), before)


def test_arrays_in_two_places_are_refused() -> None:
    table = numbered(10)
    out = torch.zeros(1, 48, device="cuda")
    with pytest.raises(ValueError, match="ids must be on cuda:0, got the CPU"):
        gather(table, torch.tensor([1]), out)
    with pytest.raises(ValueError, match="table must be page-locked where the other arrays are"):
        gather(np.zeros((5, 48), "f4"), ids(1), out)
    pinned = torch.arange(5.0).repeat_interleave(48).reshape(5, 48).pin_memory()
    gather(pinned, ids(4), out)
    assert out[0, 0] == 4


def test_offsets_beyond_four_gigabytes_are_exact() -> None:
    rows = (5 << 30) // 192
    table = Table(rows, 48, pinned=True)
    last = [rows - 1, (1 << 32) // 192 + 1, 0]
    for number, row in enumerate(last):
        table.numpy()[row] = number + 1
    out = torch.empty(3, 48, device="cuda")
    gather(table, ids(*last).to(torch.int32), out)
    assert out[:, 47].tolist() == [1, 2, 3]
    scatter_add(out, ids(*last), table)
    torch.cuda.synchronize()
    assert table.numpy()[last, 3].tolist() == [2, 4, 6]


def test_a_full_ring_holds_the_producer_until_the_consumer_releases(latch: Signal) -> None:
    ring = Ring(2 * 192)
    values = torch.arange(8.0, device="cuda")[:, None].repeat(1, 48)
    positions = [ids(i) for i in range(8)]
    torch.cuda.synchronize()
    stream = held(latch)
    first = store_compact(values, positions[0], ring, stream=stream)
    second = store_compact(values, positions[1], ring, stream=stream)
    first.release()  # not landed yet: its bytes must not be handed out
    with pytest.raises(TimeoutError):
        store_compact(values, positions[2], ring, stream=stream, timeout_s=0.0)
    seen: list[float] = []

    def consume() -> None:
        with second:
            seen.append(float(second.numpy()[0, 0]))

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    latch.set(1)
    for i in range(2, 8):
        with store_compact(values, positions[i], ring, stream=stream) as slot:
            seen.append(float(slot.numpy()[0, 0]))
    consumer.join()
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 7]


def test_a_transfer_can_be_captured_into_a_graph_and_replayed() -> None:
    table = numbered(100, pinned=True)
    out = torch.empty(1, 48, device="cuda")
    chosen = ids(5)
    gather(table, chosen, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather(table, chosen, out)
    for row in (7, 99):
        chosen.fill_(row)
        graph.replay()
        torch.cuda.synchronize()
        assert out[0, 0] == row


def test_a_refused_lock_warns_once_and_transfers_stay_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GS_PINNED_LIMIT_BYTES", str(1 << 26))
    with pytest.warns(PageableWarning, match="GS_PINNED_LIMIT_BYTES=67108864 would be exceeded"):
        table = numbered(1_000_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.append(np.zeros((1, 48), "f4"))
    out = torch.empty(3, 48, device="cuda")
    gather(table, ids(0, 999_999, 1_000_000), out)
    assert out[:, 0].tolist() == [0, 999_999, 0]
    with pytest.raises(MemoryError, match="page-locking 192000000 bytes failed: GS_PINNED_LIMIT"):
        Table(1_000_000, 48, pinned=True)
