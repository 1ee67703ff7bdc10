# SPDX-License-Identifier: Apache-2.0
"""Which Gaussians each view of a batch sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gs_cull.arrays import Array, check_kind, is_torch, native
from gs_cull.checks import whole_number

MOST_VIEWS = 2**14
"""Of one mask: counts of all pairs are 2 GiB."""


@dataclass(frozen=True, eq=False)
class Visibility:
    """The union of the visible sets of B views, and who sees what.

    Attributes:
        ids: (U,) int32, sorted: every row that some view sees.
        mask: (U, ceil(B / 32)) 32-bit words, uint32 in numpy and int32 bit patterns in torch: view
            b sees row ids[u] when bit b % 32, least significant first, of mask[u, b // 32] is set.
        counts: (B,) int32, rows that each view sees.
        n_not_finite: rows with a NaN or infinite mean or scale among those looked at; they are
            never visible.
    """

    ids: Array
    mask: Array
    counts: Array
    n_not_finite: int

    @classmethod
    def of_mask(cls, ids: Array, mask: Array, n_views: int, n_not_finite: int) -> Visibility:
        """Count what a mask says.

        Args:
            ids, mask: as the attributes.
            n_views: B, at most 16384.
            n_not_finite: as the attribute.

        Raises:
            TypeError: a mask that is not of 32-bit words, numpy and torch mixed.
            ValueError: another number of rows in ``ids`` and ``mask``, or of words than B views
                need; on the CPU also a bit at or above B. On CUDA such a bit counts for nothing,
                as to look for it would wait for the device.
        """
        check_kind(ids=ids, mask=mask)
        if tuple(ids.shape) != tuple(mask.shape[:1]):
            raise ValueError(
                f"ids must have one entry a row of mask, {tuple(mask.shape[:1])}, got "
                f"{tuple(ids.shape)}"
            )
        n_views = whole_number("n_views", n_views, most=MOST_VIEWS)
        together = native(mask).pair_counts(mask, n_views)
        counts = together.diagonal()
        counts = counts.int() if is_torch(counts) else counts.astype(np.int32)
        return cls(ids, mask, counts, n_not_finite)

    @property
    def n_views(self) -> int:
        """B."""
        return len(self.counts)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        kind = f"torch, {self.ids.device}" if is_torch(self.ids) else "numpy"
        return f"Visibility({self.n_views} views see {len(self)} rows; {kind})"

    def view(self, i: int) -> Array:
        """Sorted ids of the rows that view ``i`` sees.

        Args:
            i: 0 <= i < B, or negative to count from the end.

        Returns:
            (counts[i],) int32 of the same kind and on the same device as ``ids``.

        Raises:
            IndexError: there is no such view.

        Cost: one pass over a word per row; on CUDA it synchronises, except for a single view.
        """
        n = self.n_views
        i = whole_number("view", i, least=-(2**31))
        if not -n <= i < n:
            raise IndexError(f"view must be from {-n} to {n - 1}, got {i}")
        if n == 1:
            return self.ids
        word, bit = divmod(i % n, 32)
        if is_torch(self.ids):
            return self.ids[(self.mask[:, word] >> bit) & 1 != 0]
        return self.ids[(self.mask[:, word] >> np.uint32(bit)) & np.uint32(1) != 0]

    def and_counts(self) -> Array:
        """How many rows two views both see, for all pairs.

        Returns:
            (B, B) int64, symmetric, with ``counts`` on the diagonal; same kind and device.

        Cost: U * B^2 / 64 word operations on 32 rows' bits at a time; B^2 * 8 bytes, nothing of
            size U. Does not synchronise on CUDA.
        """
        return native(self.mask).pair_counts(self.mask, self.n_views)

    def xor_counts(self) -> Array:
        """How many rows one of two views sees and the other does not, for all pairs.

        Returns:
            (B, B) int64, symmetric, 0 on the diagonal; same kind and device.

        Cost: as :meth:`and_counts`.
        """
        together = self.and_counts()
        own = together.diagonal()
        return own[:, None] + own[None, :] - 2 * together
