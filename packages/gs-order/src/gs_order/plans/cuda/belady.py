# SPDX-License-Identifier: Apache-2.0
"""Which rows wait on a CUDA device where not all fit, decided there without a word to the host.

The rule is that of `gs_order.plans.cpu.belady`; the two give the same plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gs_order.plans.cuda.belady_kernels import (
    begun_kernel,
    border_kernel,
    interval_kernel,
    leave_kernel,
    recount_kernel,
)
from gs_order.plans.cuda.kernels import BLOCK_ROWS

Tensor = torch.Tensor

_TABLE_ENTRIES = 1 << 22
_MOST_TABLES = 32
_TILE = 1024


@dataclass(frozen=True)
class Choice:
    """What is kept within a capacity.

    Attributes:
        is_needed: (1,) int32: 0 where everything fits; all else then says nothing.
        kept_below: (B, B) int32: of the rows between uses p and j those below [p, j] wait.
        n_loads: (U,) int32 times that each row is loaded.
        together: (B,) int32 rows that microbatches i .. i + ahead see together.
    """

    is_needed: Tensor
    kept_below: Tensor
    n_loads: Tensor
    together: Tensor


def choose_within(mask: Tensor, views: Tensor, counts: Tensor, capacity: int, ahead: int) -> Choice:
    """Choose, and count loads and stores anew if something has to go.

    Args:
        mask: (U, W) int32, contiguous.
        views: (B,) int32.
        counts: (4, B, blocks) int32 of rows that stay to their last use: visible, load, store,
            final of each block. Loads and stores are changed.
        capacity: below U.
    """
    n_rows, n_words = mask.shape
    n, n_blocks = counts.shape[1:]
    capacity = max(capacity, 0)
    todo = (_peak(counts, ahead) > capacity).int()[None] * n

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=mask.device)

    n_tables = max(1, min(_MOST_TABLES, _TABLE_ENTRIES // (n * n)))
    tables, together = zeros(n_tables, n, n), zeros(n)
    seen, blocks = (mask, views, todo), (n_blocks,)
    interval_kernel[blocks](
        *seen, tables, together, n_rows, n, n_words, n_tables, ahead, BLOCK=BLOCK_ROWS
    )
    intervals = tables.sum(0, dtype=torch.int32)
    events = [zeros(n) for _ in range(4)]  # emptied, first_event, next_event, n_leaving
    size = 1 << max(4, (n - 1).bit_length())
    leave_kernel[(1,)](intervals, together, todo, *events, n, capacity, ahead, VIEWS=size)
    waiting = zeros(n, n_blocks)
    sizes = (n_rows, n, n_blocks, n_words)
    begun_kernel[blocks](*seen, *events[:3], waiting, *sizes, BLOCK=BLOCK_ROWS)
    kept_below, n_tiles = zeros(n, n), -(-n_blocks // _TILE)
    border_kernel[(n,)](
        mask, views, *events, waiting, kept_below, *sizes, n_tiles,
        VIEWS=size, TILE=_TILE, BLOCK=BLOCK_ROWS,
    )  # fmt: skip
    n_loads = zeros(n_rows)
    recount_kernel[blocks](*seen, kept_below, counts, n_loads, *sizes, BLOCK=BLOCK_ROWS)
    return Choice(todo, kept_below, n_loads, together)


def _peak(counts: Tensor, ahead: int) -> Tensor:
    """() int64, as `plans.slots.most_live`: the most rows that last use keeps on the device."""
    loaded, stored = counts[1:3].sum(2).cumsum(1)
    freed = torch.zeros_like(loaded)
    freed[ahead + 1 :] = stored[: max(0, len(stored) - ahead - 1)]
    return (loaded - freed).max()
