# SPDX-License-Identifier: Apache-2.0
"""Kernels that count and write lists.

A program has a block of rows and walks through the microbatches.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK_ROWS = 512
"""Rows of a program. Three counts of up to so many fit into one int32, ten bits each."""

_SIZES = ["n_rows", "n_views", "n_blocks", "n_words"]
"""Compiled once, not anew for sizes that are 1 or multiples of 16."""


@triton.jit
def _seen(mask, views, i, rows, valid, n_words):  # type: ignore[no-untyped-def]
    """(BLOCK,) int32 0 or 1: the rows that microbatch i sees."""
    view = tl.load(views + i)
    word = tl.load(mask + rows.to(tl.int64) * n_words + view // 32, mask=valid, other=0)
    return (word >> (view % 32)) & 1


@triton.jit(do_not_specialize=_SIZES)
def count_kernel(  # type: ignore[no-untyped-def]
    mask,  # (U, W) int32
    views,  # (B,) int32
    counts,  # (4, B, blocks) int32: visible, load, store, final
    n_rows,
    n_views,
    n_blocks,
    n_words,
    RULE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < n_rows
    plane = n_views * n_blocks
    before = tl.zeros((BLOCK,), tl.int32)
    for i in range(n_views):
        here = _seen(mask, views, i, rows, valid, n_words)
        load = here & (1 - before)
        # What the one before stores is known now.
        store = before & (1 - here)
        before = here if RULE == 0 else before | here
        packed = tl.sum(here + (load << 10) + (store << 20), 0)
        at = counts + i * n_blocks + block
        tl.store(at, packed & 1023)
        tl.store(at + plane, (packed >> 10) & 1023)
        if RULE == 0:
            tl.store(at + 2 * plane - n_blocks, packed >> 20, mask=i > 0)
    after = tl.zeros((BLOCK,), tl.int32)
    for k in range(n_views):
        i = n_views - 1 - k
        here = _seen(mask, views, i, rows, valid, n_words)
        n_final = tl.sum(here & (1 - after), 0)
        at = counts + i * n_blocks + block
        tl.store(at + 3 * plane, n_final)
        if RULE == 1:
            tl.store(at + 2 * plane, n_final)
        if RULE == 0:
            tl.store(at + 2 * plane, n_final, mask=k == 0)
        after |= here


@triton.jit(do_not_specialize=_SIZES)
def fill_kernel(  # type: ignore[no-untyped-def]
    mask,
    views,
    kept_below,  # (B, B) int32, of CHOSEN: between uses p and j rows below [p, j] wait
    ids,  # (U,)
    counts,  # (4, B, blocks) int32
    ends,  # (4, B, blocks) int64
    n_loads,  # (U,) int32, of CHOSEN
    base_ends,  # (U,) int32, of CHOSEN: n_loads summed up
    visible_ids,
    load_ids,
    store_ids,
    returning_ids,
    final_ids,
    load_at,
    retain_at,
    store_at,
    carry_at,
    returning_at,
    final_at,
    visible_stay,
    load_stay,
    store_stay,
    returning_stay,
    final_stay,
    n_rows,
    n_views,
    n_blocks,
    n_words,
    RULE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    valid = rows < n_rows
    plane = n_views * n_blocks
    id_of = tl.load(ids + rows, mask=valid, other=0)
    stay = rows
    if RULE == 2:
        total = tl.load(n_loads + rows, mask=valid, other=0)
        stay = tl.load(base_ends + rows, mask=valid, other=0) - total - 1
    before = tl.zeros((BLOCK,), tl.int32)
    previous = tl.full((BLOCK,), -1, tl.int32)
    for i in range(n_views):
        cell = i * n_blocks + block
        n_here = tl.load(counts + cell)
        if n_here > 0:
            here = _seen(mask, views, i, rows, valid, n_words)
            if RULE == 2:
                used = (here != 0) & (previous >= 0)
                border = tl.load(kept_below + previous * n_views + i, mask=used, other=0)
                load = here & (rows >= border).to(tl.int32)
                stay += load
                previous = tl.where(here != 0, i, previous)
            else:
                load = here & (1 - before)
            packed = here + (load << 10)
            rank = tl.cumsum(packed, 0) - packed
            rank_here, rank_load = rank & 1023, rank >> 10
            at_here = tl.load(ends + cell) - n_here
            at_load = tl.load(ends + plane + cell) - tl.load(counts + plane + cell)
            first = tl.load(ends + i * n_blocks) - tl.load(counts + i * n_blocks)
            position = (at_here - first).to(tl.int32) + rank_here
            is_here, is_load = here != 0, load != 0
            tl.store(visible_ids + at_here + rank_here, id_of, mask=is_here)
            tl.store(load_ids + at_load + rank_load, id_of, mask=is_load)
            tl.store(load_at + at_load + rank_load, position, mask=is_load)
            at_retain, rank_retain = at_here - at_load, rank_here - rank_load
            tl.store(retain_at + at_retain + rank_retain, position, mask=is_here & (load == 0))
            if RULE != 0:
                tl.store(visible_stay + at_here + rank_here, stay, mask=is_here)
                tl.store(load_stay + at_load + rank_load, stay, mask=is_load)
            before = here if RULE == 0 else before | here
        else:
            if RULE == 0:
                before = tl.zeros((BLOCK,), tl.int32)
    # ``stay`` is now that of each row's last load.
    after = tl.zeros((BLOCK,), tl.int32)
    following = tl.zeros((BLOCK,), tl.int32)
    next_use = tl.full((BLOCK,), -1, tl.int32)
    for k in range(n_views):
        i = n_views - 1 - k
        cell = i * n_blocks + block
        n_here = tl.load(counts + cell)
        if n_here > 0:
            here = _seen(mask, views, i, rows, valid, n_words)
            final = here & (1 - after)
            if RULE == 2:
                again = (here != 0) & (next_use >= 0)
                border = tl.load(kept_below + i * n_views + next_use, mask=again, other=0)
                store = here & (rows >= border).to(tl.int32)
                stay -= store & (1 - final)
                next_use = tl.where(here != 0, i, next_use)
            elif RULE == 1:
                store = final
            else:
                store = here & (1 - following)
            packed = here + (store << 10) + (final << 20)
            rank = tl.cumsum(packed, 0) - packed
            rank_here, rank_store, rank_final = rank & 1023, (rank >> 10) & 1023, rank >> 20
            at_here = tl.load(ends + cell) - n_here
            at_store = tl.load(ends + 2 * plane + cell) - tl.load(counts + 2 * plane + cell)
            at_final = tl.load(ends + 3 * plane + cell) - tl.load(counts + 3 * plane + cell)
            first = tl.load(ends + i * n_blocks) - tl.load(counts + i * n_blocks)
            position = (at_here - first).to(tl.int32) + rank_here
            at_carry, rank_carry = at_here - at_store, rank_here - rank_store
            tl.store(carry_at + at_carry + rank_carry, position, mask=(here != 0) & (store == 0))
            is_final = final != 0
            tl.store(final_ids + at_final + rank_final, id_of, mask=is_final)
            tl.store(final_at + at_final + rank_final, position, mask=is_final)
            if RULE != 0:
                tl.store(final_stay + at_final + rank_final, stay, mask=is_final)
            if RULE != 1:
                is_store = store != 0
                tl.store(store_ids + at_store + rank_store, id_of, mask=is_store)
                tl.store(store_at + at_store + rank_store, position, mask=is_store)
                returns = is_store & (final == 0)
                at_returning = at_store - at_final + rank_store - rank_final
                tl.store(returning_ids + at_returning, id_of, mask=returns)
                tl.store(returning_at + at_returning, position, mask=returns)
                if RULE == 2:
                    tl.store(store_stay + at_store + rank_store, stay, mask=is_store)
                    tl.store(returning_stay + at_returning, stay, mask=returns)
            after |= here
            following = here
        else:
            following = tl.zeros((BLOCK,), tl.int32)
