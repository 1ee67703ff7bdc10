# SPDX-License-Identifier: Apache-2.0
"""How many rows may be on the device at once, and at all, where memory sets the limit."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Limits:
    """Numbers of rows; None is no limit.

    Attributes:
        rows: of one microbatch: views that see more are cut into crops.
        slots: of a batch that the host updates, kept on the device for later microbatches.
        residents: on the device with their moments; a batch that sees more is updated by the host.
        capacity: of the whole model, which host memory sets.
    """

    rows: int | None = None
    slots: int | None = None
    residents: int | None = None
    capacity: int | None = None

    def to_plain(self) -> dict[str, int | None]:
        """For a checkpoint."""
        return asdict(self)


UNLIMITED = Limits()
