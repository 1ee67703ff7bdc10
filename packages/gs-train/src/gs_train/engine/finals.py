# SPDX-License-Identifier: Apache-2.0
"""The rows whose gradient is complete after each microbatch, what the next batch needs first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

import gs_order
from gs_train.engine.need import Parted, contains, slots_of

Part = tuple[Tensor, np.ndarray, bool]
"""Slots in the device buffer, ids on the host, and whether the next batch needs them first."""


@dataclass(frozen=True)
class Finals:
    """Final sets of a batch; see `Parted`."""

    parted: Parted

    @classmethod
    def of(cls, plan: gs_order.Plan, following: gs_order.Plan | None) -> Finals:
        """The final sets of ``plan``; those that the first loads of ``following`` wait for come
        first. Synchronises on the current stream."""
        lists, slots = plan.ids["final"], slots_of(plan, "final")
        if following is not None:
            first = contains(following[0].load, lists.values)
            return cls(Parted.of(lists, slots, first))
        ids = plan.to_host().wait().final.values
        nothing = np.zeros(len(plan), np.int64)
        return cls(Parted(lists.values, slots, ids, np.asarray(lists.offsets), nothing))

    def of_microbatch(self, i: int) -> Iterator[Part]:
        """The parts of final set i that have rows."""
        first, rest, last = self.parted.bounds(i)
        for part, is_urgent in ((slice(first, rest), True), (slice(rest, last), False)):
            if part.stop > part.start:
                yield self.parted.slots[part], self.parted.on_host[part], is_urgent
