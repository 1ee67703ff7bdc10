# SPDX-License-Identifier: Apache-2.0
"""What batches have moved and updated, counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gs_train.engine.microbatches import Seen


@dataclass
class BatchStats:
    """Totals over the batches so far.

    Where the device updates rows, it counts `seen`, `updated` and `caught_up`; to read one of the
    three waits for the device.

    Attributes:
        batches, microbatches: how many; crops count as microbatches.
        visible: rows projected, a row counted in each microbatch; where a list was found early,
            all of its rows, and in small scenes all rows there are.
        union: distinct rows projected in each batch, summed.
        loaded, stored: rows over the link, in and out.
        bytes_loaded, bytes_stored: of these rows.
        n_slots: most rows that were ever on the device at once.
        counts: (2,) int64 on the device, to which `gs_adam.DeviceRows.wake` adds the rows that
            batches really see, and those of them that had slept; None before `counts_on`.
    """

    batches: int = 0
    microbatches: int = 0
    visible: int = 0
    union: int = 0
    loaded: int = 0
    stored: int = 0
    bytes_loaded: int = 0
    bytes_stored: int = 0
    n_slots: int = 0
    counts: Tensor | None = None
    _seen: int = field(default=0, init=False)
    _updated: int = field(default=0, init=False)
    _caught_up: int = field(default=0, init=False)

    @property
    def seen(self) -> int:
        """Distinct rows that each batch really sees, summed."""
        return self._seen + self._on_device()[0]

    @property
    def updated(self) -> int:
        """Rows that an optimizer step changed, in each batch; on the device those that it saw."""
        return self._updated + self._on_device()[0]

    @property
    def caught_up(self) -> int:
        """Rows that had slept through steps when a batch wanted them."""
        return self._caught_up + self._on_device()[1]

    def counts_on(self, device: torch.device) -> Tensor:
        """`counts`, made where there are none yet."""
        if self.counts is None:
            self.counts = torch.zeros(2, dtype=torch.int64, device=device)
        return self.counts

    def count_rows(self, *, seen: int, updated: int, caught_up: int = 0) -> None:
        """Count the rows of a batch that the device does not count."""
        self._seen += seen
        self._updated += updated
        self._caught_up += caught_up

    def count(self, seen: Seen, *, loaded: int, stored: int, row_bytes: int, n_slots: int) -> None:
        """Count one batch, but for the rows that it sees, updates and wakes.

        Args:
            seen: its microbatches and their rows.
            row_bytes: of one row that moves.
        """
        self.batches += 1
        self.microbatches += len(seen.microbatches)
        self.visible += sum(seen.counts)
        self.union += seen.ids.shape[0]
        self.loaded += loaded
        self.stored += stored
        self.bytes_loaded += loaded * row_bytes
        self.bytes_stored += stored * row_bytes
        self.n_slots = max(self.n_slots, n_slots)

    def _on_device(self) -> list[int]:
        return [0, 0] if self.counts is None else self.counts.tolist()

    def means(self) -> dict[str, float]:
        """What a batch moves and updates; empty before the first. Waits for the device."""
        if not self.batches:
            return {}
        totals = {
            "bytes_loaded": self.bytes_loaded,
            "bytes_stored": self.bytes_stored,
            "rows_visible": self.visible,
            "rows_updated": self.updated,
            "rows_caught_up": self.caught_up,
        }
        return {name: total / self.batches for name, total in totals.items()}
