# SPDX-License-Identifier: Apache-2.0
"""A store without memory, closed, forked, interrupted, shared or short of files."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import (
    BlockStore,
    BufferedWarning,
    ClosedError,
    Plane,
    StoreCorruptError,
    StoreReadOnlyError,
)

Rows = dict[str, np.ndarray[Any, Any]]

PLANES = [Plane("head", 2, is_head=True), Plane("tail", 40)]
BLOCK_ROWS = 32
RECORD_PAGES = 3
BLOCKS = 4


def rows_of(seed: int, n: int = BLOCKS * BLOCK_ROWS) -> Rows:
    values = np.random.default_rng(seed).standard_normal((n, 42), dtype="f4")
    return {"head": values[:, :2].copy(), "tail": values[:, 2:].copy()}


def equal(a: Rows, b: Rows) -> bool:
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    with BlockStore.create(tmp_path / "store", PLANES, block_rows=BLOCK_ROWS) as made:
        yield made


@pytest.mark.unsanitized("a sanitizer's own memory is larger than the limit")
def test_a_call_without_memory_says_so_and_holds_snapshots_up(
    tmp_path: Path, run_script: Callable[..., str]
) -> None:
    script = f"""
        import resource
        import numpy as np
        from gs_pinned import BlockStore, Plane, StoreReadOnlyError

        path = {str(tmp_path / "store")!r}
        row = {{"wide": np.ones((1, 1 << 18), "f4")}}
        pages = int(open("/proc/self/statm").read().split()[0])
        _, most = resource.getrlimit(resource.RLIMIT_AS)

        def limit(bytes_more):
            soft = most if bytes_more is None else pages * resource.getpagesize() + bytes_more
            resource.setrlimit(resource.RLIMIT_AS, (soft, most))

        def refused(call):
            limit(160 << 20)  # a record's buffer has 240 MiB
            try:
                call()
            except MemoryError as error:
                print(str(error)[:20])
            limit(None)

        with BlockStore.create(path, [Plane("wide", 1 << 18)], block_rows=240, threads=1) as store:
            refused(lambda: store.write([0], row, [1]))
            try:
                store.snapshot()
            except StoreReadOnlyError as error:
                print("write block 0 again" in str(error))
            store.write([0], row, [1])
            store.snapshot()
        with BlockStore.open(path, threads=1) as store:
            refused(lambda: store.read([0]))
            refused(store.verify)
            print(store.verify().is_intact, (store.read([0])["wide"] == 1).all())
        """
    said = run_script(script).splitlines()
    assert said == ["no 253755392 bytes f", "True", *["no 253755392 bytes f"] * 2, "True True"]


def test_a_check_of_a_store_that_is_closed_meanwhile_ends(tmp_path: Path) -> None:
    with BlockStore.create(
        tmp_path / "s", [Plane("a", 1, is_head=True)], block_rows=1, threads=2
    ) as store:
        store.write(range(1100), {"a": np.ones((1100, 1), "f4")})
        with pytest.raises(ClosedError, match="the store was closed meanwhile"):
            store.verify(lambda *_: store.close())


def test_a_child_process_is_refused_and_harms_nothing(
    store: BlockStore, run_script: Callable[..., str]
) -> None:
    store.close()
    script = f"""
        import os, warnings
        import numpy as np
        from gs_pinned import BlockStore, ForkedError
        warnings.simplefilter("ignore")  # of a process with threads that forks
        store = BlockStore.open({str(store.path)!r})
        values = {{plane.name: np.ones((8, plane.width), plane.dtype) for plane in store.planes}}
        store.write([0], values)
        ticket = store.write_async([1], values)
        child = os.fork()
        if child == 0:
            try:
                store.read([0])
            except ForkedError:
                try:
                    ticket.wait()
                except ForkedError:
                    store.close()
                    del store, ticket
                    os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        ticket.wait()
        store.snapshot()
        """
    assert run_script(script) == "7\n"
    with BlockStore.open(store.path) as again:
        assert again.blocks == [0, 1]
        assert (again.read([0, 1])["head"] == 1).all()


def test_a_store_that_was_closed_has_other_writers_though_a_child_lives(
    store: BlockStore, run_script: Callable[..., str]
) -> None:
    store.close()
    script = f"""
        import os, warnings
        from gs_pinned import BlockStore
        warnings.simplefilter("ignore")  # of a process with threads that forks
        store = BlockStore.open({str(store.path)!r})
        get, put = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(put)
            os.read(get, 1)
            os._exit(0)
        store.close()
        with BlockStore.open({str(store.path)!r}) as again:
            print(again.is_read_only)
        os.close(put)
        os.waitpid(child, 0)
        """
    assert run_script(script) == "False\n"


def test_a_wait_has_a_limit_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    interrupts, released = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below nohup

    def hear(name: str, path: str, *_: object) -> int:
        if name == "read" and "/seg-" in path:
            interrupts.wait()
            os.kill(os.getpid(), signal.SIGINT)
            released.wait()
        return 0

    with BlockStore.create(
        tmp_path / "s", PLANES, block_rows=BLOCK_ROWS, threads=1, on_call=hear
    ) as store:
        store.write(range(BLOCKS), rows_of(1))
        ticket = store.read_async([0])

        def wait() -> None:
            interrupts.set()
            ticket.wait(timeout_s=600)

        try:
            with pytest.raises(TimeoutError, match="the blocks were not there in time"):
                ticket.wait(timeout_s=0)
            assert not ticket.is_done
            with pytest.raises(KeyboardInterrupt):
                wait()
        finally:
            interrupts.set()
            released.set()
            signal.signal(signal.SIGINT, before)
        assert equal(ticket.wait(), rows_of(1, BLOCK_ROWS))


def test_of_two_creations_at_once_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def hear(name: str, *_: object) -> int:
        if name == "lock":
            with BlockStore.create(path, PLANES, block_rows=BLOCK_ROWS) as first:
                first.write(range(BLOCKS), rows_of(1))
                first.snapshot()
        return 0

    with pytest.raises(ValueError, match="path must be free for a new store"):
        BlockStore.create(path, [Plane("other", 1)], on_call=hear)
    with BlockStore.open(path) as store:
        assert equal(store.read(range(BLOCKS)), rows_of(1))


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_segment_of_an_older_snapshot_must_be_there_to_write(
    tmp_path: Path, is_lost: bool
) -> None:
    path = tmp_path / "s"
    with BlockStore.create(
        path,
        PLANES,
        block_rows=BLOCK_ROWS,
        segment_bytes=(1 + RECORD_PAGES * BLOCKS) * 4096,  # the newer rows have a file of their own
    ) as store:
        for seed in (1, 2):
            store.write(range(BLOCKS), rows_of(seed))
            store.snapshot(keep=2)
    older = path / "seg-000000"
    if is_lost:
        older.unlink()
    else:
        os.truncate(older, 4096)
    message = "seg-000000 " + ("is missing" if is_lost else "must have 13 pages .* got 1")
    with pytest.raises(StoreCorruptError, match=message):
        BlockStore.open(path)
    with BlockStore.open(path, read_only=True) as reader:
        assert equal(reader.read(range(BLOCKS)), rows_of(2))
    (path / "snap-0000000001").unlink()  # what needs the file
    with BlockStore.open(path) as store:
        for seed in range(3, 9):
            store.write(range(BLOCKS), rows_of(seed))
            store.snapshot()
        assert equal(store.read(range(BLOCKS)), rows_of(8))


def test_a_file_must_hold_the_pages_that_a_record_leaves_empty(tmp_path: Path) -> None:
    path = tmp_path / "s"
    width = 32 * 1024
    with BlockStore.create(path, [Plane("wide", width)], block_rows=1) as store:
        store.write([0], {"wide": np.ones((1, width), "f4")})
        store.snapshot()
    with BlockStore.open(path) as store:
        assert store.stats.live_bytes == 34 * 4096  # for a record of 33 pages
        store.write([0], {"wide": np.zeros((1, width), "f4")})
    os.truncate(path / "seg-000000", 34 * 4096)
    with pytest.raises(StoreCorruptError, match="must have 35 pages of 4096 bytes, got 34"):
        BlockStore.open(path)


def test_only_files_of_the_store_are_tidied_away(store: BlockStore) -> None:
    store.close()
    for name in ("notes.tmp", "snap-0000000009.tmp", "STORE.tmp"):
        (store.path / name).touch()
    (store.path / "LOCK").unlink()
    with BlockStore.open(store.path):
        names = {path.name for path in store.path.iterdir()}
    assert names == {"LOCK", "STORE", "snap-0000000000", "notes.tmp"}


def test_without_direct_transfers_records_pass_the_page_cache(tmp_path: Path) -> None:
    def hear(name: str, path: str, source: str, offset: int, is_direct: object) -> int:
        return -errno.EINVAL if name in {"open", "create"} and is_direct else 0

    with pytest.warns(BufferedWarning, match="has no direct transfers"):
        store = BlockStore.create(tmp_path / "s", PLANES, block_rows=BLOCK_ROWS, on_call=hear)
    with store:
        assert not store.is_direct
        store.write(range(BLOCKS), rows_of(1))
        store.snapshot()
        assert store.verify().is_intact
    with BlockStore.open(tmp_path / "s") as again:
        assert equal(again.read(range(BLOCKS)), rows_of(1))


def test_whatever_threads_do_a_block_is_whole(store: BlockStore) -> None:
    failures: list[str] = []
    written: list[Rows] = [{} for _ in range(BLOCKS)]
    ended = threading.Event()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Exception as error:
                failures.append(repr(error))
                raise

        return run

    def writer(block: int) -> Callable[[], None]:
        def work() -> None:
            for seed in range(30):
                values = rows_of(100 * block + seed, 1 + seed % BLOCK_ROWS)
                store.write_async([block], rows_of(7, 5), [5])  # dropped; the next call wins
                store.write([block], values, [len(values["head"])], step=seed)
                if not equal(store.read([block]), values):
                    failures.append(f"block {block}, seed {seed}")
                written[block] = values

        return work

    def observe() -> None:
        while not ended.is_set():
            failures.extend(store.verify().problems)
            for block in store.blocks:
                try:
                    store.read_async([block], ["head"])
                except ValueError as error:  # its rows changed between two calls
                    if "another thread writes it" not in str(error):
                        raise
            assert store.stats.blocks <= BLOCKS

    def cut() -> None:
        while not ended.is_set():
            store.snapshot(keep=2)

    others = [threading.Thread(target=guarded(work)) for work in (observe, cut)]
    writers = [threading.Thread(target=guarded(writer(block))) for block in range(BLOCKS)]
    for thread in (*others, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in others:
        thread.join()
    assert failures == []
    store.snapshot()
    store.close()
    with BlockStore.open(store.path) as again:
        for block in range(BLOCKS):
            assert equal(again.read([block]), written[block])


def test_a_store_whose_files_cannot_be_listed_is_not_opened(store: BlockStore) -> None:
    store.snapshot(b"newest")
    store.close()

    def hear(name: str, *_: object) -> int:
        return -errno.EIO if name == "list" else 0

    with pytest.raises(OSError, match=r"list of .*store: Input/output error"):
        BlockStore.open(store.path, on_call=hear)


def test_a_new_file_that_cannot_be_synced_ends_all_writing(tmp_path: Path) -> None:
    armed: list[bool] = []

    def hear(name: str, *_: object) -> int:
        return -errno.EIO if name == "sync" and armed and armed.pop() else 0

    with BlockStore.create(
        tmp_path / "s", PLANES, block_rows=BLOCK_ROWS, threads=1, on_call=hear
    ) as store:
        armed.append(True)
        with pytest.raises(OSError, match="block 0 of step 7 was not written: fdatasync"):
            store.write([0], rows_of(1, BLOCK_ROWS), step=7)
        with pytest.raises(StoreReadOnlyError, match="cannot be written: fdatasync"):
            store.write([0], rows_of(1, BLOCK_ROWS))
