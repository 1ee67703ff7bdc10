# SPDX-License-Identifier: Apache-2.0
"""Threads of one process as the ranks of a world.

Rows are copied when the last rank waits for them, not when they are sent, and what will be received
holds other numbers until then: who writes or reads a buffer too early is found out.

A test may have one rank end in a call of the host: the others then end in the call that they wait
in. Ranks that wait for each other for ever are an error at once, of the test that has them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gs_train.world import DisagreementError

Result = TypeVar("Result")

LIMIT_S = 300.0
"""For which a rank waits at most, where another one waits for something else than a rank."""

CPU = torch.device("cpu")


class DeathError(BaseException):
    """A rank has ended, as by SIGKILL."""


class OthersFailedError(RuntimeError):
    """Another rank has failed."""


class HangError(AssertionError):
    """Ranks wait for what never comes."""


@dataclass
class _Posted:
    """One exchange: what each rank sends, and how many have got theirs."""

    sent: dict[int, list[Tensor]] = field(default_factory=dict)
    n_done: int = 0


class Board:
    """What ranks have posted and said, by the number of the exchange or of the call.

    Attributes:
        posted: exchanges.
        said: calls of the host: what each rank has said.
        changed: notified when a rank has posted, said or failed.
    """

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.posted: dict[int, _Posted] = {}
        self.said: dict[int, dict[int, Any]] = {}
        self.changed = threading.Condition()
        self._has_failed = False
        self._n_ended = 0
        self._waiting: dict[int, tuple[str, Callable[[], bool]]] = {}  # by thread

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait, with the lock held.

        Args:
            what: it waits for, in words.

        Raises:
            OthersFailedError: a rank has failed.
            HangError: it never comes.
        """
        me = threading.get_ident()
        self._waiting[me] = what, is_so
        try:
            self._find_hang()
            has_come = self.changed.wait_for(lambda: is_so() or self._has_failed, LIMIT_S)
        finally:
            del self._waiting[me]
        if self._has_failed and not is_so():
            raise OthersFailedError("another rank has failed")
        if not has_come:
            raise HangError(f"a rank has waited {LIMIT_S:.0f} s for {what}")

    def end(self) -> None:
        """A rank has done its work."""
        with self.changed:
            self._n_ended += 1
            if self._waiting:
                self._find_hang()

    def fail(self) -> None:
        """A rank has failed."""
        with self.changed:
            self._has_failed = True
            self.changed.notify_all()

    def _find_hang(self) -> None:
        if len(self._waiting) + self._n_ended < self.n_ranks or self._has_failed:
            return
        if not any(is_so() for _, is_so in self._waiting.values()):
            what = ", ".join(sorted(what for what, _ in self._waiting.values()))
            ended = f", and {self._n_ended} have ended" if self._n_ended else ""
            raise HangError(f"ranks wait for each other for ever, for {what}{ended}")


@dataclass
class _Pending:
    board: Board
    number: int
    rank: int
    recv: Tensor
    recv_rows: Sequence[int]

    def wait(self) -> Tensor:
        board, posted = self.board, self.board.posted[self.number]
        what = f"exchange {self.number}"
        with board.changed:
            board.wait_until(what, lambda: len(posted.sent) == board.n_ranks)
            parts = [posted.sent[source][self.rank] for source in range(board.n_ranks)]
            assert [len(part) for part in parts] == list(self.recv_rows)
            torch.cat(parts, out=self.recv)
            posted.n_done += 1
            board.changed.notify_all()
            board.wait_until(what, lambda: posted.n_done == board.n_ranks)
        return self.recv


class ThreadWorld:
    """A `World` of threads.

    Attributes:
        n_calls: of the host so far.
        dies_at: the number of the call that this rank does not live to make; None: it lives.
    """

    def __init__(self, board: Board, rank: int, device: torch.device = CPU) -> None:
        self.rank, self.device, self.size = rank, device, board.n_ranks
        self.n_calls = 0
        self.dies_at: int | None = None
        self._board = board
        self._n_posted = 0

    def gather(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        said = self._all(np.array(values, dtype=np.int64))
        assert len({own.shape for own in said}) == 1, "all ranks must gather as many numbers"
        return np.stack(said)

    def broadcast(self, value: Any, root: int = 0) -> Any:
        told = self._all(json.dumps(value) if self.rank == root else "")
        return json.loads(told[root])

    def agree(self, name: str, value: Any) -> None:
        if len(set(self._all(json.dumps(value, sort_keys=True)))) > 1:
            raise DisagreementError(f"{name} must be the same on all ranks")

    def barrier(self) -> None:
        self._all(None)

    def sum(self, tensor: Tensor) -> Tensor:
        send = tensor.reshape(1, -1).repeat(self.size, 1)
        rows = [1] * self.size
        every = self.all_to_all(torch.empty_like(send), send, rows, rows).wait()
        return tensor.copy_(every.sum(0).view_as(tensor))

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> _Pending:
        assert recv.is_contiguous()
        assert send.is_contiguous()
        assert len(recv) == sum(recv_rows)
        recv.fill_(7)
        number, self._n_posted = self._n_posted, self._n_posted + 1
        with self._board.changed:
            posted = self._board.posted.setdefault(number, _Posted())
            posted.sent[self.rank] = list(send.split(list(send_rows)))
            self._board.changed.notify_all()
        return _Pending(self._board, number, self.rank, recv, recv_rows)

    def _all(self, value: Any) -> list[Any]:
        """What all ranks have said in this call."""
        number, self.n_calls = self.n_calls, self.n_calls + 1
        if number == self.dies_at:
            raise DeathError
        with self._board.changed:
            said = self._board.said.setdefault(number, {})
            said[self.rank] = value
            self._board.changed.notify_all()
            self._board.wait_until(f"call {number}", lambda: len(said) == self.size)
            return [said[rank] for rank in range(self.size)]


def outcomes(
    n_ranks: int, run: Callable[[ThreadWorld], Result], device: torch.device = CPU
) -> list[Result | BaseException]:
    """What each rank returns or raises."""
    board = Board(n_ranks)

    def guarded(rank: int) -> Result:
        try:
            result = run(ThreadWorld(board, rank, device))
            board.end()
        except BaseException:
            board.fail()
            raise
        return result

    with ThreadPoolExecutor(n_ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(n_ranks)]
    return [future.exception() or future.result() for future in futures]


def on_ranks(
    n_ranks: int, device: torch.device, run: Callable[[ThreadWorld], Result]
) -> list[Result]:
    """What each rank returns; none may raise."""
    found = outcomes(n_ranks, run, device)
    errors = [each for each in found if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda each: isinstance(each, OthersFailedError)):
        raise error
    return found  # type: ignore[return-value]


def results(n_ranks: int, run: Callable[[ThreadWorld], Result]) -> list[Result]:
    """The same, where rows are on the host."""
    return on_ranks(n_ranks, CPU, run)
