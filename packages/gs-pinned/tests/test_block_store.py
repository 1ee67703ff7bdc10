# SPDX-License-Identifier: Apache-2.0
"""The store of blocks against a dict of arrays: rows, snapshots, space, wrong arguments."""

import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import (
    BlockStore,
    ClosedError,
    Plane,
    SnapshotWarning,
    StoreCorruptError,
    StoreReadOnlyError,
    Table,
)

Rows = dict[str, np.ndarray[Any, Any]]

PLANES = [
    Plane("means", 3, is_head=True),
    Plane("sh", 5, "float16"),
    Plane("key", 1, "int32", is_head=True),
    Plane("seen", 1, "bool"),
]


def rows(n: int, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    return {
        "means": random.standard_normal((n, 3), dtype="f4"),
        "sh": random.standard_normal((n, 5)).astype("f2"),
        "key": random.integers(-9, 9, (n, 1), dtype="i4"),
        "seen": random.random((n, 1)) < 0.5,
    }


def equal(a: Rows, b: Rows) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    with BlockStore.create(tmp_path / "store", PLANES, block_rows=8) as made:
        yield made


def test_blocks_come_back_as_they_were_written(store: BlockStore) -> None:
    values = rows(27, 1)
    store.write([5, 0, 2, 9], values)
    assert store.counts([9, 5]) == [3, 8]
    assert store.blocks == [0, 2, 5, 9]
    assert equal(store.read([5, 0, 2, 9]), values)
    swapped = store.read([9, 9, 5], planes=["key"])
    np.testing.assert_array_equal(
        swapped["key"], np.concatenate([values["key"][24:], values["key"][24:], values["key"][:8]])
    )


def test_a_snapshot_is_what_another_object_opens(store: BlockStore) -> None:
    first, second = rows(16, 1), rows(16, 2)
    store.write([0, 1], first)
    assert store.snapshot(b"one") == 1
    store.write([0, 1], second)
    with BlockStore.open(store.path, read_only=True) as reader:
        assert equal(reader.read([0, 1]), first)
        assert reader.state == b"one"
        reader.forget_state()
        assert reader.state == b""
        assert reader.verify().is_intact
    assert equal(store.read([0, 1]), second)
    with BlockStore.open(store.path, read_only=True) as again:
        assert again.state == b"one"


def test_what_no_snapshot_holds_is_gone_with_the_object(store: BlockStore) -> None:
    store.write([0], rows(8, 1))
    store.close()
    with BlockStore.open(store.path) as again:
        assert again.blocks == []
        with pytest.raises(IndexError, match="block 0 must have been written"):
            again.read([0])


def test_older_snapshots_stay_as_long_as_they_are_kept(store: BlockStore) -> None:
    written = [rows(8, i) for i in range(6)]
    for values in written:
        store.write([3], values)
        store.snapshot(keep=3)
    assert store.snapshots == [4, 5, 6]
    store.close()
    for number in (4, 5, 6):
        with BlockStore.open(store.path, snapshot=number, read_only=True) as reader:
            assert equal(reader.read([3]), written[number - 1])
    with pytest.raises(StoreCorruptError, match=r"snapshot 3 of the store .* is not there"):
        BlockStore.open(store.path, snapshot=3)


def test_a_run_may_go_on_from_an_older_snapshot(store: BlockStore) -> None:
    old, new = rows(8, 1), rows(8, 2)
    store.write([0], old)
    store.snapshot(keep=2)
    store.write([0], new)
    store.snapshot(keep=2)
    store.close()
    with BlockStore.open(store.path, snapshot=1) as again:
        for seed in range(20):  # nothing of the newer snapshot is overwritten meanwhile
            again.write([1], rows(8, seed))
        assert equal(again.read([0]), old)
        with BlockStore.open(store.path, snapshot=2, read_only=True) as reader:
            assert equal(reader.read([0]), new)
        assert again.snapshot() == 3
        assert again.snapshots == [3]


def test_space_of_replaced_rows_is_used_again(store: BlockStore) -> None:
    for seed in range(300):
        store.write(range(4), rows(32, seed))
        if seed % 3 == 0:
            store.snapshot()
    stats = store.stats
    # Alive, needed by the snapshot, and the growth of a file.
    assert stats.live_bytes == 4 * 2 * 4096
    assert stats.dead_bytes <= stats.live_bytes
    assert stats.disk_bytes == stats.live_bytes + stats.dead_bytes + stats.free_bytes + 4096
    assert stats.disk_bytes <= 257 * 4096
    assert stats.records_written == 1200


def test_rows_go_on_in_a_second_file_when_one_is_full(tmp_path: Path) -> None:
    values = rows(8 * 40, 3)
    with BlockStore.create(
        tmp_path / "store", PLANES, block_rows=8, segment_bytes=1 << 16
    ) as store:
        store.write(range(40), values)
        store.snapshot()
    assert len(list((tmp_path / "store").glob("seg-*"))) == 6
    with BlockStore.open(tmp_path / "store") as store:
        assert equal(store.read(range(40)), values)


@pytest.mark.parametrize("value", [0, 1.5])
def test_equal_rows_take_no_space(tmp_path: Path, value: float) -> None:
    wide = [Plane("wide", 1000)]
    with BlockStore.create(tmp_path / "store", wide, block_rows=100) as store:
        store.write([0], {"wide": np.full((100, 1000), value, "f4")})
        assert store.stats.live_bytes <= 3 * 4096
        assert (store.read([0])["wide"] == value).all()
        # Minus zero is no zero.
        store.write([0], {"wide": np.full((100, 1000), -0.0, "f4")})
        assert np.signbit(store.read([0])["wide"]).all()


def test_head_planes_are_read_alone(tmp_path: Path) -> None:
    planes = [Plane("head", 1, is_head=True), Plane("tail", 100)]
    with BlockStore.create(tmp_path / "store", planes, block_rows=1000) as store:
        random = np.random.default_rng(1)
        head, tail = random.random((1000, 1), "f4"), random.random((1000, 100), "f4")
        store.write([0], {"head": head, "tail": tail})
        before = store.stats.bytes_read
        np.testing.assert_array_equal(store.read([0], ["head"])["head"], head)
        assert store.stats.bytes_read - before == 2 * 4096


def test_blocks_may_be_read_into_arrays_of_the_caller(store: BlockStore) -> None:
    values = rows(16, 1)
    store.write([0, 1], values)
    arena = {name: np.zeros((4, 16, array.shape[1]), array.dtype) for name, array in values.items()}
    out = {name: slots[2] for name, slots in arena.items()}
    result = store.read([0, 1], out=out)
    assert result.keys() == out.keys()
    for name, slots in arena.items():
        assert result[name] is out[name]
        np.testing.assert_array_equal(slots[2], values[name])
        assert not slots[[0, 1, 3]].any()
    table = Table(8, 3)  # page-locked
    store.read([1], ["means"], out={"means": table.numpy()})
    np.testing.assert_array_equal(table.numpy(), values["means"][8:])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_calls_leave_what_a_dict_would_hold(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "store"
    present: dict[int, Rows] = {}
    kept: dict[int, Rows] = {}
    store = BlockStore.create(path, PLANES, block_rows=8, segment_bytes=1 << 16, threads=2)
    for seed in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["write", "write", "snapshot", "open"]))
        if action == "write":
            blocks = data.draw(st.lists(st.integers(0, 30), max_size=10, unique=True))
            counts = [data.draw(st.integers(0, 8)) for _ in blocks]
            values = rows(sum(counts), seed)
            store.write(blocks, values, counts, step=seed)
            ends = np.cumsum([0, *counts])
            for block, first, last in zip(blocks, ends, ends[1:], strict=False):
                present[block] = {name: array[first:last] for name, array in values.items()}
        elif action == "snapshot":
            store.snapshot(keep=data.draw(st.integers(1, 3)))
            kept = dict(present)
        else:
            store.close()
            store = BlockStore.open(path, threads=2)
            present = dict(kept)
        assert store.blocks == sorted(present)
        for block, values in present.items():
            assert equal(store.read([block]), values)
    assert store.verify().problems == ()
    stats = store.stats
    segments = len(list(path.glob("seg-*")))
    assert stats.disk_bytes - 4096 * segments == (
        stats.live_bytes + stats.dead_bytes + stats.free_bytes
    )
    store.close()


def test_the_later_of_two_writes_wins_and_reads_see_whole_blocks(store: BlockStore) -> None:
    written = [rows(8, seed) for seed in range(50)]
    store.write([0], written[0])
    tickets = [store.write_async([0], values) for values in written]
    reads = [store.read_async([0]) for _ in range(50)]
    for ticket in tickets:
        assert ticket.wait() == {}
        assert ticket.is_done
    assert equal(store.read([0]), written[-1])
    for read in reads:
        assert any(equal(read.wait(), values) for values in written)


def test_rows_that_are_being_read_are_not_overwritten(tmp_path: Path) -> None:
    first = rows(8, 1)
    armed = []

    def hear(name: str, path: str, *_: object) -> int:
        if name == "read" and "/seg-" in path and armed:
            armed.clear()
            for seed in (2, 3, 4):  # no snapshot needs the extent that is about to be read
                store.write([0], rows(8, seed))
        return 0

    with BlockStore.create(tmp_path / "s", PLANES, block_rows=8, on_call=hear) as store:
        store.write([0], first)
        armed.append(True)
        assert equal(store.read([0]), first)
        assert equal(store.read([0]), rows(8, 4))


def test_several_threads_may_use_a_store(store: BlockStore) -> None:
    failures = []

    def work(block: int) -> None:
        for seed in range(20):
            values = rows(8, 100 * block + seed)
            store.write([block], values)
            if not equal(store.read([block]), values):
                failures.append((block, seed))
            if seed % 5 == 0:
                store.snapshot()

    threads = [threading.Thread(target=work, args=(block,)) for block in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.verify().is_intact


def test_a_ticket_that_is_dropped_keeps_its_arrays_until_the_end(store: BlockStore) -> None:
    values = rows(8, 5)
    expected = {name: array.copy() for name, array in values.items()}
    store.write_async([0], values)
    del values
    gc.collect()
    assert equal(store.read([0]), expected)


def test_a_second_writer_is_refused(store: BlockStore) -> None:
    with pytest.raises(StoreReadOnlyError, match="is written by another process"):
        BlockStore.open(store.path)
    store.close()
    BlockStore.open(store.path).close()


def test_a_reader_cannot_write(store: BlockStore) -> None:
    with BlockStore.open(store.path, read_only=True) as reader:
        assert reader.is_read_only
        with pytest.raises(StoreReadOnlyError, match="cannot be written: it was opened for read"):
            reader.write([0], rows(8, 1))
        with pytest.raises(StoreReadOnlyError, match="cannot be written: it was opened for read"):
            reader.snapshot()


def test_a_reader_may_open_a_store_while_its_snapshot_is_replaced(store: BlockStore) -> None:
    store.write([0], rows(8, 1))
    store.snapshot()
    second = rows(8, 2)

    def hear(name: str, path: str, *_: object) -> int:
        if name == "open" and path.endswith("snap-0000000001"):
            store.write([0], second)
            store.snapshot(b"second")
        return 0

    with BlockStore.open(store.path, read_only=True, on_call=hear) as reader:
        assert reader.state == b"second"
        assert equal(reader.read([0]), second)


def test_a_closed_store_says_so(store: BlockStore) -> None:
    store.close()
    store.close()
    with pytest.raises(ClosedError, match="must be open, got one that was closed"):
        store.read([0])
    assert "not usable" in repr(store)


def test_the_newest_snapshot_that_is_whole_counts(store: BlockStore) -> None:
    first, second = rows(8, 1), rows(8, 2)
    store.write([0], first)
    store.snapshot(b"first", keep=2)
    store.write([0], second)
    store.snapshot(b"second", keep=2)
    store.close()
    newest = store.path / "snap-0000000002"
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    with pytest.warns(SnapshotWarning, match=r"snapshot 1 was opened, but .*-0000000002 is damag"):
        again = BlockStore.open(store.path)
    with again:
        assert again.state == b"first"
        assert equal(again.read([0]), first)
        assert again.snapshot() == 3
        assert sorted(path.name for path in store.path.glob("snap*")) == ["snap-0000000003"]


def test_a_missing_or_shorter_file_is_found_at_once(store: BlockStore) -> None:
    store.write([0], rows(8, 1))
    store.snapshot()
    store.close()
    segment = store.path / "seg-000000"
    content = segment.read_bytes()
    segment.write_bytes(content[:4096])
    with pytest.raises(StoreCorruptError, match="seg-000000 must have 3 pages of 4096 bytes, got"):
        BlockStore.open(store.path)
    segment.unlink()
    with pytest.raises(StoreCorruptError, match="seg-000000 is missing"):
        BlockStore.open(store.path, read_only=True)


def test_a_file_of_another_store_is_named(store: BlockStore, tmp_path: Path) -> None:
    with BlockStore.create(tmp_path / "other", PLANES, block_rows=8) as other:
        for made in (store, other):
            made.write([0], rows(8, 1))
            made.snapshot()
            made.close()
    name = "seg-000000"
    own = (store.path / name).read_bytes()
    foreign = (other.path / name).read_bytes()
    (store.path / name).write_bytes(foreign)
    with pytest.raises(StoreCorruptError, match="cannot be used: it belongs to store"):
        BlockStore.open(store.path)
    (store.path / name).write_bytes(own[:4096] + foreign[4096:])
    with BlockStore.open(store.path) as again:
        with pytest.raises(
            StoreCorruptError, match=r"block 0 of step 0 .*at page 1, is damaged: .* of store"
        ):
            again.read([0])
        assert not again.verify().is_intact


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    assert len(example.strip().splitlines()) <= 18
    table = np.random.default_rng(1).standard_normal((6 * 1024, 64), dtype="f4")
    exec(
        compile(example, "README.md", "exec"),
        {"path": tmp_path / "s", "embeddings": table.reshape(6, 1024, 64)},
    )
    with BlockStore.open(tmp_path / "s", read_only=True) as store:
        assert store.state == b"epoch 1"
        weights = store.read(range(6))["weights"].reshape(6, 1024, 64)
    table = table.reshape(6, 1024, 64)
    table[[3, 5]] += 1
    np.testing.assert_array_equal(weights, table)
