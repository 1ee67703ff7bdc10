# SPDX-License-Identifier: Apache-2.0
"""Ids of a plan in host memory, for the threads that gather, consume and optimize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gs_order.arrays import is_torch
from gs_order.ragged import Ragged

_KINDS = ("load", "store", "final", "returning")


@dataclass(frozen=True)
class HostPlan:
    """``load[i]``, ``store[i]``, ``final[i]``, ``returning[i]``: sorted ids of microbatch i.

    Asynchrony: the ids may be read once ``is_done``, or after ``wait()``.
    """

    load: Ragged
    store: Ragged
    final: Ragged
    returning: Ragged
    _event: Any = None

    def wait(self) -> HostPlan:
        """Block until the ids have arrived; returns itself."""
        if self._event is not None:
            self._event.synchronize()
        return self

    @property
    def is_done(self) -> bool:
        """Whether the ids have arrived."""
        return self._event is None or bool(self._event.query())


def host_plan(visible: Ragged, positions: dict[str, Ragged]) -> HostPlan:
    """Look up the ids of the four lists and, from CUDA, start one copy of them."""
    if not is_torch(visible.values):
        lists = {
            kind: Ragged(_ids_numpy(visible, positions[kind]), positions[kind].offsets)
            for kind in _KINDS
        }
        return HostPlan(**lists)
    import torch

    ids = torch.cat([_ids_torch(visible, positions[kind]) for kind in _KINDS])
    event = None
    if ids.is_cuda:
        pinned = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
        pinned.copy_(ids, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(ids.device))
        ids = pinned
    flat = ids.numpy()
    ends = np.cumsum([positions[kind].offsets[-1] for kind in _KINDS])
    parts = np.split(flat, ends[:-1])
    return HostPlan(
        **{kind: Ragged(part, positions[kind].offsets) for kind, part in zip(_KINDS, parts)},
        _event=event,
    )


def _ids_numpy(visible: Ragged, positions: Ragged) -> np.ndarray[Any, Any]:
    return visible.values[positions.values + np.repeat(visible.offsets[:-1], positions.counts)]


def _ids_torch(visible: Ragged, positions: Ragged) -> Any:
    import torch

    device = visible.values.device
    first = torch.as_tensor(visible.offsets[:-1]).to(device, non_blocking=True)
    number = torch.as_tensor(positions.counts).to(device, non_blocking=True)
    base = torch.repeat_interleave(first, number, output_size=len(positions.values))
    return visible.values[positions.values + base]
