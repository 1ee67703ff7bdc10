# SPDX-License-Identifier: Apache-2.0
"""What batches have moved and updated, counted."""

from __future__ import annotations

from dataclasses import dataclass

from gs_train.engine.microbatches import Seen


@dataclass
class BatchStats:
    """Totals over the batches so far.

    Attributes:
        batches, microbatches: how many; crops count as microbatches.
        visible: rows rendered, a row counted in each microbatch that sees it.
        union: distinct rows of each batch, summed.
        loaded, stored: rows over the link, in and out.
        bytes_loaded, bytes_stored: of these rows.
        n_slots: most rows that were ever on the device at once.
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

    def count(self, seen: Seen, *, loaded: int, stored: int, row_bytes: int, n_slots: int) -> None:
        """Count one batch.

        Args:
            row_bytes: of one row that moves.
        """
        self.batches += 1
        self.microbatches += len(seen.microbatches)
        self.visible += sum(seen.counts)
        self.union += len(seen.ids)
        self.loaded += loaded
        self.stored += stored
        self.bytes_loaded += loaded * row_bytes
        self.bytes_stored += stored * row_bytes
        self.n_slots = max(self.n_slots, n_slots)
