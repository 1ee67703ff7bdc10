# SPDX-License-Identifier: Apache-2.0
"""A drive that errs, fills or does half, at each call of the system in turn."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gs_pinned import BlockStore, Plane, StoreReadOnlyError

from .repeated_columns import repeated

PLANES = [Plane("head", 2, is_head=True), Plane("tail", 40)]
BLOCK_ROWS = 32
BLOCKS = 4

Rows = dict[str, np.ndarray[Any, Any]]


def rows_of(seed: int) -> Rows:
    """Columns of even seeds repeat themselves."""
    values = np.random.default_rng(seed).standard_normal((BLOCKS * BLOCK_ROWS, 42), dtype="f4")
    head, tail = values[:, :2].copy(), values[:, 2:].copy()
    return {"head": head, "tail": tail if seed % 2 else repeated(tail, seed)}


def test_records_of_these_rows_have_two_sizes(tmp_path: Path) -> None:
    """Else the tests below would have rows that are stored as they are alone."""
    sizes = []
    for seed in (1, 2):
        path = tmp_path / f"{seed}"
        with BlockStore.create(path, PLANES, block_rows=BLOCK_ROWS) as store:
            store.write(range(BLOCKS), rows_of(seed))
            sizes.append(store.stats.live_bytes)
    assert sizes[0] > sizes[1]


def same(store: BlockStore, seed: int) -> bool:
    expected = rows_of(seed)
    return all(
        array.tobytes() == expected[name].tobytes()
        for name, array in store.read(range(BLOCKS)).items()
    )


class Drive:
    """Fails the call with a number, or the next with a name."""

    def __init__(self, at: int = -1, code: int = 0) -> None:
        self.at = at
        self.code = code
        self.name = ""
        self.calls: list[str] = []

    def fail_next(self, name: str, code: int) -> None:
        self.name, self.code = name, code

    def hear(self, name: str, path: str, source: str, offset: int, data: bytes | int) -> int:
        self.calls.append(name)
        if len(self.calls) - 1 == self.at:
            return -self.code
        if name == self.name:
            self.name = ""
            return -self.code
        return 0


def run(path: Path, hear: Any, code: int = 0) -> int:
    """Two snapshots, the second over the first, and reads. Returns the snapshots that were made;
    ends where a call fails, with that code."""
    done = -1
    try:
        # One thread: calls then come in one order. Small segments: there are several.
        with BlockStore.create(
            path,
            PLANES,
            block_rows=BLOCK_ROWS,
            segment_bytes=13 * 4096,
            threads=1,
            on_call=hear,
        ) as store:
            done = 0
            for seed in (1, 2):
                store.write(range(BLOCKS), rows_of(seed), step=seed)
                store.snapshot(str(seed).encode())
                done = seed
                assert same(store, seed)
        with BlockStore.open(path, threads=1, on_call=hear) as store:
            assert same(store, 2)
    except OSError as error:
        if error.errno != code or os.fspath(path.parent) not in str(error):
            raise
    return done


def calls_of_a_run(path: Path) -> list[str]:
    drive = Drive()
    assert run(path, drive.hear) == 2
    return drive.calls


def fail_calls(folder: Path, code: int, first: int, step: int) -> None:
    calls = calls_of_a_run(folder / "whole")
    assert {"create", "open", "read", "write", "allocate", "sync", "rename", "remove"} < set(calls)
    for at in range(first, len(calls), step):
        path = folder / f"store-{at}"
        done = run(path, Drive(at, code).hear, code)
        try:
            store = BlockStore.open(path, threads=1)
        except FileNotFoundError:
            assert done < 0
            continue
        with store:
            number = int(store.state or b"0")
            assert number in {max(done, 0), done + 1}
            assert number == 0 or same(store, number)
            assert store.verify().is_intact
            store.write(range(BLOCKS), rows_of(3))
            store.snapshot(b"3")
        with BlockStore.open(path, threads=1) as store:
            assert store.state == b"3"
            assert same(store, 3)


@pytest.mark.parametrize(("code", "first"), [(errno.EIO, 2), (errno.ENOSPC, 5)])
def test_a_call_that_fails_leaves_a_snapshot(tmp_path: Path, code: int, first: int) -> None:
    fail_calls(tmp_path, code, first, 6)


@pytest.mark.long
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_each_call_that_fails_leaves_a_snapshot(tmp_path: Path, code: int) -> None:
    fail_calls(tmp_path, code, 0, 1)


def test_short_reads_and_writes_are_continued(tmp_path: Path) -> None:
    short = []

    def hear(name: str, path: str, source: str, offset: int, data: bytes | int) -> int:
        if name not in {"read", "write"}:
            return 0
        short.append(name)
        # Past the page cache a drive moves whole sectors, which may be of 4096 bytes.
        return 4096 if "/seg-" in path else 100

    assert run(tmp_path / "s", hear) == 2
    assert len(short) > 60


@pytest.mark.parametrize("name", ["sync", "sync_folder"])
def test_a_failed_sync_ends_all_writing_but_no_reading(tmp_path: Path, name: str) -> None:
    drive = Drive()
    with BlockStore.create(
        tmp_path / "s", PLANES, block_rows=BLOCK_ROWS, on_call=drive.hear
    ) as store:
        store.write(range(BLOCKS), rows_of(1))
        store.snapshot(b"1")
        store.write(range(BLOCKS), rows_of(2))
        drive.fail_next(name, errno.EIO)
        with pytest.raises(OSError, match="snapshot 2 was not made: f"):
            store.snapshot(b"2")
        refusal = r"cannot be written: f.*Input/output error"
        with pytest.raises(StoreReadOnlyError, match=refusal):
            store.write(range(BLOCKS), rows_of(1))
        with pytest.raises(StoreReadOnlyError, match=refusal):
            store.snapshot()
        assert same(store, 2)
    with BlockStore.open(tmp_path / "s") as store:
        number = int(store.state)
        assert number in ({1} if name == "sync" else {1, 2})
        assert same(store, number)


@pytest.mark.parametrize("name", ["create", "write", "rename"])
def test_a_snapshot_that_fails_otherwise_can_be_made_again(tmp_path: Path, name: str) -> None:
    drive = Drive()
    with BlockStore.create(
        tmp_path / "s", PLANES, block_rows=BLOCK_ROWS, on_call=drive.hear
    ) as store:
        store.write(range(BLOCKS), rows_of(1))
        drive.fail_next(name, errno.ENOSPC)
        with pytest.raises(OSError, match=r"snapshot 1 was not made: .*No space left") as raised:
            store.snapshot(b"1")
        assert raised.value.errno == errno.ENOSPC
        store.write(range(BLOCKS), rows_of(2))
        assert store.snapshot(b"2") == 1
        assert store.stats.dead_bytes == 0
    with BlockStore.open(tmp_path / "s") as store:
        assert same(store, 2)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("name", ["write", "allocate", "create"])
def test_a_block_whose_write_failed_keeps_its_rows_and_holds_snapshots_up(
    tmp_path: Path, name: str, code: int
) -> None:
    drive = Drive()
    with BlockStore.create(
        tmp_path / "s",
        PLANES,
        block_rows=BLOCK_ROWS,
        segment_bytes=13 * 4096,  # four blocks: the second rows need a new file
        on_call=drive.hear,
    ) as store:
        store.write(range(BLOCKS), rows_of(1), step=1)
        store.snapshot(b"1")
        drive.fail_next(name, code)
        with pytest.raises(OSError, match=r"block \d of step 2 was not written: ") as raised:
            store.write(range(BLOCKS), rows_of(2), step=2)
        assert raised.value.errno == code
        assert "/seg-00000" in str(raised.value.filename)
        block = int(str(raised.value).split("block ")[1][0])
        rows = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        np.testing.assert_array_equal(store.read([block])["tail"], rows_of(1)["tail"][rows])
        with pytest.raises(StoreReadOnlyError, match=rf"write block {block} again \(block {block}"):
            store.snapshot()
        store.write([block], {name: array[rows] for name, array in rows_of(2).items()})
        store.snapshot(b"2")
    with BlockStore.open(tmp_path / "s") as store:
        assert same(store, 2)


def test_an_exception_in_the_listener_fails_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda problem: seen.append(problem.exc_value))

    def hear(*_: object) -> int:
        raise KeyError("what")

    with pytest.raises(OSError, match="Input/output error"):
        BlockStore.create(tmp_path / "s", PLANES, on_call=hear)
    assert isinstance(seen[0], KeyError)
