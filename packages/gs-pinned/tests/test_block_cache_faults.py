# SPDX-License-Identifier: Apache-2.0
"""A cache whose drive errs or fills, that is interrupted, or whose process is killed."""

import errno
import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gs_pinned import Signal, StoreCorruptError, StoreReadOnlyError, block_saving, block_slots

from .cached_blocks import CachedBlocks


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


class Gate:
    """Holds transfers of some kinds up while it is closed, at most so many."""

    def __init__(self, *names: str, most: int = 99) -> None:
        self._names = names
        self._left = most
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        self._is_open.set()
        self.open, self.close = self._is_open.set, self._is_open.clear

    def hear(self, name: str, path: str, *_: object) -> int:
        if name in self._names and "/seg-" in path and not self._is_open.is_set():
            with self._lock:
                self._left -= 1
            if self._left >= 0:
                self._is_open.wait()
        return 0


def read_ahead(made: CachedBlocks, block: int) -> None:
    n_read = made.cache.stats.read
    made.cache.fetch([block])
    while made.cache.stats.read == n_read:
        made.cache.fetch([])  # takes note of what has ended


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


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_ends_the_wait_and_the_call_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, released = threading.Event(), threading.Event()

    def hear(name: str, path: str, *_: object) -> int:
        if name == "read" and "/seg-" in path and not released.is_set():
            waits.wait()
            os.kill(os.getpid(), signal.SIGINT)
            released.wait()
        return 0

    def wait() -> bool:
        waits.set()
        return wait_for_transfers()

    made = CachedBlocks(tmp_path / "s", 9, 2, 3, on_call=hear, threads=1)
    wait_for_transfers = made.cache._traffic.wait
    monkeypatch.setattr(made.cache._traffic, "wait", wait)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below nohup
    try:
        with pytest.raises(KeyboardInterrupt):
            made.bring([4, 5])
    finally:
        released.set()
        signal.signal(signal.SIGINT, before)
    made.step([4, 5])
    made.snapshot()
    made.check_saved()
    made.close()


def test_an_interrupt_amid_a_change_ends_the_cache_and_not_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    made.step([0, 1])
    made.snapshot()
    monkeypatch.setattr(block_slots, "exchange", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.cache.bring([4])
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="open the store at its last snapshot"):
        made.cache.bring([0])
    made.check_saved()
    made.close()


def test_an_interrupted_cache_stays_unusable_whatever_ends_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate("write")
    made = CachedBlocks(tmp_path / "s", 9, 2, 5, on_call=gate.hear)
    made.step([0, 1])
    gate.close()
    made.begin_snapshot()
    read_ahead(made, 4)
    monkeypatch.setattr(block_slots, "exchange", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.cache.bring([4])
    monkeypatch.undo()
    gate.open()
    made.end_snapshot()
    made.check_saved()
    with pytest.raises(RuntimeError, match="open the store at its last snapshot"):
        made.cache.bring([0])
    made.close()


@pytest.mark.parametrize("name", ["read_async", "write_async"])
def test_a_transfer_that_is_interrupted_as_it_begins_ends_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    made.step([0, 1])
    begin = getattr(made.store, name)

    def begin_and_interrupt(*args: object, **options: object) -> None:
        begin(*args, **options)
        raise KeyboardInterrupt

    calls: dict[str, Callable[[], object]] = {
        "read_async": lambda: made.cache.bring([4]),
        "write_async": made.cache.snapshot,
    }
    monkeypatch.setattr(made.store, name, begin_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        calls[name]()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="open the store at its last snapshot"):
        made.cache.bring([0])
    made.check_saved()
    made.close()


def test_a_snapshot_that_is_interrupted_as_its_thread_starts_ends_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.cache.snapshot()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="open the store at its last snapshot"):
        made.step([0, 1])
    made.check_saved()
    made.close()


def test_a_snapshot_that_is_interrupted_before_it_is_made_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    made.step([0, 1])
    ticket = made.cache.snapshot_async()
    monkeypatch.setattr(block_saving.Saving, "note", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ticket.wait()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="the snapshot was interrupted before"):
        ticket.wait()
    made.close()


def test_a_move_that_is_interrupted_keeps_no_close_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    monkeypatch.setattr(Signal, "set_on", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.cache.bring([4])
    monkeypatch.undo()
    made.close()


def test_a_close_that_is_interrupted_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = CachedBlocks(tmp_path / "s", 9, 2, 3)
    made.step([0, 1])
    monkeypatch.setattr(made.cache._traffic, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.cache.close()
    monkeypatch.undo()
    made.snapshot()
    made.check_saved()
    made.close()
    assert repr(made.cache) == "BlockCache(closed)"


FORK = """
import os
import numpy as np
from gs_pinned import BlockCache, BlockStore, ForkedError, Plane

store = BlockStore.create({path!r}, [Plane("w", 1)], block_rows=2)
store.write([0, 1], {{"w": np.ones((4, 1), "f4")}})
cache = BlockCache(store, {{"w": np.zeros((2, 1), "f4")}}, host_blocks=2)
cache.release(cache.bring([0]))
ticket = cache.snapshot_async()
child = os.fork()
if child == 0:
    try:
        try:
            cache.bring([1])
        except ForkedError:
            with store, cache:
                pass
            os._exit(0)
    finally:
        os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(ticket.wait())
cache.close()
"""


def test_a_child_process_leaves_the_cache_alone(
    tmp_path: Path, run_script: Callable[..., str]
) -> None:
    assert int(run_script(FORK.format(path=str(tmp_path / "s")))) == 1


# A fork trains with scripted changes and kills itself at a random call; the next goes on from the
# snapshot. The last one leaves what one that is never killed leaves.
SCRIPT = """
import os, random, signal
import numpy as np
from gs_pinned import BlockCache, BlockStore, Plane

B, BLOCKS, STEPS = 8, 30, {steps}
PLANES = [Plane("head", 2, is_head=True), Plane("tail", 40), Plane("step", 1, "int32")]
choice = random.Random({seed})


def train(path, calls_left):
    def hear(*_):
        nonlocal calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    store = BlockStore.open(path, threads=3, on_call=hear)
    arrays = {{p.name: np.zeros((6 * B, p.width), p.dtype) for p in PLANES}}
    with BlockCache(store, arrays, host_blocks=5) as cache:
        for step in range(int(store.state or b"0"), STEPS):
            blocks = random.Random(step).sample(range(BLOCKS), 4)
            following = random.Random(step + 1).sample(range(BLOCKS), 4)
            slots = cache.bring(blocks)
            cache.hint(following, [step + 1] * 4)
            cache.expect(following)
            for slot in slots:
                mine = slice(slot * B, slot * B + B)
                arrays["head"][mine] += np.float32(step) / 3
                arrays["tail"][mine] *= np.float32(1.01)
                if step % 5 == 4:  # zeros become ones, so that all columns are equal
                    arrays["tail"][mine, 4:] += np.float32(1.0)
                arrays["step"][mine] = step
            cache.release(blocks, step=step)
            if step % 7 == 6:
                cache.snapshot(str(step + 1).encode(), keep=1 + step % 2)
        cache.snapshot(str(STEPS).encode())
    store.close()


def make(path):
    with BlockStore.create(path, PLANES, block_rows=B, segment_bytes=1 << 17) as store:
        random_ = np.random.default_rng(1)
        n = B * BLOCKS
        tail = random_.standard_normal((n, 40), dtype="f4")
        tail[: n // 2, 4:] = 0.0  # columns of the first blocks take no room
        store.write(range(BLOCKS), {{
            "head": random_.standard_normal((n, 2), dtype="f4"),
            "tail": tail,
            "step": np.zeros((n, 1), "i4"),
        }})
        store.snapshot(b"0")
    return path


def rows(path):
    with BlockStore.open(path, read_only=True) as store:
        assert store.verify().is_intact
        return store.read(range(BLOCKS))


path = make({path!r} + "killed")
kills = 0
while True:
    child = os.fork()
    if child == 0:
        try:
            train(path, choice.randint(30, 400))
            os._exit(0)
        finally:
            os._exit(3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    if status == 0:
        break
    kills += 1
whole = make({path!r} + "whole")
train(whole, -1)
for name, array in rows(path).items():
    assert array.tobytes() == rows(whole)[name].tobytes(), name
print(kills)
"""


def test_a_run_that_is_killed_ends_as_one_that_is_not(
    tmp_path: Path, run_script: Callable[..., str]
) -> None:
    script = SCRIPT.format(steps=100, seed=1, path=str(tmp_path) + "/")
    assert int(run_script(script)) > 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_runs_that_are_killed_often_end_as_one_that_is_not(
    tmp_path: Path, run_script: Callable[..., str], seed: int
) -> None:
    script = SCRIPT.format(steps=1500, seed=10 + seed, path=str(tmp_path) + "/")
    assert int(run_script(script)) > 40
