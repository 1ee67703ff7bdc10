# SPDX-License-Identifier: Apache-2.0
"""One rank fails: every rank ends with status 2, and one of them prints one line that names it."""

from __future__ import annotations

import os
import signal

import pytest
import world_calls as calls
from world_workers import Workers, lines

GONE = "its process has ended without a word (the system may have run out of memory)"


@pytest.mark.parametrize("name", ["gather", "all_to_all", "barrier"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_is_killed_while_the_others_wait_for_it(rank: int, name: str) -> None:
    with Workers(3) as workers:
        ends = workers.ends(calls.fail, rank, "killed", name)
    expected = [2, 2, 2]
    expected[rank] = -signal.SIGKILL
    assert [end.exit_status for end in ends] == expected
    assert lines(ends) == [f"gs-train: error: rank {rank}: {GONE}"]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("input", "photograph 7.jpg cannot be read"),
        ("unforeseen", "ZeroDivisionError: of a bug"),
        ("exit", "SystemExit: 7"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_says_is_said_once(rank: int, how: str, text: str) -> None:
    with Workers(2) as workers:
        ends = workers.ends(calls.fail, rank, how, "gather")
    assert [end.exit_status for end in ends] == [2, 2]
    assert lines(ends) == [f"gs-train: error: rank {rank}: {text}"]


def test_a_rank_that_is_stopped_alone_fails_the_others() -> None:
    with Workers(2) as workers:
        ends = workers.ends(calls.fail, 1, "stopped", "gather")
    assert ends[1].error == "Interrupted: stopped"
    assert ends[0].exit_status == 2
    said = "gs-train: error: rank 1: it was stopped, and the other ranks were not"
    assert lines(ends) == [said]


@pytest.mark.long
def test_a_rank_that_waits_for_nobody_is_ended() -> None:
    """As one that waits for a device which waits for a rank that is gone."""
    with Workers(2) as workers:
        ends = workers.ends(calls.fail_while_busy)
    assert [end.exit_status for end in ends] == [2, 2]
    assert ends[0].error == "ToldError"
    assert ends[1].error == ""  # nothing came of its main thread


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_not_heard_of_any_more_ends_the_others(rank: int) -> None:
    with Workers(2) as workers:
        process = workers.processes[rank]
        other = workers.processes[1 - rank]
        workers.send(calls.fail, rank, "silent", "all_to_all")
        other.join()
        assert other.exitcode == 2
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)


def test_an_error_while_ranks_come_reaches_those_that_wait() -> None:
    none = {"CUDA_VISIBLE_DEVICES": ""}
    with Workers(2, kinds=("cpu", "cuda"), environment=none) as workers:
        ends = [workers.end(rank) for rank in (0, 1)]
    assert [end.exit_status for end in ends] == [2, 2]
    said = "the ranks of a host must be at most its 0 CUDA devices, got LOCAL_WORLD_SIZE=2"
    assert lines(ends) == [f"gs-train: error: rank 1: {said}"]


@pytest.mark.long
def test_ranks_end_when_the_process_that_started_them_is_gone() -> None:
    with Workers(2) as workers:
        workers.call(calls.place)  # all have come
        workers.send(calls.wait)
        workers.lose_store()
        ends = [workers.end(rank) for rank in (0, 1)]
    assert [end.exit_status for end in ends] == [2, 2]
