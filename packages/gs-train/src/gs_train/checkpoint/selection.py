# SPDX-License-Identifier: Apache-2.0
"""Which rows of a checkpoint are wanted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class RowSelection:
    """Rows ``start:stop``, or those of sorted ids, in their order.

    A reader goes through a tensor in blocks of consecutive rows. :meth:`within` says which rows of
    a block are wanted and at which places of the target they go; these places are consecutive too.
    """

    def __init__(self, start: int, stop: int, ids: np.ndarray | None = None) -> None:
        self._start, self._stop, self._ids = start, stop, ids

    @classmethod
    def of(cls, rows: slice | Tensor, n_rows: int) -> RowSelection:
        """What a caller asks for.

        Args:
            rows: a slice without a step, or (R,) int64, sorted, unique.
            n_rows: that there are.

        Raises:
            IndexError: an id is negative or too large.
            TypeError: ``rows`` is neither a slice nor int64.
            ValueError: a step, another shape, or ids that are not sorted and unique.
        """
        if isinstance(rows, slice):
            if rows.step not in (None, 1):
                raise ValueError(f"rows must be a slice without a step, got step {rows.step}")
            start, stop, _ = rows.indices(n_rows)
            return cls(start, max(start, stop))
        if not isinstance(rows, Tensor) or rows.dtype != torch.int64:
            kind = rows.dtype if isinstance(rows, Tensor) else type(rows).__name__
            raise TypeError(f"rows must be a slice or an int64 tensor, got {kind}")
        if rows.ndim != 1:
            raise ValueError(f"rows must be one-dimensional, got {tuple(rows.shape)}")
        ids = rows.detach().cpu().contiguous().numpy()
        if len(ids) and not (ids[1:] > ids[:-1]).all():
            at = int((ids[1:] <= ids[:-1]).argmax()) + 1
            raise ValueError(f"rows must be sorted and unique, got {ids[at]} after {ids[at - 1]}")
        if len(ids) and (ids[0] < 0 or ids[-1] >= n_rows):
            bad = ids[0] if ids[0] < 0 else ids[-1]
            raise IndexError(f"rows must be at least 0 and below {n_rows}, got {bad}")
        return cls(0, len(ids), ids)

    def __len__(self) -> int:
        return self._stop - self._start

    def within(self, start: int, stop: int) -> tuple[slice, slice | Tensor]:
        """Places in the target for the wanted ones of rows ``start:stop``, and these rows, counted
        from ``start``."""
        if self._ids is None:
            low = min(max(self._start, start), stop)
            high = max(min(self._stop, stop), low)
            return slice(low - self._start, high - self._start), slice(low - start, high - start)
        first, last = (int(at) for at in np.searchsorted(self._ids, (start, stop)))
        if last - first == stop - start:
            return slice(first, last), slice(0, stop - start)
        return slice(first, last), torch.from_numpy(self._ids[first:last] - start)

    def meets(self, start: int, stop: int) -> bool:
        """Whether one of rows ``start:stop`` is wanted."""
        places, _ = self.within(start, stop)
        return places.stop > places.start

    def ids(self, dtype: torch.dtype) -> Tensor:
        """The rows, (R,) of ``dtype``."""
        if self._ids is None:
            return torch.arange(self._start, self._stop, dtype=dtype)
        return torch.from_numpy(self._ids).to(dtype)
