# SPDX-License-Identifier: Apache-2.0
"""A cache whose drive errs, fills, or is slow."""

import errno
import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gs_pinned import StoreCorruptError, StoreReadOnlyError

from .cached_blocks import CachedBlocks, Gate, read_ahead


class Drive:
    """Fails all transfers of rows of one kind while it is broken, or the call with a number."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.broken = ""
        self.n_calls = 0
        self.at = -1

    def hear(self, name: str, path: str, *_: object) -> int:
        self.n_calls += 1
        is_hit = self.n_calls - 1 == self.at or (name == self.broken and "/seg-" in path)
        return -self.code if is_hit else 0


def wander(made: CachedBlocks, n_steps: int) -> None:
    for k in range(n_steps):
        made.step([(5 * k + j) % len(made.rows) for j in range(3)])


def until_it_goes(call: Callable[[], object], code: int) -> None:
    """Make a call again that fails because of an earlier transfer."""
    for _ in range(99):
        try:
            call()
        except OSError as error:
            if error.errno != code:
                raise
        else:
            return
    raise AssertionError("the call never succeeds")


@pytest.mark.parametrize(
    ("broken", "code", "message"),
    [
        ("write", errno.ENOSPC, "was not written: write of .*seg-000000.*No space left on device"),
        ("read", errno.EIO, "was not read: read of .*seg-000000.*Input/output error"),
    ],
)
def test_a_drive_that_errs_is_told_and_loses_nothing(
    tmp_path: Path, broken: str, code: int, message: str
) -> None:
    drive = Drive(code)
    made = CachedBlocks(tmp_path / "s", 20, 4, 6, on_call=drive.hear)
    wander(made, 4)
    drive.broken = broken
    with pytest.raises(OSError, match=message):
        wander(made, 20)
    made.check_saved()
    drive.broken = ""
    until_it_goes(made.snapshot, code)
    made.check_saved()
    wander(made, 20)
    made.snapshot()
    made.check_saved()
    made.close()


def test_a_block_is_not_dropped_before_its_write_has_ended(tmp_path: Path) -> None:
    gate = Gate("write")
    made = CachedBlocks(tmp_path / "s", 20, 3, 8, on_call=gate.hear)
    for block in range(7):
        made.step([block])
    read_ahead(made, 7)
    gate.close()
    made.step([7])  # the fifth changed block comes into memory, so the first is being written
    read_ahead(made, 18)
    made.cache.hint([18, 17], [0, 1])
    made.cache.fetch([17])
    made.bring([0])
    gate.open()
    made.close()


def test_places_that_a_snapshot_holds_push_no_block_out_before_a_read_needs_room(
    tmp_path: Path,
) -> None:
    gate = Gate("write")
    made = CachedBlocks(tmp_path / "s", 20, 2, 8, on_call=gate.hear)
    made.step([0])
    made.cache.fetch(range(1, 8))
    while made.cache.stats.read < 8:
        made.cache.fetch([])
    gate.close()
    made.begin_snapshot()
    made.cache.fetch([])
    assert made.cache.stats.dropped == 0
    gate.open()
    made.end_snapshot()
    made.check_saved()
    made.close()


def test_a_place_is_not_given_away_before_the_write_from_it_has_ended(tmp_path: Path) -> None:
    gate = Gate("read", "write")
    made = CachedBlocks(tmp_path / "s", 20, 3, 6, on_call=gate.hear, threads=1)
    for block in range(6):
        made.step([block])
    read_ahead(made, 6)
    gate.close()
    made.cache.fetch([19])  # which the drive does first
    made.step([6])  # the fourth changed block comes into memory, so the first is to be written
    made.bring([0])
    made.cache.release([0], changed=False)
    made.cache.expect([1])
    gate.open()
    for block in range(7, 19):
        made.step([block])
    made.bring([0])
    made.close()


def test_a_snapshot_holds_no_change_that_came_later(tmp_path: Path) -> None:
    gate = Gate("write", most=1)
    made = CachedBlocks(tmp_path / "s", 28, 6, 20, on_call=gate.hear)
    for block in range(8):
        made.step([block])
    gate.close()
    made.begin_snapshot()
    # A step that finds no room waits for the oldest write, which may be the one that is held up: so
    # the others end first, and there are places enough.
    while made.store.stats.records_written < 28 + 8 - 1:
        pass
    # Changes that came later: in blocks that were in slots, in places, and never changed before.
    for block in (7, 2, 0, 9, 10, 11, 12, 13, 14, 15, 16, 3, 4):
        made.step([block])
    gate.open()
    made.end_snapshot()
    made.check_saved()
    made.snapshot()
    made.check_saved()
    made.close()


def test_who_waits_for_a_snapshot_keeps_nobody_waiting(tmp_path: Path) -> None:
    gate = Gate("write")
    made = CachedBlocks(tmp_path / "s", 20, 6, 9, on_call=gate.hear)
    made.step([0, 1])
    gate.close()
    made.begin_snapshot()
    waiting = threading.Thread(target=made.end_snapshot)
    waiting.start()
    stepping = threading.Thread(target=made.step, args=([1, 2],))
    stepping.start()
    try:
        stepping.join(300.0)
        assert not stepping.is_alive()
        assert waiting.is_alive()
    finally:
        gate.open()
        waiting.join()
        stepping.join()
    made.check_saved()
    made.close()


def test_a_failure_that_a_snapshot_met_is_told(tmp_path: Path) -> None:
    """Of a read, by the next call."""
    gate, drive = Gate("read"), Drive(errno.EIO)

    def hear(name: str, path: str, *rest: object) -> int:
        return gate.hear(name, path, *rest) or drive.hear(name, path, *rest)

    # One thread: the read ends before the snapshot's writes do.
    made = CachedBlocks(tmp_path / "s", 20, 6, 9, on_call=hear, threads=1)
    made.step([0, 1])
    drive.broken = "read"
    gate.close()
    made.cache.fetch([9])
    made.begin_snapshot()
    gate.open()
    made.end_snapshot()
    with pytest.raises(OSError, match="was not read"):
        made.cache.fetch([])
    drive.broken = ""
    made.check_saved()
    made.step([9])
    made.close()


def test_a_snapshot_that_fails_leaves_the_older_one_and_loses_no_change(tmp_path: Path) -> None:
    drive = Drive(errno.ENOSPC)
    made = CachedBlocks(tmp_path / "s", 20, 6, 9, on_call=drive.hear)
    made.step([0, 1, 2])
    drive.broken = "write"
    made.begin_snapshot()
    with pytest.raises(OSError, match="was not written"):
        made.end_snapshot()
    drive.broken = ""
    made.check_saved()
    until_it_goes(functools.partial(made.step, [1, 2, 3]), errno.ENOSPC)
    made.snapshot()
    made.check_saved()
    made.close()


def test_a_snapshot_without_a_thread_fails_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    made.step([0, 1])

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        made.snapshot()
    monkeypatch.undo()
    made.snapshot()
    made.check_saved()
    made.close()


def test_a_damaged_record_is_named_and_other_blocks_go_on(tmp_path: Path) -> None:
    made = CachedBlocks(tmp_path / "s", 12, 4, 4)
    segment = tmp_path / "s" / "seg-000000"
    data = bytearray(segment.read_bytes())
    at = data.index(made.rows[7]["key"].tobytes(), 4096)
    data[at] ^= 1
    segment.write_bytes(data)
    made.bring([3, 4])
    with pytest.raises(StoreCorruptError, match=r"block 7 .* is damaged"):
        made.cache.bring([6, 7])
    made.change([3, 4])
    made.step([6, 8])
    with pytest.raises(StoreCorruptError, match="block 7"):
        made.cache.bring([7])
    made.close()


def run(path: Path, drive: Drive, at: int) -> None:
    """Steps and snapshots, where the call of the system with a number fails, from the start on."""
    made = CachedBlocks(path, 9, 2, 3, on_call=drive.hear, threads=1, segment_bytes=1 << 16)
    first = drive.n_calls
    drive.at = first + at
    try:
        for k in range(12):
            blocks = [k % 9, (k + 4) % 9]
            until_it_goes(functools.partial(made.bring, blocks), drive.code)
            made.change(blocks)
            if k % 5 == 2:
                until_it_goes(made.begin_snapshot, drive.code)
        until_it_goes(made.snapshot, drive.code)
    except StoreReadOnlyError:
        pass  # after a failed sync
    finally:
        made.close()
    made.check_saved()
    drive.n_calls -= first


def fail_calls(path: Path, code: int, every: int) -> None:
    """`run`, once for each of some calls."""
    whole = Drive(code)
    run(path / "whole", whole, -1)
    for at in range(code % every, whole.n_calls, every):
        run(path / f"{at}", Drive(code), at)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_whichever_call_fails_no_change_is_lost(tmp_path: Path, code: int) -> None:
    fail_calls(tmp_path, code, 15)


@pytest.mark.long
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_each_call_may_fail_and_no_change_is_lost(tmp_path: Path, code: int) -> None:
    fail_calls(tmp_path, code, 1)
