# SPDX-License-Identifier: Apache-2.0
"""A cache that is interrupted, that a child process has too, or whose process is killed."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gs_pinned import Signal, block_saving, block_slots

from .cached_blocks import CachedBlocks, Gate, read_ahead


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
