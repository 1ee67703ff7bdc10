# SPDX-License-Identifier: Apache-2.0
"""Blocks in slots by Triton kernels; see `gs_train.blocks.slot_rows` and `box_fits`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor

from gs_train.blocks.block_kernels import count_kernel, fit_kernel, list_kernel, places_kernel
from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.reach_tables import ReachTables
from gs_train.blocks.sleep_reach import LAST_STEP
from gs_train.rows.attributes import GEOMETRY_WIDTH

_PLACES, _FITS = 1024, 64


def places(layout: Tensor, n_rows: int, block_rows: int) -> Tensor:
    """See `SlotRows`, whose attributes these are."""
    n = layout.shape[1]
    out = torch.empty(n_rows, dtype=torch.int64, device=layout.device)
    with _on(layout):
        places_kernel[(n,)](layout, n, block_rows, out, CHUNK=_PLACES)
    return out


def listed(
    layout: Tensor, n_rows: int, block_rows: int, tables: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `ListedRows`; see `SlotRows`, whose attributes the first three are."""
    n, words = layout.shape[1], layout.shape[0] - 3
    # Each aligned on its own: Triton compiles again for other alignments.
    device = layout.device
    places = torch.empty(n_rows, dtype=torch.int64, device=device)
    ids, keys, last_step = (torch.empty(n_rows, dtype=torch.int32, device=device) for _ in range(3))
    mask = torch.empty((n_rows, words), dtype=torch.int32, device=device)
    rows = places, ids, keys, last_step, mask
    with _on(layout):
        list_kernel[(n,)](
            layout, tables["key"], tables["last_step"], n, block_rows, *rows,
            WORDS=words, CHUNK=_PLACES,
        )  # fmt: skip
    return rows


def count(layout: Tensor, marks: Tensor) -> Tensor:
    """See `SlotRows`."""
    n = layout.shape[1]
    counts = torch.empty(n, dtype=torch.int32, device=layout.device)
    with _on(layout):
        count_kernel[(n,)](marks.view(torch.uint8), layout, n, counts, CHUNK=_PLACES)
    return counts


def least_by_block(
    layout: Tensor, block_rows: int, tables: Mapping[str, Tensor], reaches: ReachTables
) -> Tensor:
    """See `gs_train.blocks.box_fits.least_by_block`; the first two are of `SlotRows`."""
    n = layout.shape[1]
    least = torch.empty((n, 9), dtype=torch.float64, device=layout.device)
    if not n:
        return least
    by_step, numbers, step = reaches.uploaded()
    with _on(least):
        fit_kernel[(n,)](
            *(tables[f"geometry{moment}"] for moment in MOMENTS), tables["last_step"],
            layout, by_step, numbers, least,
            n, step, LAST_STEP, block_rows,
            WIDTH=GEOMETRY_WIDTH, CHUNK=_FITS,
        )  # fmt: skip
    return least


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """The tensor's device for a launch; none where kernels are interpreted."""
    return torch.cuda.device(tensor.get_device()) if tensor.is_cuda else contextlib.nullcontext()
