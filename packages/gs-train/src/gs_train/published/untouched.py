# SPDX-License-Identifier: Apache-2.0
"""Rows that no view of a batch sees, where the host updates all rows in every step."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

import gs_pinned
from gs_train.rows.host_rows import HostRows

_PIECES = 16
"""Tasks that a step's rows are cut into. Within the step, what is more urgent waits for one of them
at most; those that are left go before all tasks of the next step."""

_LISTED = 1 << 22
"""Rows that are looked through at once where there are so many; see `listed_at_once`."""

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
        self._lists: gs_pinned.Table | None = None  # of rows, those of two steps in turn

    @staticmethod
    def device_bytes(n_rows: int, n_seen: int) -> int:
        """Bytes of a mask of the rows, and of ids of others in 64 bits or some of these in both."""
        return n_rows + max(12 * listed_at_once(n_rows), 8 * n_seen)

    @staticmethod
    def list_bytes(n_rows: int) -> int:
        """Bytes of the lists in host memory."""
        return 2 * 4 * n_rows

    def update(self, seen: Tensor, needed: Tensor | None, step: int) -> tuple[int, ...]:
        """Submit these rows of a step; synchronises with the current stream.

        Args:
            seen: (U,) sorted rows of the batch.
            needed: (V,) sorted rows of the next one; None: not known.
            step: open.

        Returns:
            Tickets of those that the next batch needs.
        """
        untouched = torch.ones(self._host.n_rows, dtype=torch.bool, device=self._device)
        untouched.index_fill_(0, seen.long(), False)
        tickets: tuple[int, ...] = ()
        if needed is not None:
            needed = needed[untouched.index_select(0, needed)]
            untouched.index_fill_(0, needed.long(), False)
            tickets = (self._submit(needed.cpu().numpy(), step, _URGENT),)
        ids = self._listed(untouched, step)
        size = max(1, -(-len(ids) // _PIECES))
        for first in range(0, len(ids), size):
            self._submit(ids[first : first + size], step, _LAST)
        return tickets

    def _submit(self, ids: np.ndarray, step: int, priority: int) -> int:
        return self._host.worker.submit(ids, None, step=step, priority=priority, checked=True)

    def _listed(self, mask: Tensor, step: int) -> np.ndarray:
        """The rows of a mask, in host memory; part by part, for their ids would be much on the
        device."""
        target = self._list_of(step)
        n, done = len(mask), 0
        size = listed_at_once(n)
        for first in range(0, n, size):
            ids = mask[first : first + size].nonzero()[:, 0].add_(first).int()
            target[done : done + len(ids)].copy_(ids, non_blocking=True)
            done += len(ids)
        if mask.is_cuda:
            torch.cuda.current_stream(mask.device).synchronize()
        return target[:done].numpy()

    def _list_of(self, step: int) -> Tensor:
        """(N,) int32 in host memory that no task reads: the step before the last has ended."""
        n = self._host.n_rows
        if self._lists is None or len(self._lists) < 2 * n:
            self._lists = None  # given back before more is asked for
            pinned: Literal["auto"] | bool = "auto" if self._device.type == "cuda" else False
            # Never grown: what has grown is locked in pieces, and no copy may reach over two.
            self._lists = gs_pinned.Table(2 * n, 1, "int32", capacity=2 * n, pinned=pinned)
        first = step % 2 * n
        return self._lists.torch()[first : first + n, 0]


def listed_at_once(n_rows: int) -> int:
    """Rows that are looked through at once: their ids take 12 bytes each on the device, and each
    time the host waits for it."""
    return max(-(-n_rows // _PIECES), min(n_rows, _LISTED), 1)
