# SPDX-License-Identifier: Apache-2.0
"""Which rows do not wait on the device where not all fit, without asking the device how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

Tensor = torch.Tensor


class Batch(Protocol):
    """What is asked of `plan_torch.Planner`."""

    n_views: int
    n_rows: int
    device: torch.device

    def seen_by(self, i: int, out: Tensor | None = None) -> Tensor:
        """(U,) bool: the rows that microbatch i sees."""

    def tally(self, times: Tensor, start: int = 0) -> Tensor:
        """(B,) int64: how many of ``times`` are each microbatch from ``start`` on."""


@dataclass(frozen=True)
class Kept:
    """Who waits, and what that leaves to move.

    Attributes:
        into, until: (W, U) int32: bit i says that microbatch i finds the row waiting, and that it
            lets the row wait.
        load, store: (B,) int64.
    """

    into: Tensor
    until: Tensor
    load: Tensor
    store: Tensor


def give_up(batch: Batch, capacity: int, ahead: int, visible: Tensor, together: Tensor) -> Kept:
    """Belady's rule (see `plan_belady`).

    Args:
        visible, together: (B,) int64 rows that microbatch i sees, and that i .. i + ahead see.
    """
    n, n_words = batch.n_views, -(-batch.n_views // 32)
    shape = (n_words, batch.n_rows)
    uses = torch.zeros(shape, dtype=torch.int32, device=batch.device)
    for i in range(n):
        uses[i // 32].bitwise_or_(batch.seen_by(i).int() << (i % 32))
    into, until = torch.zeros_like(uses), torch.zeros_like(uses)
    waiting = torch.zeros(batch.n_rows, dtype=torch.bool, device=batch.device)
    next_use = torch.full((batch.n_rows,), n, dtype=torch.int16, device=batch.device)
    last_use = torch.zeros(batch.n_rows, dtype=torch.int32, device=batch.device)
    load = visible.clone()
    for t in range(n):
        waiting &= ~_latest(batch, waiting, next_use, together[t] - capacity, t + ahead)
        here = batch.seen_by(t)
        kept = here & waiting
        load[t] -= kept.sum()
        into[t // 32].bitwise_or_(kept.int() << (t % 32))
        for word in range(t // 32 + 1):
            of_word = kept & (last_use // 32 == word)
            until[word].bitwise_or_(of_word.int() << (last_use % 32))
        last_use.masked_fill_(here, t)
        after = _next_bit(uses, t + 1, n)
        next_use = torch.where(here, after, next_use)
        waiting = torch.where(here, after < n, waiting)
    carried = torch.stack([((until[i // 32] >> (i % 32)) & 1).sum() for i in range(n)])
    return Kept(into, until, load, visible - carried)


def _latest(
    batch: Batch, waiting: Tensor, next_use: Tensor, beyond: Tensor, horizon: int
) -> Tensor:
    """Of the rows waiting for microbatches after ``horizon``, those to give up.

    That is ``beyond`` + their number of them, if positive: the ones needed last, by highest row
    among equals.
    """
    idle = waiting & (next_use > horizon)
    excess = beyond + idle.sum()
    waits = batch.tally(torch.where(idle, next_use, -1), horizon + 1)
    from_end = waits.flip(0).cumsum(0).flip(0)  # [j]: rows that wait for j or a later one
    # The one j of whose rows some go and some stay: the last with more than the excess. It is
    # compared with, never indexed by: an index of no dimensions is read back by the host.
    divided = (from_end > excess).sum() - 1
    gone = idle & (next_use > divided)
    of_it = idle & (next_use == divided)
    from_highest_row = of_it.sum() - of_it.cumsum(0)
    return gone | (of_it & (from_highest_row < excess - gone.sum()))


def _next_bit(words: Tensor, start: int, n: int) -> Tensor:
    """(U,) int16: the lowest bit at or after ``start`` in words (W, U) int32; n without any."""
    found = torch.full_like(words[0], n)
    for word in range(len(words) - 1, start // 32 - 1, -1):
        bits = words[word].long() & 0xFFFFFFFF
        if word == start // 32:
            bits = bits >> (start % 32) << (start % 32)
        # The lowest bit alone is a power of two: float32 holds it, and its exponent is exact, which
        # a logarithm need not be on every device.
        position = torch.frexp((bits & -bits).float()).exponent - 1
        found = torch.where(bits != 0, position + 32 * word, found)
    return found.to(torch.int16)
