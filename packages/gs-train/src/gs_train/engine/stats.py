# SPDX-License-Identifier: Apache-2.0
"""What batches have moved and updated, counted."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gs_train.engine.microbatches import Seen


@dataclass
class BatchStats:
    """Totals over the batches so far.

    Attributes:
        batches, microbatches: how many; crops count as microbatches.
        visible: rows projected, a row counted in each microbatch; where a list was found early,
            all of its rows.
        seen: distinct rows that each batch really sees, summed.
        union: distinct rows projected in each batch, summed.
        updated: rows that an optimizer step changed, in each batch.
        caught_up: rows that had slept through steps when a batch wanted them; counted on the
            device where they are caught up there.
        loaded, stored: rows over the link, in and out.
        bytes_loaded, bytes_stored: of these rows.
        n_slots: most rows that were ever on the device at once.
    """

    batches: int = 0
    microbatches: int = 0
    visible: int = 0
    seen: int | Tensor = 0
    union: int = 0
    updated: int | Tensor = 0
    caught_up: int | Tensor = 0
    loaded: int = 0
    stored: int = 0
    bytes_loaded: int = 0
    bytes_stored: int = 0
    n_slots: int = 0

    def count(
        self,
        seen: Seen,
        marks: Tensor | None = None,
        *,
        loaded: int,
        stored: int,
        row_bytes: int,
        n_slots: int,
        caught_up: int | Tensor,
        updated: int | None = None,
    ) -> None:
        """Count one batch.

        Args:
            seen: its microbatches and their rows.
            marks: (U,) bool: which of the rows it really sees; None: all.
            row_bytes: of one row that moves.
            caught_up: rows, or () int64 on the device.
            updated: rows; None for those that it sees.
        """
        n_seen = len(seen.ids) if marks is None else marks.sum()
        self.seen = self.seen + n_seen
        self.batches += 1
        self.microbatches += len(seen.microbatches)
        self.visible += sum(seen.counts)
        self.union += len(seen.ids)
        self.updated = self.updated + (n_seen if updated is None else updated)
        self.caught_up += caught_up
        self.loaded += loaded
        self.stored += stored
        self.bytes_loaded += loaded * row_bytes
        self.bytes_stored += stored * row_bytes
        self.n_slots = max(self.n_slots, n_slots)

    def means(self) -> dict[str, float]:
        """What a batch moves and updates; empty before the first. Waits for the device."""
        if not self.batches:
            return {}
        totals = {
            "bytes_loaded": self.bytes_loaded,
            "bytes_stored": self.bytes_stored,
            "rows_visible": self.visible,
            "rows_updated": int(self.updated),
            "rows_caught_up": int(self.caught_up),
        }
        return {name: total / self.batches for name, total in totals.items()}
