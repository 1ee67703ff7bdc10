# SPDX-License-Identifier: Apache-2.0
"""What a forecast is: the memory and the time that one way to keep rows takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from gs_train.options.limits import Limits
from gs_train.options.presets import Preset
from gs_train.sizing.memory import Need, Room
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

Fits = Callable[[Room], bool]
"""Whether what a room needs is within the caps."""


@dataclass(frozen=True)
class Speed:
    """One batch of a preset.

    Attributes:
        images_per_second: of the batch when its longest part hides the others, but for rows that
            come late because there was no room for them before, and for the first rows to come and
            the last to be updated of a batch that keeps none; or when all follow one another in a
            preset that overlaps nothing.
        device_s: seconds of culling, rendering and the device's optimizer.
        link_s: seconds of rows on their way.
        host_s: seconds of the host optimizer.
        exchange_s: seconds of splats and their gradients on their way between ranks.
    """

    images_per_second: float
    device_s: float
    link_s: float = 0.0
    host_s: float = 0.0
    exchange_s: float = 0.0

    @property
    def bound(self) -> str:
        """The longest of the parts, ``device``, ``link``, ``host`` or ``exchange``."""
        parts = {
            "device": self.device_s,
            "link": self.link_s,
            "host": self.host_s,
            "exchange": self.exchange_s,
        }
        return max(parts, key=lambda name: parts[name])


class Forecast(ABC):
    """The forecast of a preset whose rows are kept in one way.

    Attributes:
        preset: which.
        on_host: what of the rows is in host memory, with its verb; None: nothing.
        cuts_views: views that see more rows than there is room for are drawn in parts.
    """

    on_host: ClassVar[str | None]
    cuts_views: ClassVar[bool]

    def __init__(self, preset: Preset) -> None:
        self.preset = preset

    @abstractmethod
    def bytes(self, work: Workload, room: Room) -> Need:
        """Bytes by part. Those that grow with N are exact: the sizes of tensors that exist."""

    @abstractmethod
    def seconds(self, work: Workload, rates: Rates, room: Room) -> Speed:
        """The seconds of a mean batch. What overlaps is taken to overlap completely."""

    @abstractmethod
    def wanted(self, work: Workload) -> Room:
        """Every view whole, and rows kept as long as the preset would."""

    @abstractmethod
    def least(self, work: Workload) -> Room:
        """Views in as many parts as a plan allows, and no row kept longer than it must be."""

    @abstractmethod
    def shrunk(self, work: Workload, fits: Fits) -> Room | None:
        """The most room that fits: rows of a view come first, those that are kept follow."""

    @abstractmethod
    def grown(self, room: Room, rows: int, work: Workload, *, is_short: bool) -> Room:
        """A room for views of so many rows in a scene of more.

        Args:
            room: of the scene as it is.
            is_short: rows that are kept have to get along with that room.
        """

    @abstractmethod
    def under(self, work: Workload, limits: Limits) -> Room:
        """What a run takes that respects ``limits``."""
