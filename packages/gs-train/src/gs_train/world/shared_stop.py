# SPDX-License-Identifier: Apache-2.0
"""A request to stop that all ranks answer after the same step."""

from __future__ import annotations

from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.world.protocol import Ints, World


class SharedStop:
    """The stop requests of all ranks, which travel as one word beside what ranks gather anyway.

    A signal may reach one rank, or ranks at different moments. No rank acts upon its own
    request before all have it.

    Args:
        own: the request that this process may get.
    """

    def __init__(self, own: StopRequest) -> None:
        self._own = own
        self.signal_number: int | None = None

    def words(self) -> list[int]:
        """What this rank puts into a gather: the signal that it has got, or 0."""
        return [self._own.signal_number or 0]

    def take(self, table: Ints) -> None:
        """Take the gathered words, (W, 1), of all ranks; the lowest rank's request counts."""
        if self.signal_number is None:
            self.signal_number = next((int(word) for word in table[:, 0] if word), None)

    def share(self, world: World) -> None:
        """Tell the requests to each other in a gather of their own. A collective."""
        self.take(world.gather(self.words()))

    def check(self, work: str) -> None:
        """Raise :class:`Interrupted` when a rank was asked to stop, on all ranks alike."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number, f"stopped during {work}", is_common=True)
