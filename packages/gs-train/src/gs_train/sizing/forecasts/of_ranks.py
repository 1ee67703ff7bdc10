# SPDX-License-Identifier: Apache-2.0
"""What ranks take beside their rows: memory of exchanges, memory of views that are drawn from the
splats of all ranks, and the time of exchanges.

Of R rows of one rank that a view shows, W times as many splats reach the rank that draws the view.
Each rank draws one view a round, and up to three rounds are on their way.
"""

from __future__ import annotations

import math

from gs_train.engine.places import TOGETHER
from gs_train.ranks.buffers import room_for
from gs_train.ranks.exchange import N_SETS
from gs_train.renderers.footprint import Footprint, Size
from gs_train.renderers.records import GRADIENT_WORDS, RECORD_WORDS
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_WORD = 4
_RECORD = _WORD * (RECORD_WORDS + 1)  # with its key
_GRADIENT = _WORD * GRADIENT_WORDS
_RADII = 8
_PROJECTED = 80  # bytes of a row's splat for autograd
_CALL_S = 25e-6  # of a collective of a few bytes between GPUs; measured
_CALLS = 3  # of a round: records, keys, gradients

# Of the thread that launches a rank's work, upper bounds: two H200 with 16 cores each took so long
# for batches of 1 to 64 views, most of which the device bounded.
_LAUNCHING_S = 1.8e-3  # a batch
_LAUNCHING_OWN_S = 0.36e-3  # a view of the batch, into which the rank projects its rows
_LAUNCHING_DRAWN_S = 1.1e-3  # a view that the rank draws
_CUTTING_S = 2.0e-3  # besides, a batch that cuts views; views are supposed to be cut where they can


def rounds_of(work: Workload) -> int:
    """Rounds of a batch: the views or crops that one rank draws."""
    return -(-work.batch_size // work.n_ranks)


def exchange_bytes(work: Workload, rows: int) -> int:
    """Bytes of a rank's buffers: records out and in, and gradients of those that went out.

    Args:
        rows: of one rank, that the largest view shows.
    """
    n = room_for(work.n_ranks * rows)
    a_row = 2 * _RECORD + _GRADIENT
    return min(N_SETS, rounds_of(work)) * n * a_row


def shared_rendering_bytes(
    work: Workload, rows: int, place: int, share: float, tables: Footprint | None, *, loss: int
) -> int:
    """Bytes of a rank that draws a view from records, with its own rows in the views of the rounds
    that are on their way.

    Args:
        rows: of one rank in a view.
        place: bytes of a row's place in the batch.
        share: of the largest view, that these rows are.
        tables: of rows that are projected where they lie; None: they are copied.
        loss: bytes of a pixel that the loss takes.
    """
    attributes = _WORD * (GEOMETRY_WIDTH + work.appearance)
    own = min(N_SETS, rounds_of(work)) * work.n_ranks * rows
    of_own = own * _RADII
    if tables is None:  # in the backward pass one view's copies have gradients
        of_own = own * (attributes + _PROJECTED) + attributes * rows
    # Of views whose rows are found together, and of those that are on their way.
    held = min(2 * TOGETHER + N_SETS * work.n_ranks, max(work.batch_size, work.n_ranks))
    of_own += place * rows * held
    drawn = work.n_ranks * rows
    counted = math.ceil(work.n_ranks * work.most.intersections * share)
    size = Size(drawn, 0, counted, work.pixels)  # splats come without attributes
    footprint = work.view_memory.copies if tables is None else tables
    gradients = _GRADIENT * drawn
    on_their_way = min(2, rounds_of(work)) * gradients  # those of the round before have not gone
    return of_own + footprint.bytes(size, loss=loss) + on_their_way


def exchange_s(work: Workload, rates: Rates) -> float:
    """Seconds of the exchanges of a mean batch; 0 of one rank."""
    if work.n_ranks == 1:
        return 0.0
    a_row = _RECORD + _GRADIENT
    off_rank = work.mean.visible * (work.n_ranks - 1) / work.n_ranks
    return a_row * off_rank / rates.between_ranks + _CALLS * rounds_of(work) * _CALL_S


def with_exchange(batch_s: float, work: Workload, exchanged_s: float) -> float:
    """Seconds of a batch with its exchanges. The first round comes before anything is drawn, and
    gradients of the last one return after all is; others travel while views are drawn. No batch is
    shorter than it takes to launch."""
    if work.n_ranks == 1:
        return batch_s
    exposed_s = exchanged_s / rounds_of(work)
    return max(max(batch_s, exchanged_s - exposed_s) + exposed_s, launching_s(work))


def launching_s(work: Workload) -> float:
    """Seconds for which the thread that launches a rank's work is busy in a batch."""
    drawn_s = rounds_of(work) * _LAUNCHING_DRAWN_S
    cutting_s = _CUTTING_S if work.batch_size % work.n_ranks else 0.0
    return _LAUNCHING_S + work.batch_size * _LAUNCHING_OWN_S + drawn_s + cutting_s
