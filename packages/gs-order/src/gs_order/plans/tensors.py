# SPDX-License-Identifier: Apache-2.0
"""Plans of torch tensors: by kernels on CUDA where Triton is there, else by the CPU's loops.

Torch brings Triton with its CUDA builds for Linux. Elsewhere ids and mask are copied to the host,
and the lists back to the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gs_order.arrays import Array
from gs_order.plans.cpu.batch import make_lists as make_on_cpu
from gs_order.plans.lists import Lists
from gs_order.plans.slots import Slots


def make_lists(
    ids: torch.Tensor,
    mask: torch.Tensor,
    views: np.ndarray[Any, Any],
    retain: str | int,
    ahead: int,
) -> tuple[Lists, Slots | None]:
    """Lists and slots of a batch; arguments as for `plan`, checked for kind and shape."""
    if ids.is_cuda and _has_triton():
        from gs_order.plans.cuda.batch import make_lists as make_on_cuda

        return make_on_cuda(ids, mask, views, retain, ahead)
    lists, slots = make_on_cpu(ids.cpu().numpy(), mask.cpu().numpy(), views, retain, ahead)
    made: dict[int, torch.Tensor] = {}

    def tensors(arrays: dict[str, Array]) -> dict[str, Array]:
        """The arrays where the ids are; arrays that are shared stay shared."""
        for array in arrays.values():
            if id(array) not in made:
                made[id(array)] = torch.from_numpy(array).to(ids.device)
        return {kind: made[id(array)] for kind, array in arrays.items()}

    lists = replace(lists, ids=tensors(lists.ids), positions=tensors(lists.positions))
    return lists, None if slots is None else replace(slots, of=tensors(slots.of))


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
