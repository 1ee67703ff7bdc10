# SPDX-License-Identifier: Apache-2.0
"""Plan a batch: checks first, then the maker for its arrays."""

from __future__ import annotations

import numpy as np

from gs_order.arrays import Array, check_ids, check_mask, check_n_views, is_torch
from gs_order.checks import whole_number
from gs_order.plans.checks import checked_order, checked_retain
from gs_order.plans.cpu.batch import make_lists
from gs_order.plans.steps import Plan
from gs_order.ragged import Ragged


def plan(
    ids: Array, mask: Array, order: Array, *, retain: str | int = "previous", ahead: int = 0
) -> Plan:
    """Plan the rows that move, stay and finish with each microbatch.

    Args:
        ids: (U,) int32 or int64, sorted, unique; numpy, or torch on any device.
        mask: (U, W) uint32 numpy or int32 torch, of the same kind and device: bit b % 32, least
            significant first, of word b // 32 says that view b sees the row. Rows that no view
            sees take no part.
        order: (B,) permutation of the views, B >= 1.
        retain: rows that stay on the device. ``"previous"``: rows that the next microbatch also
            sees. ``"last_use"``: every row until its last use: each row crosses once each way. A
            number of rows: every row until its last use while the number holds all rows on the
            device, else the row with the latest next use leaves first (Belady).
        ahead: microbatches that loads run ahead of rendering. Counts towards a capacity, and keeps
            slots apart (see `Plan`).

    Returns:
        a `Plan` of arrays of the inputs' kind, on their device.

    Raises:
        ValueError: ids not sorted and unique, or not one for each row of the mask; a mask of
            another width than the views need, or with bits beyond them; an order that is no
            permutation or empty; an unknown ``retain``; a capacity below the rows that ``ahead`` +
            1 consecutive microbatches see together.
        TypeError: ids that are no integers of 32 or 64 bits, a mask that is not of 32-bit words,
            arrays of different kinds or devices, a capacity that is no integer.

    Asynchrony: on CUDA with Triton (torch brings Triton on Linux), one synchronisation, for the
        counts; the lists are then enqueued on the current stream. On other devices the inputs are
        copied to the host, the host makes the lists, and the lists are copied back.
    Cost: proportional to U * B bits and to the lists' lengths; threads over rows on the CPU.

    >>> ids = np.array([10, 20, 30, 40], np.int32)
    >>> mask = np.array([[0b001], [0b011], [0b110], [0b101]], np.uint32)
    >>> step = plan(ids, mask, [0, 1, 2])[0]
    >>> [part.tolist() for part in (step.load, step.carry, step.returning, step.final)]
    [[10, 20, 40], [20], [40], [10]]
    """
    views = checked_order(order)
    check_n_views(len(views), check_mask(mask))
    check_ids(ids, mask)
    retain = checked_retain(retain)
    ahead = whole_number("ahead", ahead)
    if not is_torch(ids):
        lists, slots = make_lists(ids, mask, views, retain, ahead)
    else:
        from gs_order.plans import tensors

        lists, slots = tensors.make_lists(ids.detach(), mask.detach(), views, retain, ahead)
    offsets = lists.offsets
    return Plan(
        order=views,
        retain=retain,
        ahead=ahead,
        ids={kind: Ragged(values, offsets[kind]) for kind, values in lists.ids.items()},
        positions={k: Ragged(values, offsets[k]) for k, values in lists.positions.items()},
        slots=None if slots is None else {k: Ragged(v, offsets[k]) for k, v in slots.of.items()},
        n_slots=int(np.diff(offsets["visible"]).max()) if slots is None else slots.n_slots,
    )
