# SPDX-License-Identifier: Apache-2.0
"""Rows that no view of a batch sees, where the host updates all rows in every step."""

from __future__ import annotations

from collections import deque
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import gs_pinned
from gs_train.engine.host_rows import HostRows

_PIECES = 16
"""Tasks that a step's rows are cut into. Within the step, what is more urgent waits for one of them
at most; those that are left go before all tasks of the next step."""

_URGENT, _LAST = 1, -1
"""Priorities of tasks of one step, below and above gradients that have arrived."""


class Untouched:
    """Gives these rows' updates to the worker (CLM 4.2.2).

    They are most of the rows and wait for no gradient. Those that the next batch reads are updated
    at once, the others between the gradients that arrive: these come first, and when the last have
    been taken in the next batch can begin.
    """

    def __init__(self, host: HostRows, device: torch.device) -> None:
        self._host = host
        self._device = device
        self._waiting: deque[np.ndarray] = deque()
        self._step = 0
        self._lists: gs_pinned.Table | None = None  # of rows, those of two steps in turn

    def find(self, seen: Tensor, needed: Tensor | None, step: int) -> tuple[int, ...]:
        """Split the rows of a step; synchronises with the current stream.

        Args:
            seen: (U,) sorted rows of the batch.
            needed: (V,) sorted rows of the next one; None: not known.
            step: open.

        Returns:
            Tickets of those that the next batch needs, which are submitted; call `submit`
            for the others before the step ends.
        """
        self._step = step
        untouched = torch.ones(self._host.n_rows, dtype=torch.bool, device=self._device)
        untouched.index_fill_(0, seen.long(), False)
        tickets: tuple[int, ...] = ()
        if needed is not None:
            needed = needed[untouched.index_select(0, needed)]
            untouched.index_fill_(0, needed.long(), False)
            tickets = (self._submit(needed.cpu().numpy(), _URGENT),)
        self._list(untouched)
        return tickets

    def submit(self) -> None:
        """Give the others to the worker."""
        while self._waiting:
            self._submit(self._waiting.popleft(), _LAST)

    def _submit(self, ids: np.ndarray, priority: int) -> int:
        return self._host.worker.submit(ids, None, step=self._step, priority=priority, checked=True)

    def _list(self, mask: Tensor) -> None:
        """Queue the rows of a mask, piece by piece: their ids would be much on the device."""
        target = self._list_to()
        n, done = len(mask), 0
        size = max(1, -(-n // _PIECES))
        for first in range(0, n, size):
            ids = mask[first : first + size].nonzero()[:, 0].add_(first).int()
            on_host = target[done : done + len(ids)]
            on_host.copy_(ids, non_blocking=True)
            self._waiting.append(on_host.numpy())
            done += len(ids)
        if mask.is_cuda:
            torch.cuda.current_stream(mask.device).synchronize()

    def _list_to(self) -> Tensor:
        """(N,) int32 in host memory that no task reads: the step before the last has ended."""
        n = self._host.n_rows
        if self._lists is None or len(self._lists) < 2 * n:
            self._lists = None  # given back before more is asked for
            pinned: Literal["auto"] | bool = "auto" if self._device.type == "cuda" else False
            # Never grown: what has grown is locked in pieces, and no copy may reach over two.
            self._lists = gs_pinned.Table(2 * n, 1, "int32", capacity=2 * n, pinned=pinned)
        first = self._step % 2 * n
        return self._lists.torch()[first : first + n, 0]
