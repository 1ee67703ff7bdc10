# SPDX-License-Identifier: Apache-2.0
"""Threads of one process as the ranks of a world, which also talk to each other on the host.

A test may have one rank end in a call: the others then end in the call that they wait in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from threads_as_ranks import Board, ThreadCarrier

from gs_train.world import DisagreementError

Result = TypeVar("Result")


class DeathError(BaseException):
    """A rank has ended, as by SIGKILL."""


class ThreadWorld(ThreadCarrier):
    """A world: `ThreadCarrier` and calls of the host.

    Attributes:
        size: the number of ranks.
        n_calls: of the host so far.
        dies_at: the number of the call that this rank does not live to make; None: it lives.
    """

    def __init__(self, board: Board, rank: int, said: dict[int, dict[int, Any]]) -> None:
        super().__init__(board, rank, torch.device("cpu"))
        self.size = board.n_ranks
        self.n_calls = 0
        self.dies_at: int | None = None
        self._said = said

    def gather(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        return np.stack(self._all(np.array(values, dtype=np.int64)))

    def broadcast(self, value: Any, root: int = 0) -> Any:
        told = self._all(json.dumps(value) if self.rank == root else "")
        return json.loads(told[root])

    def agree(self, name: str, value: Any) -> None:
        if len(set(self._all(json.dumps(value, sort_keys=True)))) > 1:
            raise DisagreementError(f"{name} must be the same on all ranks")

    def barrier(self) -> None:
        self._all(None)

    def _all(self, value: Any) -> list[Any]:
        """What all ranks have said in this call."""
        number, self.n_calls = self.n_calls, self.n_calls + 1
        if number == self.dies_at:
            raise DeathError
        with self._board.changed:
            said = self._said.setdefault(number, {})
            said[self.rank] = value
            self._board.changed.notify_all()
            self._board.changed.wait_for(lambda: len(said) == self.size or self._board.has_failed)
            if len(said) < self.size:
                raise RuntimeError("another rank has failed")
            return [said[rank] for rank in range(self.size)]


def outcomes(n_ranks: int, run: Callable[[ThreadWorld], Result]) -> list[Result | BaseException]:
    """What each rank returns or raises."""
    board, said = Board(n_ranks), dict[int, dict[int, Any]]()

    def guarded(rank: int) -> Result:
        try:
            return run(ThreadWorld(board, rank, said))
        except BaseException:
            with board.changed:
                board.has_failed = True
                board.changed.notify_all()
            raise

    with ThreadPoolExecutor(n_ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(n_ranks)]
    return [_outcome(future) for future in futures]


def results(n_ranks: int, run: Callable[[ThreadWorld], Result]) -> list[Result]:
    """What each rank returns; none may raise."""
    found = []
    for outcome in outcomes(n_ranks, run):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def _outcome(future: Future[Result]) -> Result | BaseException:
    error = future.exception()
    return future.result() if error is None else error
