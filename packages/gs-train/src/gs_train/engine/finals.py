# SPDX-License-Identifier: Apache-2.0
"""The rows whose gradient is complete after each microbatch, what the next batch needs first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

import gs_order
from gs_train.engine.need import Parted, contains, slots_of


class Final(NamedTuple):
    """Rows of a microbatch.

    Attributes:
        slots: in the device buffer.
        ids: on the host.
        is_urgent: whether their updates go before others.
        is_awaited: whether the next batch begins after their updates.
    """

    slots: Tensor
    ids: np.ndarray
    is_urgent: bool
    is_awaited: bool


@dataclass(frozen=True)
class Finals:
    """Final sets of a batch, when the next one is known; see `Parted`."""

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

    def of_microbatch(self, i: int) -> Iterator[Final]:
        """The parts of final set i that have rows."""
        first, rest, last = self.parted.bounds(i)
        for part, is_first in ((slice(first, rest), True), (slice(rest, last), False)):
            if part.stop > part.start:
                ids, slots = self.parted.on_host[part], self.parted.slots[part]
                yield Final(slots, ids, is_first, is_first)


class EarlyFinals:
    """Final sets of a batch before the next one is known: it may need any of them first, but they
    will have been updated long before it begins.

    Asynchrony: the ids are copied to the host on the current stream; who asks for them waits.
    """

    def __init__(self, plan: gs_order.Plan) -> None:
        self._plan = plan
        self._on_host = plan.to_host()

    def of_microbatch(self, i: int) -> Iterator[Final]:
        """Final set i, if it has rows."""
        ids = self._on_host.wait().final[i]
        if len(ids):
            yield Final(self._plan[i].slots_of("final"), ids, False, True)
