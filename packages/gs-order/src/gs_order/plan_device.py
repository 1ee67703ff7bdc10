# SPDX-License-Identifier: Apache-2.0
"""Plans of torch tensors: which implementation makes them on which device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gs_order import plan_numpy, plan_torch
from gs_order.arrays import Array
from gs_order.plan_lists import Lists
from gs_order.plan_slots import Slots

Maker = Callable[..., tuple[Lists, Slots | None]]
"""Takes ids, mask, views, retain, ahead as `plan` does, checked for kind and shape."""


def maker_for(ids: torch.Tensor) -> Maker:
    """Compiled loops on the CPU; kernels on CUDA where triton is there; else torch operations."""
    if ids.device.type == "cpu":
        return _on_cpu
    if ids.is_cuda and has_triton():
        from gs_order.plan_triton import make_lists

        return make_lists
    return plan_torch.make_lists


@functools.cache
def has_triton() -> bool:
    """Whether triton can be imported; torch brings it for CUDA on Linux."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def _on_cpu(
    ids: torch.Tensor,
    mask: torch.Tensor,
    views: np.ndarray[Any, Any],
    retain: str | int,
    ahead: int,
) -> tuple[Lists, Slots | None]:
    """Tensors over the memory of numpy arrays; arrays that are shared stay shared."""
    lists, slots = plan_numpy.make_lists(ids.numpy(), mask.numpy(), views, retain, ahead)
    made: dict[int, torch.Tensor] = {}

    def tensors(arrays: dict[str, Array]) -> dict[str, Array]:
        for array in arrays.values():
            if id(array) not in made:
                made[id(array)] = torch.from_numpy(array)
        return {kind: made[id(array)] for kind, array in arrays.items()}

    lists = replace(lists, ids=tensors(lists.ids), positions=tensors(lists.positions))
    return lists, None if slots is None else replace(slots, of=tensors(slots.of))
