# SPDX-License-Identifier: Apache-2.0
"""What ranks do together, in processes over gloo, and what a single rank does instead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import world_calls as calls
from world_workers import Workers, lines

from gs_train.errors import InputError
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.world import Alone, SharedStop, joined
from gs_train.world.standing import standing


class _Alone:
    """This process as the only rank, where others have workers."""

    size = 1

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [function(Alone(torch.device("cpu")), *arguments)]


Ranks = Workers | _Alone


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """All ranks of a world, that of one rank included."""
    if request.param == 1:
        yield _Alone()
        return
    with Workers(request.param) as workers:
        yield workers


def test_every_rank_knows_its_place(ranks: Ranks) -> None:
    size = ranks.size
    assert ranks.call(calls.place) == [(rank, size, "cpu") for rank in range(size)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0, 3)])
def test_integers_of_any_shape_are_gathered_by_rank(ranks: Ranks, shape: tuple[int, ...]) -> None:
    size = ranks.size
    row = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    expected = np.stack([row + 100 * rank for rank in range(size)])
    for gathered in ranks.call(calls.gather, shape):
        np.testing.assert_array_equal(gathered, expected)
        assert gathered.dtype == np.int64


def test_a_rank_that_is_alone_gets_copies_as_several_do() -> None:
    world = Alone(torch.device("cpu"))
    own = np.array([1, 2])
    gathered = world.gather(own)
    own[:] = 0
    assert gathered.tolist() == [[1, 2]]
    assert world.broadcast({1: (2, 3)}) == {"1": [2, 3]}


def test_numbers_that_are_no_integers_are_refused(ranks: Ranks) -> None:
    (message,) = set(ranks.call(calls.gather_halves))
    assert message == "values must be integers, got float64"


@pytest.mark.parametrize("width", [1, 9, 13])
@pytest.mark.parametrize("case", ["uneven", "one rank sends nothing", "one gets all", "nothing"])
def test_rows_arrive_by_rank_and_in_order(ranks: Ranks, width: int, case: str) -> None:
    size = ranks.size
    counts = np.random.default_rng(0).integers(0, 50, (size, size))
    if case == "one rank sends nothing":
        counts[0] = 0
    elif case == "one gets all":
        counts[:, 1:] = 0
    elif case == "nothing":
        counts[:] = 0
    for rank, received in enumerate(ranks.call(calls.exchange, counts, width)):
        words = [(r, rank, k) for r in range(size) for k in range(counts[r, rank])]
        expected = np.zeros((len(words), width), np.int32)
        expected[:, :3] = np.reshape(words, (-1, 3))[:, :width]
        np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize(
    ("recv", "send", "recv_rows", "send_rows", "message"),
    [
        ((2, 3), (2, 4), [2], [2], "recv must have send's width 4 and type torch.float32, got 3"),
        ((2, 3), (2, 3), [1], [2], r"recv_rows must be 1 counts that add up to the 2 rows"),
        ((2, 3), (2, 3), [2], [1, 1], r"send_rows must be 1 counts .* got \[1, 1\]"),
        ((2, 3), (2, 3), [2], [-2], r"send_rows must be 1 counts .* got \[-2\]"),
        ((2,), (2, 3), [2], [2], r"recv must be \(R, width\) and contiguous, got \(2,\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    recv: tuple[int, ...], send: tuple[int, ...], recv_rows: Any, send_rows: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Alone(torch.device("cpu")).all_to_all(
            torch.zeros(recv), torch.zeros(send), recv_rows, send_rows
        )


def test_sums_are_those_of_all_ranks(ranks: Ranks) -> None:
    size = ranks.size
    for total in ranks.call(calls.sum_of_ranks):
        np.testing.assert_array_equal(total, [size, sum(range(size))])


def test_every_rank_gets_the_value_of_the_root(ranks: Ranks) -> None:
    size = ranks.size
    value = {"views": ["é", "\udce9"], "cap": None, "rate": 0.1, "n": 2**60}
    for root in {0, size - 1}:
        for told, tensor in ranks.call(calls.broadcast, value, root):
            assert told == value
            assert (tensor == root).all()


def test_ranks_with_the_same_value_go_on(ranks: Ranks) -> None:
    values = [{"steps": 3, "seed": 1}, {"seed": 1, "steps": 3}, {"steps": 3, "seed": 1}]
    assert ranks.call(calls.agree, values) == [None] * ranks.size


def test_ranks_that_differ_all_end_with_one_line() -> None:
    with Workers(3) as workers:
        ends = workers.ends(calls.agree, [3, "four", 3])
    said = '--steps must be the same on all ranks, got 3 on ranks 0, 2; "four" on rank 1'
    assert [end.exit_status for end in ends] == [2] * 3
    assert lines(ends) == [f"gs-train: error: {said}"]


def test_ranks_share_the_cores_of_the_host(ranks: Ranks) -> None:
    allowed = os.sched_getaffinity(0)
    shares = [set(cores) for cores, _ in ranks.call(calls.threads)]
    if len(allowed) < ranks.size:
        assert all(share == allowed for share in shares)
    else:
        assert set.union(*shares) == allowed
        assert sum(map(len, shares)) == len(allowed)


def test_ranks_of_torchrun_compute_on_a_thread_a_core() -> None:
    """torchrun sets OMP_NUM_THREADS=1 where nobody has."""
    torchrun = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "a run"}
    with Workers(2, environment=torchrun) as workers:
        for cores, n_threads in workers.call(calls.threads):
            assert n_threads == len(cores)


def test_all_stop_after_the_same_step(ranks: Ranks) -> None:
    size = ranks.size
    assert ranks.call(calls.stop_after_step, size - 1, 5) == [2] * size


def test_a_request_that_came_after_the_gather_waits_for_the_next() -> None:
    own = StopRequest()
    stop = SharedStop(own)
    stop.take(np.array([[0], [0]]))
    own.signal_number = 2
    stop.check("training")
    stop.take(np.array([[0], [15]]))
    with pytest.raises(Interrupted, match="stopped during training") as stopped:
        stop.check("training")
    assert stopped.value.exit_status == 128 + 15


def test_ranks_that_are_stopped_together_leave_in_order() -> None:
    with Workers(2) as workers:
        ends = workers.ends(calls.be_interrupted)
    assert [end.error for end in ends] == [f"Interrupted: stopped rank {rank}" for rank in (0, 1)]
    assert lines(ends) == []


def test_ranks_that_are_stopped_together_wait_for_the_slowest(tmp_path: Path) -> None:
    latch = tmp_path / "latch"
    os.mkfifo(latch)
    with Workers(2) as workers:
        workers.send(calls.be_stopped_together, str(latch))
        assert not workers.has_ended(0, within_s=1.0)
        latch.write_bytes(b"")
        ends = [workers.end(rank) for rank in (0, 1)]
    assert [end.error for end in ends] == ["Interrupted: stopped during training"] * 2
    assert lines(ends) == []


def test_a_single_rank_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(variable, raising=False)
    with joined("cpu") as world:
        assert isinstance(world, Alone)
    source = (
        "import sys, gs_train.world as w\n"
        "with w.joined('cpu') as world: world.barrier(); world.gather(1)\n"
        "print([m for m in sys.modules if m in ('gs_train.world.ranks', 'gs_train.world.session')])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


FULL = {
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_the_variables_of_torchrun_say_which_rank_this_is() -> None:
    place = standing(FULL)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.has_store) == (1, 2, 1, False)
    first = standing(FULL | {"RANK": "0", "LOCAL_RANK": "0"})
    assert first is not None
    assert first.has_store
    assert standing({}) is None
    assert standing({"WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE must be at least 1, got 'two'"),
        ("RANK", "2", "RANK must be 0 to 1, got '2'"),
        ("LOCAL_RANK", "-1", "LOCAL_RANK must be 0 to 1, got '-1'"),
        ("LOCAL_WORLD_SIZE", "3", "LOCAL_WORLD_SIZE must be 1 to 2, got '3'"),
        ("MASTER_ADDR", "", r"MASTER_ADDR must be set where WORLD_SIZE is \(WORLD_SIZE=2\)"),
        ("MASTER_PORT", "70000", "MASTER_PORT must be 0 to 65535, got '70000'"),
    ],
)
def test_variables_that_do_not_fit_are_named(name: str, value: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        standing(FULL | {name: value})
