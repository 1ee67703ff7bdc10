# SPDX-License-Identifier: Apache-2.0
"""Blocks behind a cache: the same rows whatever fits where, few reads, wrong arguments."""

import itertools
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import (
    BlockCache,
    BlockStore,
    ClosedError,
    Plane,
    Signal,
    StoreReadOnlyError,
)
from gs_pinned.block_slots import BlockSlots
from gs_pinned.launch import torchs_stream

from .cached_blocks import PLANES, B, CachedBlocks

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def batches(n_blocks: int, n_batches: int, size: int) -> list[list[int]]:
    """Batches that wander over the blocks."""
    random = np.random.default_rng(size)
    return [
        (np.unique(random.integers(0, 2 * size, size) + k * n_blocks // n_batches) % n_blocks)
        .tolist()
        for k in range(n_batches)
    ]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hints", ["right", "wrong", "none"])
@pytest.mark.parametrize(("slots", "host_blocks"), [(6, 2), (6, 9), (13, 40), (40, 2)])
def test_sizes_and_hints_change_no_row(
    tmp_path: Path, device: str, hints: str, slots: int, host_blocks: int
) -> None:
    made = CachedBlocks(tmp_path / "store", 40, slots, host_blocks, device)
    random = np.random.default_rng(1)
    order = batches(40, 50, 6)
    for k, batch in enumerate(order):
        if hints != "none":
            later = [next((t for t in range(k + 1, 50) if b in order[t]), 1000) for b in range(40)]
            made.cache.hint(range(40), later if hints == "right" else random.permutation(40))
        made.bring(batch)
        if k + 1 < len(order):
            made.cache.fetch([b for b in order[k + 1] if b % 2])
            made.cache.expect(order[k + 1])
        made.change(batch)
        if k % 20 == 7:
            made.begin_snapshot()
        if k % 20 == 12:
            made.end_snapshot()
            made.check_saved()
    made.snapshot()
    made.check_saved()
    stats = made.cache.stats
    if slots + host_blocks < 40:
        assert min(stats.read, stats.written, stats.evicted, stats.dropped) > 0
    made.close()


class SlotsSeenLate(BlockSlots):
    """Every other look finds the last move still under way, unless somebody waited for it."""

    n_looks = 0
    n_waited = 0

    @property
    def n_passed(self) -> int:
        self.n_looks += 1
        return max(super().n_passed - self.n_looks % 2, self.n_waited)

    def wait(self, move: int) -> None:
        super().wait(move)
        self.n_waited = max(self.n_waited, move)


@pytest.mark.parametrize("n_looks", [0, 1])
def test_moves_may_pass_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_looks: int
) -> None:
    monkeypatch.setattr(SlotsSeenLate, "n_looks", n_looks)
    monkeypatch.setattr("gs_pinned.block_cache.BlockSlots", SlotsSeenLate)
    for size in range(2, 7):
        made = CachedBlocks(tmp_path / str(size), 40, 6, 2)
        for batch in batches(40, 50, size):
            made.step(batch)
        made.snapshot()
        made.check_saved()
        made.close()


def check_any_calls(data: st.DataObject) -> None:
    """Random calls leave the rows that a dict has."""
    n_blocks, slots = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 6))
    some = st.lists(st.integers(0, n_blocks - 1), max_size=slots, unique=True)
    with tempfile.TemporaryDirectory() as folder:
        made = CachedBlocks(Path(folder) / "s", n_blocks, slots, data.draw(st.integers(2, 6)))
        begun = False
        for _ in range(data.draw(st.integers(1, 25))):
            blocks = data.draw(some)
            match data.draw(st.integers(0, 8)):
                case 0:
                    made.cache.hint(blocks, [data.draw(st.integers(0, 9)) for _ in blocks])
                case 1:
                    made.cache.fetch(blocks)
                case 2:
                    made.cache.expect(blocks)
                case 3:
                    made.bring(blocks)
                    made.cache.release(blocks, changed=False)
                case 4:
                    made.snapshot()
                    made.check_saved()
                case 5:
                    made.begin_snapshot()
                    begun = True
                case 6 if begun:
                    made.end_snapshot()
                    made.check_saved()
                case _:
                    made.bring(blocks)
                    made.change(blocks)
        made.snapshot()
        made.check_saved()
        made.close()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_calls_leave_the_rows_that_a_dict_has(data: st.DataObject) -> None:
    check_any_calls(data)


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_any_calls_leave_the_rows_that_a_dict_has_a_thousand_times(data: st.DataObject) -> None:
    check_any_calls(data)


def fewest_reads(order: list[int], capacity: int) -> int:
    """Blocks that must be read for single uses in order, by trying everything."""
    states = {frozenset[int](): 0}
    for block in order:
        following: dict[frozenset[int], int] = {}
        for held, reads in states.items():
            if block in held:
                options = [(held, reads)]
            elif len(held) < capacity:
                options = [(held | {block}, reads + 1)]
            else:
                options = [(held - {gone} | {block}, reads + 1) for gone in held]
            for state, n in options:
                following[state] = min(n, following.get(state, n))
        states = following
    return min(states.values())


def reads_of(tmp_path: Path, order: list[int], host_blocks: int, hints: bool) -> int:
    made = CachedBlocks(tmp_path, max(order) + 1, 1, host_blocks)
    for k, block in enumerate(order):
        made.cache.bring([block])
        if hints:
            later = [t for t in range(k + 1, len(order)) if order[t] == block]
            made.cache.hint([block], [min(later, default=len(order))])
        made.cache.release([block], changed=False)
    reads = made.cache.stats.read
    made.close()
    return reads


def test_known_uses_leave_as_few_reads_as_there_can_be(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    reads = {"known": 0, "unknown": 0, "all": 0, "but one": 0}
    for k in range(6):
        order = random.integers(0, 7, 40).tolist()
        # A slot and three of the four places hold a block: one place is spare. The block in the
        # slot stays while its successor is read, even where its own next use is the farthest.
        reads["all"] += fewest_reads(order, 4)
        reads["but one"] += fewest_reads(order, 3)
        reads["known"] += reads_of(tmp_path / f"known{k}", order, 4, hints=True)
        reads["unknown"] += reads_of(tmp_path / f"unknown{k}", order, 4, hints=False)
    assert reads["all"] <= reads["known"] <= reads["but one"] < reads["unknown"]


def test_nothing_is_written_where_all_blocks_fit_memory(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 12, 4, 9)
    for k in range(30):
        made.step([(k + j) % 12 for j in range(4)])
    assert made.cache.stats.written == 0
    assert made.cache.stats.read == 12
    made.snapshot()
    made.check_saved()
    assert made.cache.stats.written == 12
    made.snapshot()
    assert made.cache.stats.written == 12
    made.close()


def test_blocks_that_change_in_turn_are_written_about_as_often_as_they_are_read(
    tmp_path: Path,
) -> None:
    """A block that waits in memory for its next use is not written meanwhile, but for those of an
    eighth of the places."""
    n, n_turns, n_places = 60, 6, 40
    made = CachedBlocks(tmp_path / "store", n, 4, n_places)
    for k in range(n_turns * n):
        made.step([k % n])
        made.cache.hint([k % n], [k + n])
    stats = made.cache.stats
    n_left = stats.read - n  # each of which had left memory before
    assert 0 <= stats.written - n_left <= n_turns * n_places // 8
    made.close()


def test_what_was_expected_is_there_without_waiting(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 20, 8, 8)
    made.bring([0, 1])
    made.cache.expect([2, 3])
    while made.cache.stats.read < 4:  # a read ends by itself, and each call takes note
        made.cache.expect([2, 3])
    made.cache.expect([2, 3])
    before = made.cache.stats
    made.bring([2, 3])
    after = made.cache.stats
    assert (after.hits - before.hits, after.late - before.late) == (2, 0)
    made.close()


def test_a_block_whose_read_has_ended_is_not_late(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 9, 2, 3, threads=1)
    made.cache.fetch([2])
    made.store.read([0])  # by the thread that has read block 2
    made.bring([2])
    assert made.cache.stats.late == 0
    made.close()


def test_seconds_of_waiting_for_the_disk_are_those_of_bring(tmp_path: Path) -> None:
    """Neither what is in memory counts, nor moves between slots and places."""
    made = CachedBlocks(tmp_path / "store", 12, 4, 10)
    n_waits = 0

    @contextmanager
    def noted() -> Iterator[None]:
        nonlocal n_waits
        n_waits += 1
        yield

    made.cache.waiting = noted
    for first in (0, 4, 8):
        made.step(range(first, first + 4))
    before, n_before = made.cache.stats, n_waits
    assert before.waited_s > 0
    assert n_before > 0
    for first in (0, 4, 8) * 2:
        made.step(range(first, first + 4))
    after = made.cache.stats
    assert after.loaded > before.loaded
    assert (after.waited_s, n_waits) == (before.waited_s, n_before)
    made.close()


@pytest.mark.gpu
@pytest.mark.asynchrony
def test_blocks_are_expected_while_the_stream_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "0")
    made = CachedBlocks(tmp_path / "store", 20, 8, 8, "cuda")
    assert made.stream is not None
    made.step([0, 1])
    made.cache.fetch([2, 3])
    while made.cache.stats.read < 4:
        made.cache.fetch([])
    torch.cuda.synchronize()
    latch = Signal()
    latch.wait_on(made.stream, 1)
    made.cache.expect([2, 3])
    assert made.cache.stats.loaded == 4
    assert not made.stream.query()
    latch.set(1)
    made.step([2, 3])
    made.close()


def test_the_default_stream_is_not_taken_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "default_stream", lambda where: ("default", where))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda n, device: (n, device))
    torchs_stream.cache_clear()
    try:
        assert torchs_stream(0, 1) == ("default", 1)
        assert torchs_stream(77, 1) == (77, 1)
    finally:
        torchs_stream.cache_clear()


def test_fetching_gives_nothing_up_that_is_used_sooner(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 20, 2, 5)
    for block in range(6):
        made.cache.bring([block])
        made.cache.hint([block], [10 + block])
        made.cache.release([block], changed=False)
    made.cache.hint([9, 10], [11, 99])
    made.cache.fetch([10])
    made.cache.bring([0])
    made.cache.release([0], changed=False)
    assert made.cache.stats.read == 6
    made.cache.fetch([9])
    made.cache.bring([9])
    assert made.cache.stats.read == 7
    made.close()


def test_blocks_in_use_stay_and_too_many_are_refused(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 9, 4, 3)
    made.bring([0, 1, 2])
    with pytest.raises(MemoryError, match="fit the 4 slots beside 3 in use, got 2"):
        made.cache.bring([3, 4])
    made.bring([2, 3])
    assert made.cache.stats.written == 0
    with pytest.raises(RuntimeError, match="no block may be in use at a snapshot, got block 0"):
        made.cache.snapshot()
    made.cache.release([0, 1, 2, 3], changed=False)
    with pytest.raises(RuntimeError, match="got block 2"):
        made.cache.snapshot()
    made.cache.release([2], changed=False)
    made.bring([5, 6, 7, 8])
    made.close()


def test_marks_of_changes_may_be_any_iterable(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 9, 4, 3)
    for marks in ([False, True], (b == 1 for b in (0, 1)), np.array([False, True])):
        before = made.cache.stats.written
        made.cache.bring([0, 1])
        made.cache.release([0, 1], marks)
        made.snapshot()
        assert made.cache.stats.written == before + 1
    made.close()


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 24, 8, 6)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            blocks = random.permutation(24)[:2].tolist()
            made.cache.fetch(blocks)
            slots = made.cache.bring(blocks)
            for block, slot in zip(blocks, slots.tolist(), strict=True):
                key = made.rows[block]["key"]
                assert made.arrays["key"][slot * B : slot * B + len(key)].tolist() == key.tolist()
            made.cache.release(blocks, changed=True)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    failures: list[Any] = []
    threading.excepthook, hook = failures.append, threading.excepthook
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = hook
    assert not failures
    made.snapshot()
    made.check_saved()
    made.close()


def test_numbers_that_are_wrong_are_refused_by_name(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 5, 2, 2)
    cache = made.cache
    for call in (cache.bring, cache.expect, cache.fetch, cache.release, cache.counts):
        with pytest.raises(IndexError, match=r"blocks must be in the store, got 5"):
            call([0, 5])
        with pytest.raises(ValueError, match=r"blocks must be different, got \[1, 1\]"):
            call([1, 1])
        with pytest.raises(IndexError, match="blocks must be a whole number"):
            call([0.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="next_use must be 2, one a block, got 1"):
        cache.hint([0, 1], [4])
    with pytest.raises(ValueError, match="next_use must be a whole number of at least 0, got -1"):
        cache.hint([0], [-1])
    with pytest.raises(ValueError, match="blocks must be in use, got 1"):
        cache.release([1])
    cache.bring([0, 1])
    with pytest.raises(ValueError, match=r"changed must be 2, one a block, got \(3,\)"):
        cache.release([0, 1], [True, False, True])
    assert cache.counts([2, 1]).tolist() == [B - 1, B]
    assert cache.bring([]).tolist() == []
    made.close()
    with pytest.raises(ClosedError, match="the cache must be open"):
        cache.bring([0])
    cache.close()


class OnDevice(np.ndarray[Any, Any]):
    """An array that says that it is on a CUDA device."""

    def __dlpack_device__(self) -> Any:
        return 2, 0


def arrays(**others: Any) -> dict[str, Any]:
    made = {p.name: np.zeros((2 * B, p.width), p.dtype) for p in PLANES}
    return {name: array for name, array in (made | others).items() if array is not None}


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (arrays(key=None), ValueError, "arrays must hold every plane, got none of key"),
        (arrays(x=1), ValueError, "arrays must hold planes of the store, got 'x'"),
        (arrays(key=[1]), TypeError, "arrays of key must be a numpy or torch array, got list"),
        (arrays(key=np.zeros((8, 1))), TypeError, "arrays of key must be one of .*, got float64"),
        (arrays(key=np.zeros((8, 1), "f4")), TypeError, "arrays of key must be int32, got float32"),
        (arrays(key=np.zeros((7, 1), "i4")), ValueError, r"slots \* 4, 1\) .*, got \(7, 1\)"),
        (arrays(key=np.zeros((0, 1), "i4")), ValueError, r"a slot at least, got \(0, 1\)"),
        (arrays(key=np.zeros((8, 2), "i4")), ValueError, r"got \(8, 2\)"),
        (arrays(key=np.zeros((12, 1), "i4")), ValueError, "must have 8 rows as those of means"),
        (
            arrays(sh=np.zeros((8, 5), "f2").view(OnDevice)),
            ValueError,
            "arrays of sh must be where those of means are, got device 0",
        ),
        (arrays(sh=np.zeros((8, 10), "f2")[:, ::2]), ValueError, "arrays of sh must be in C order"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, made: dict[str, Any], error: type[Exception], message: str
) -> None:
    with (
        BlockStore.create(tmp_path / "store", PLANES, block_rows=B) as store,
        pytest.raises(error, match=message),
    ):
        BlockCache(store, made, host_blocks=2)


def test_planes_that_share_an_array_are_refused(tmp_path: Path) -> None:
    planes = [Plane("a", 1), Plane("b", 1)]
    one = np.zeros((2 * B, 1), "f4")
    with (
        BlockStore.create(tmp_path / "store", planes, block_rows=B) as store,
        pytest.raises(ValueError, match="must not share memory"),
    ):
        BlockCache(store, {"a": one, "b": one}, host_blocks=2)


def test_a_store_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    with BlockStore.create(tmp_path / "a", [Plane("w", 1, "float64")], block_rows=B) as store:
        w = np.zeros((B, 1))
        with pytest.raises(TypeError, match="float64"):
            BlockCache(store, {"w": w}, host_blocks=2)
    with (
        BlockStore.create(tmp_path / "b", PLANES, block_rows=B) as store,
        pytest.raises(ValueError, match="host_blocks must be a whole number of at least 2, got 1"),
    ):
        BlockCache(store, arrays(), host_blocks=1)


def test_a_store_for_reading_can_be_looked_at(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "store", 9, 2, 2)
    made.close()
    with (
        BlockStore.open(tmp_path / "store", read_only=True) as store,
        BlockCache(store, made.arrays, host_blocks=2) as cache,
    ):
        for pair in itertools.pairwise(range(9)):
            made.cache = cache
            made.bring(pair)
            with pytest.raises(StoreReadOnlyError, match="blocks must not change"):
                cache.release(pair)
            cache.release(pair, changed=False)
        assert "2 of 2 slots" in repr(cache)
    assert repr(cache) == "BlockCache(closed)"
