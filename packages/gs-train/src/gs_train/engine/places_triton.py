# SPDX-License-Identifier: Apache-2.0
"""`gs_train.engine.places` by Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gs_train.engine.places_kernels import VIEWS, count_kernel, find_kernel

_BLOCK = 1024


def count(mask: Tensor, n_views: int) -> Tensor:
    """(B, blocks) int32: the rows that each microbatch sees up to each block's end.

    Args:
        mask: (U, W) int32, `Seen.mask`, U above 0.
    """
    n_rows, n_words = mask.shape
    n_blocks = -(-n_rows // _BLOCK)
    counts = torch.empty((n_views, n_blocks), dtype=torch.int32, device=mask.device)
    with torch.cuda.device(mask.get_device()):
        count_kernel[(n_blocks, n_words)](
            mask, counts, n_rows, n_views, n_words, n_blocks, BLOCK=_BLOCK
        )
    return torch.cumsum(counts, 1, dtype=torch.int32)


def find(
    mask: Tensor, ends: Tensor, chosen: Sequence[int], n: int, ids: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Places, ids and slots of the rows that each of some microbatches sees, one microbatch behind
    the other.

    Args:
        ends: what :func:`count` gave.
        chosen: microbatches, as many as the kernel has at most.
        n: rows that they see, added up.
        ids, slots: (U,) integers; where they are one tensor, so are those that are found.
    """
    place, out_ids = torch.empty(n, dtype=torch.int32, device=mask.device), ids.new_empty(n)
    out_slots = out_ids if slots is ids else slots.new_empty(n)
    n_blocks = ends.shape[1]
    views = [*chosen, *[chosen[-1]] * (len(VIEWS) - len(chosen))]
    with torch.cuda.device(mask.get_device()):
        find_kernel[(n_blocks, len(chosen))](
            mask, ends, *views, ids, slots, place, out_ids, out_slots,
            *mask.shape, n_blocks, BLOCK=_BLOCK,
        )  # fmt: skip
    return place, out_ids, out_slots
