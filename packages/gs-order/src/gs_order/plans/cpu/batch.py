# SPDX-License-Identifier: Apache-2.0
"""One batch on its way from bits to lists and slots, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_order.plans.checks import check_capacity, check_rising
from gs_order.plans.cpu.belady import sets_within
from gs_order.plans.cpu.bits import LOAD, STORE, needed_together, sets_of
from gs_order.plans.cpu.lists import extract
from gs_order.plans.cpu.slots import assign_slots
from gs_order.plans.lists import Lists
from gs_order.plans.rules import LAST_USE, PREVIOUS
from gs_order.plans.slots import Slots, most_live
from gs_order.ragged import offsets_of


def make_lists(
    ids: Any, mask: Any, views: np.ndarray[Any, Any], retain: str | int, ahead: int
) -> tuple[Lists, Slots | None]:
    """Lists and slots of a batch; arguments as for `plan`, checked for kind and shape."""
    check_rising(bool((ids[1:] > ids[:-1]).all()))
    sets = sets_of(mask, views, PREVIOUS if retain == "previous" else LAST_USE)
    if not isinstance(retain, str):
        together = needed_together(sets, ahead)
        check_capacity(retain, together, ahead)
        offsets = {"load": offsets_of(sets.total(LOAD)), "store": offsets_of(sets.total(STORE))}
        if most_live(offsets, ahead) > retain:
            sets = sets_within(sets, retain, ahead, together)
    lists, ends, places = extract(sets, np.ascontiguousarray(ids))
    if retain == "previous":
        return lists, None
    n_slots = most_live(lists.offsets, ahead)
    return lists, assign_slots(sets, lists, ends, places, n_slots)
