# SPDX-License-Identifier: Apache-2.0
"""What batches have moved and updated, counted."""

from __future__ import annotations

from dataclasses import dataclass

import gs_order


@dataclass
class BatchStats:
    """Totals over the batches so far.

    Attributes:
        batches, microbatches: how many; crops count as microbatches.
        visible: rows rendered, a row counted in each microbatch that sees it.
        union: distinct rows of each batch, summed.
        loaded, stored: rows over the link, in and out.
        row_bytes: of one such row.
        n_slots: most rows that were ever on the device at once.
    """

    row_bytes: int = 0
    batches: int = 0
    microbatches: int = 0
    visible: int = 0
    union: int = 0
    loaded: int = 0
    stored: int = 0
    n_slots: int = 0

    def add(self, plan: gs_order.Plan, union: int) -> None:
        """Count one batch."""
        counts = plan.counts
        self.batches += 1
        self.microbatches += len(plan)
        self.visible += int(counts["visible"].sum())
        self.union += union
        self.loaded += int(counts["load"].sum())
        self.stored += int(counts["final"].sum())
        self.n_slots = max(self.n_slots, plan.n_slots)

    @property
    def bytes_loaded(self) -> int:
        return self.loaded * self.row_bytes

    @property
    def bytes_stored(self) -> int:
        return self.stored * self.row_bytes
