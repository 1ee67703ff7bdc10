# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The Triton kernels of `places_triton`: a program has ``BLOCK`` of the batch's rows."""

from __future__ import annotations

import triton
import triton.language as tl

VIEWS = [f"view{k}" for k in range(8)]
_SIZES = ["n_rows", "n_views", "n_words", "n_blocks", *VIEWS]
"""Compiled once, not anew for sizes that are 1 or multiples of 16."""


@triton.jit(do_not_specialize=_SIZES)
def count_kernel(
    mask,  # (n_rows, n_words) int32
    counts,  # (n_views, n_blocks) int32
    n_rows, n_views, n_words, n_blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One word of a block's rows: how many have each of its bits."""
    block, word = tl.program_id(0), tl.program_id(1)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(mask + rows.to(tl.int64) * n_words + word, mask=rows < n_rows, other=0)
    at = counts + (32 * word).to(tl.int64) * n_blocks + block
    for bit in range(32):
        total = tl.sum((bits >> bit) & 1, 0)
        tl.store(at, total, mask=32 * word + bit < n_views)
        at += n_blocks


@triton.jit(do_not_specialize=_SIZES)
def find_kernel(
    mask,  # (n_rows, n_words) int32
    ends,  # (n_views, n_blocks) int32: rows of each view up to each block's end
    view0, view1, view2, view3, view4, view5, view6, view7,
    ids, slots,  # (n_rows,)
    place, out_ids, out_slots,  # one for each row that each of the views sees, view after view
    n_rows, n_words, n_blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The rows of a block that one of the views sees."""
    block, chosen = tl.program_id(0), tl.program_id(1)
    views = (view0, view1, view2, view3, view4, view5, view6, view7)
    view, first = view0, tl.zeros((), tl.int64)
    last = ends + n_blocks - 1  # of a view: how many rows it sees
    for k in tl.static_range(8):
        view = tl.where(chosen == k, views[k], view)
        seen = tl.load(last + tl.cast(views[k], tl.int64) * n_blocks, mask=k < chosen, other=0)
        first += seen
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < n_rows
    word = tl.load(mask + rows.to(tl.int64) * n_words + view // 32, mask=valid, other=0)
    sees = (word >> (view % 32)) & 1
    end = tl.load(ends + tl.cast(view, tl.int64) * n_blocks + block)
    to = first + end - tl.sum(sees, 0) + tl.cumsum(sees, 0) - 1
    wanted = sees != 0
    tl.store(place + to, rows, mask=wanted)
    tl.store(out_ids + to, tl.load(ids + rows, mask=wanted), mask=wanted)
    tl.store(out_slots + to, tl.load(slots + rows, mask=wanted), mask=wanted)
