# SPDX-License-Identifier: Apache-2.0
"""What bounds of sleeping means and scales read by step, on a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.sleep_reach import SleepReach
from gs_train.machine.host_copies import to_device

_ROOM = 4096


class ReachTables:
    """Follows two reaches: only what has changed since the last fit is uploaded.

    Args:
        means, scales: of the groups, with as many steps at any fit.
        device: of the tables.

    Attributes:
        means, scales: the reaches.

    Memory: 48 bytes a step there and on the host.
    """

    def __init__(self, means: SleepReach, scales: SleepReach, device: torch.device) -> None:
        self.means, self.scales = means, scales
        self._device = device
        self._host = np.zeros((0, 6))
        self._known = 0  # rows of the host's table
        self._table = torch.empty((0, 6), dtype=torch.float64, device=device)
        self._numbers: Tensor | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether a sleeping value moves at all: kernels divide by the decay of the movement."""
        return self.means.decay > 0.0 and self.scales.decay > 0.0

    def uploaded(self) -> tuple[Tensor, Tensor, int]:
        """(S, 6) float64 by last step, three of each reach: the largest rate after it (in the row
        of the present step the ceiling), `SleepReach.correction_sums`, and epsilon of the next
        step; (2, 9) constants; and the present step.

        Asynchrony: enqueued on torch's current stream; waits for nothing.
        """
        step = self.means.step
        if step >= len(self._host):
            room = max(_ROOM, 2 * (step + 1))
            self._host = np.concatenate([self._host, np.zeros((room - len(self._host), 6))])
            self._table = self._table.new_empty((room, 6))
            self._known = 0
        # The last row known held a ceiling. The rates before fall from step to step, so that those
        # which a later step has raised are the last of them.
        first = min(max(self._known - 1, 0), step)
        for at, reach in ((0, self.means), (3, self.scales)):
            rates = reach.later_rates
            if first and rates[first - 1] != self._host[first - 1, at]:
                first = int(np.flatnonzero(rates[:first] != self._host[:first, at])[0])
        for at, reach in ((0, self.means), (3, self.scales)):
            self._host[first : step + 1, at : at + 3] = reach.by_step(first)
        some = self._host[first : step + 1]
        self._table[first : step + 1].copy_(to_device(some.copy(), self._device))
        self._known = step + 1
        if self._numbers is None:
            numbers = np.array([self.means.numbers(), self.scales.numbers()])
            self._numbers = to_device(numbers, self._device)
        return self._table, self._numbers, step
