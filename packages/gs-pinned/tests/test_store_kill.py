# SPDX-License-Identifier: Apache-2.0
"""A process that kill -9 ends, at any call of the system or at any time, leaves a snapshot."""

from collections.abc import Callable
from pathlib import Path

import pytest

# The writer, a fork that kills itself at a random call while its other threads go on, tells of
# each snapshot through a pipe, before and after. Every run goes on where the last one ended. With
# `timed` its parent kills it instead, some time after its first snapshot, between calls too.
SCRIPT = """
import os, random, signal, sys, time
import numpy as np
from gs_pinned import BlockStore, Plane

sys.path.insert(0, {tests!r})
from repeated_columns import repeated

PLANES = [Plane("head", 2, is_head=True), Plane("tail", 40)]
ROWS, BLOCKS = 32, 12
path, kills, seed, timed = {path!r}, {kills}, {seed}, {timed}
choice = random.Random(seed)


def rows_of(number, block):
    values = np.random.default_rng((number, block)).standard_normal((ROWS, 42), dtype="f4")
    head, tail = values[:, :2].copy(), values[:, 2:].copy()
    # Half of the records have columns that take no room, in their place others were and will be.
    return {{"head": head, "tail": repeated(tail, number) if (number + block) % 2 else tail}}


def joined(number, blocks):
    parts = [rows_of(number, block) for block in blocks]
    return {{name: np.concatenate([part[name] for part in parts]) for name in parts[0]}}


# Snapshot n holds the rows of number `last_of(n)[block]` in each block.
def blocks_of(number):
    return random.Random(number).sample(range(BLOCKS), random.Random(-number).randint(1, BLOCKS))


def last_of(n):
    return {{block: number for number in range(1, n + 1) for block in blocks_of(number)}}


def write(calls_left, pipe):
    def hear(*_):
        nonlocal calls_left
        calls_left -= 1
        if calls_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    # Nothing of Python runs in the threads that move rows of a child that is killed at any time.
    store = BlockStore.open(path, threads=4, **({{}} if timed else {{"on_call": hear}}))
    n = int(store.state or b"0")
    while True:
        n += 1
        blocks = blocks_of(n)
        store.write(blocks, joined(n, blocks), step=n)
        os.write(pipe, f"{{n}} ".encode())
        store.snapshot(str(n).encode(), keep=n % 2 + 1)
        os.write(pipe, f"-{{n}} ".encode())


BlockStore.create(path, PLANES, block_rows=ROWS, segment_bytes=1 << 18).close()
made = moved = 0
for _ in range(kills):
    calls_left = choice.randint(1, 150)
    get, put = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(get)
        try:
            write(calls_left, put)
        finally:
            os._exit(3)
    os.close(put)
    text = b""
    while timed and b"-" not in text:
        text += os.read(get, 64)
    if timed:
        time.sleep(choice.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
    text += os.fdopen(get, "rb").read()
    told = [int(word) for word in text.split()]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == -signal.SIGKILL, status
    done = max([made, *(-word for word in told)])
    begun = max([done, *told])
    with BlockStore.open(path, read_only=True, threads=1) as store:
        number = int(store.state or b"0")
        assert done <= number <= begun, (done, number, begun)
        expected = last_of(number)
        assert store.blocks == sorted(expected)
        assert store.verify().is_intact
        for block, last in expected.items():
            for name, array in rows_of(last, block).items():
                assert store.read([block], [name])[name].tobytes() == array.tobytes()
    moved += number > made
    made = number
print(moved)
"""


def kill(
    run_script: Callable[..., str], path: Path, kills: int, seed: int, *, timed: bool = False
) -> int:
    """Returns how many of the kills found a newer snapshot than the kill before."""
    tests = str(Path(__file__).parent)
    store = str(path / "store")
    script = SCRIPT.format(path=store, kills=kills, seed=seed, timed=timed, tests=tests)
    return int(run_script(script))


def test_a_killed_process_leaves_a_snapshot(tmp_path: Path, run_script: Callable[..., str]) -> None:
    assert kill(run_script, tmp_path, 16, 1) > 4


def test_a_process_that_is_killed_at_any_time_leaves_a_snapshot(
    tmp_path: Path, run_script: Callable[..., str]
) -> None:
    assert kill(run_script, tmp_path, 8, 2, timed=True) == 8


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_1000_kills_leave_a_snapshot(
    tmp_path: Path, run_script: Callable[..., str], seed: int
) -> None:
    assert kill(run_script, tmp_path, 100, 100 + seed) > 25


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_1000_kills_at_any_time_leave_a_snapshot(
    tmp_path: Path, run_script: Callable[..., str], seed: int
) -> None:
    assert kill(run_script, tmp_path, 250, 200 + seed, timed=True) == 250
