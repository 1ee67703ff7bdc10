# SPDX-License-Identifier: Apache-2.0
"""Threads of one process as ranks, which exchange rows as late as they may.

Rows are copied when the last rank waits for them, not when they are sent, and what will be received
holds other numbers until then: who writes or reads a buffer too early is found out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Result = TypeVar("Result")


@dataclass
class _Posted:
    """One exchange: what each rank sends, and how many have got theirs."""

    sent: dict[int, list[Tensor]] = field(default_factory=dict)
    n_done: int = 0


class Board:
    """What ranks have posted, by the number of the exchange."""

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.posted: dict[int, _Posted] = {}
        self.changed = threading.Condition()
        self.has_failed = False

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """With the lock held."""
        self.changed.wait_for(lambda: is_so() or self.has_failed)
        if self.has_failed:
            raise RuntimeError("another rank has failed")


@dataclass
class _Pending:
    board: Board
    number: int
    rank: int
    recv: Tensor
    recv_rows: Sequence[int]

    def wait(self) -> Tensor:
        board, posted = self.board, self.board.posted[self.number]
        with board.changed:
            board.wait_until(lambda: len(posted.sent) == board.n_ranks)
            parts = [posted.sent[source][self.rank] for source in range(board.n_ranks)]
            assert [len(part) for part in parts] == list(self.recv_rows)
            torch.cat(parts, out=self.recv)
            posted.n_done += 1
            board.changed.notify_all()
            board.wait_until(lambda: posted.n_done == board.n_ranks)
        return self.recv


@dataclass
class _Table:
    """Numbers that all ranks gather."""

    pending: _Pending
    shape: tuple[int, ...]

    def wait(self) -> np.ndarray:
        return self.pending.wait().numpy().reshape(-1, *self.shape)


class ThreadCarrier:
    """A `Carrier`, and what an engine asks of a `World` besides."""

    def __init__(self, board: Board, rank: int, device: torch.device) -> None:
        self.rank, self.device, self.size = rank, device, board.n_ranks
        self._board = board
        self._n_posted = 0

    def gather(self, values: Any) -> np.ndarray:
        return self.post_gather(values).wait()

    def post_gather(self, values: Any) -> _Table:
        own = torch.tensor(values, dtype=torch.int64)
        send = own.reshape(1, -1).repeat(self.size, 1)
        rows = [1] * self.size
        return _Table(self.all_to_all(torch.empty_like(send), send, rows, rows), own.shape)

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


def on_ranks(
    n_ranks: int, device: torch.device, run: Callable[[ThreadCarrier], Result]
) -> list[Result]:
    """What each rank returns."""
    board = Board(n_ranks)

    def guarded(rank: int) -> Result:
        try:
            return run(ThreadCarrier(board, rank, device))
        except BaseException:
            with board.changed:
                board.has_failed = True
                board.changed.notify_all()
            raise

    with ThreadPoolExecutor(n_ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(n_ranks)]
    failures = [future.exception() for future in futures]
    for failure in failures:
        if failure is not None and str(failure) != "another rank has failed":
            raise failure
    return [future.result() for future in futures]
