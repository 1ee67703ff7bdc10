# SPDX-License-Identifier: Apache-2.0
"""The rows whose gradient is complete after each microbatch, what the next batch needs first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

import gs_order
from gs_train.engine.need import Parted, contains, in_two_parts

Part = tuple[Tensor, np.ndarray, bool]
"""Slots in the device buffer, ids on the host, and whether the next batch needs them first."""


@dataclass(frozen=True)
class Finals:
    """Final sets of a batch."""

    slots: Tensor
    ids: np.ndarray
    parted: Parted | None
    offsets: np.ndarray

    @classmethod
    def of(cls, plan: gs_order.Plan, following: gs_order.Plan | None) -> Finals:
        """The final sets of ``plan``; those that the first loads of ``following`` wait for come
        first. Synchronises on the current stream."""
        lists = plan.ids["final"]
        source = plan.slots if plan.slots is not None else plan.positions
        slots = source["final"].values
        if following is None or not len(lists.values):
            return cls(slots, plan.to_host().wait().final.values, None, lists.offsets)
        parted = in_two_parts(lists, contains(following[0].load, lists.values))
        ids = lists.values[parted.order].cpu().numpy()
        return cls(slots[parted.order], ids, parted, lists.offsets)

    def of_microbatch(self, i: int) -> Iterator[Part]:
        """The parts of final set i that have rows."""
        first, last = int(self.offsets[i]), int(self.offsets[i + 1])
        n_urgent = int(self.parted.n_first[i]) if self.parted is not None else 0
        for part, is_urgent in (
            (slice(first, first + n_urgent), True),
            (slice(first + n_urgent, last), False),
        ):
            if part.stop > part.start:
                yield self.slots[part], self.ids[part], is_urgent
