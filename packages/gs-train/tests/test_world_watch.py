# SPDX-License-Identifier: Apache-2.0
"""The thread that notices the end of other ranks, look by look, without a thread or a clock."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch.distributed import HashStore

from gs_train.world.board import Board, Entry
from gs_train.world.failure import Failure, RankFailedError
from gs_train.world.processes import Process, this_process
from gs_train.world.watch import Watch

MANY = 1000  # looks: more than any patience


class EndedError(Exception):
    """The process would have been ended."""


def _end() -> None:
    raise EndedError


@pytest.fixture
def boards() -> list[Board]:
    """Of three ranks that have come."""
    store = HashStore()
    boards = [Board(store, rank, 3) for rank in range(3)]
    for board in boards:
        board.enter(Entry(this_process(), (0,)))
    return boards


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its end."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def _watch(board: Board, rank: int, processes: list[Process] | None = None) -> Watch:
    watch = Watch(board, rank, end=_end)
    watch.follow(processes or [this_process()] * 3)
    return watch


def _look(*watches: Watch) -> None:
    for _ in range(MANY):
        for watch in watches:
            watch.look()


def _process(child: subprocess.Popen[bytes]) -> Process:
    own = this_process()
    with open(f"/proc/{child.pid}/stat") as stat:
        return Process(own.host, child.pid, int(stat.read().rpartition(")")[2].split()[19]))


def test_a_process_is_told_from_a_later_one_with_its_number(
    child: subprocess.Popen[bytes],
) -> None:
    process = _process(child)
    assert process.is_alive
    assert not Process(process.host, process.pid, process.started + 1).is_alive
    assert Process("another host", process.pid, process.started + 1).is_alive
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_alive  # nobody has waited for it yet
    child.wait()
    assert not process.is_alive


def test_the_board_has_all_entries_once_all_ranks_have_come() -> None:
    store = HashStore()
    first, second = Board(store, 0, 2), Board(store, 1, 2)
    entry = Entry(this_process(), (0, 3))
    first.enter(entry)
    assert first.entries() is None
    assert first.missing() == [1]
    second.enter(Entry(this_process(), (1,)))
    assert second.entries() == [entry, Entry(this_process(), (1,))]
    assert second.missing() == []


def test_the_first_failure_counts(boards: list[Board]) -> None:
    first = Failure(2, "the disk is full \udce9")
    assert boards[2].post(first) == first
    assert boards[0].post(Failure(0, "another")) == first
    assert boards[1].failure() == first
    assert [board.claim() for board in boards] == [True, False, False]


def test_ranks_that_live_fail_nobody(boards: list[Board]) -> None:
    watches = [_watch(board, rank) for rank, board in enumerate(boards)]
    _look(*watches)
    assert all(watch.failure is None for watch in watches)


def test_the_lowest_rank_alive_prints_what_another_says(
    boards: list[Board], capsys: pytest.CaptureFixture[str]
) -> None:
    watches = [_watch(board, rank) for rank, board in enumerate(boards)]
    boards[1].post(Failure(1, "the disk is full\x1b"))
    for watch in reversed(watches):
        watch.look()
    assert capsys.readouterr().err == "gs-train: error: rank 1: the disk is full\\x1b\n"
    for watch in watches:
        watch.look()
        with pytest.raises(RankFailedError, match="rank 1: the disk is full"):
            watch.check()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("only", [1, 2])
def test_another_rank_prints_where_the_lowest_does_not(
    boards: list[Board], only: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even the one that has failed."""
    watch = _watch(boards[only], only)
    boards[1].post(Failure(1, "the disk is full"))
    with pytest.raises(EndedError):
        _look(watch)
    assert capsys.readouterr().err == "gs-train: error: rank 1: the disk is full\n"


def test_a_main_thread_that_goes_on_is_ended(boards: list[Board]) -> None:
    watch = _watch(boards[0], 0)
    watch.look()
    boards[2].post(Failure(2, "of no importance"))
    watch.look()
    with pytest.raises(EndedError):
        _look(watch)


def test_a_rank_without_a_sign_of_life_has_failed(boards: list[Board]) -> None:
    watches = [_watch(boards[rank], rank) for rank in (0, 2)]
    with pytest.raises(EndedError):
        _look(*watches)
    assert {watch.failure for watch in watches} == {
        Failure(1, "it has not been heard of for 25 seconds")
    }


def test_a_rank_that_was_stopped_itself_does_not_blame_the_others(boards: list[Board]) -> None:
    """It has looked as seldom as they: its patience is counted in looks."""
    watches = [_watch(board, rank) for rank, board in enumerate(boards)]
    for _ in range(50):
        watches[0].look()
    for _ in range(MANY):  # rank 0 does nothing
        watches[1].look()
        boards[2].beat()
        if watches[1].failure:
            break
    assert watches[1].failure == Failure(0, "it has not been heard of for 25 seconds")
    watches[0].look()
    assert watches[0].failure == watches[1].failure


def test_a_process_that_is_gone_has_failed_at_the_next_look(
    boards: list[Board], child: subprocess.Popen[bytes]
) -> None:
    own = this_process()
    watch = _watch(boards[0], 0, [own, _process(child), own])
    watch.look()
    assert watch.failure is None
    assert not watch.sees_a_failure()
    child.kill()
    child.wait()
    assert watch.sees_a_failure()
    watch.look()
    assert watch.failure is not None
    assert watch.failure.rank == 1


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_rank_may_have_left_for_a_while(
    boards: list[Board], child: subprocess.Popen[bytes], is_gone: bool
) -> None:
    own = this_process()
    watch = _watch(boards[0], 0, [own, _process(child), own])
    boards[1].leave()
    if is_gone:
        child.kill()
        child.wait()
    watch.look()
    assert watch.failure is None
    assert not watch.sees_a_failure()
    with pytest.raises(EndedError):
        _look(watch)
    assert watch.failure == Failure(1, "it was stopped, and the other ranks were not")


def test_a_line_that_nobody_reads_is_as_good_as_printed(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb", buffering=0) as unread:
        text = io.TextIOWrapper(unread, write_through=True)
        monkeypatch.setattr(sys, "stderr", text)
        watch = _watch(boards[0], 0)
        boards[1].post(Failure(1, "the disk is full"))
        with pytest.raises(EndedError):
            _look(watch)
        monkeypatch.undo()
        text.detach()


def test_the_store_is_needed_until_a_rank_knows_or_is_gone(
    boards: list[Board], child: subprocess.Popen[bytes]
) -> None:
    own = this_process()
    first = _watch(boards[0], 0, [own, own, _process(child)])
    first_failure = boards[1].post(Failure(1, "the disk is full"))
    assert [first.needs_store(rank) for rank in range(3)] == [True] * 3
    second = _watch(boards[1], 1)
    for watch in (first, second):
        watch.look()
        assert watch.failure == first_failure
    assert [first.needs_store(rank) for rank in range(3)] == [False, False, True]
    child.kill()
    child.wait()
    assert not first.needs_store(2)


class _Lost:
    """A store whose process is gone."""

    def __getattr__(self, name: str) -> object:
        def lost(*_: object) -> None:
            raise RuntimeError("Connection reset by peer")

        return lost


def test_a_store_that_is_gone_is_a_failure_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    watch = _watch(Board(_Lost(), 0, 3), 0)  # type: ignore[arg-type]
    assert watch.sees_a_failure()
    watch.look()
    watch.look()
    said = "the process that started the ranks has ended"
    assert watch.failure == Failure(None, said)
    assert watch.fail(Failure(0, "its own")) == watch.failure
    assert capsys.readouterr().err == f"gs-train: error: {said}\n"
