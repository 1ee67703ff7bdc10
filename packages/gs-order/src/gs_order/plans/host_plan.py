# SPDX-License-Identifier: Apache-2.0
"""Ids of a plan in host memory, for the threads that gather, consume and optimize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def host_plan(ids: dict[str, Ragged]) -> HostPlan:
    """The four lists and, from CUDA, the start of their copies; what is shared is copied once."""
    if not is_torch(ids["load"].values):
        return HostPlan(**{kind: ids[kind] for kind in _KINDS})
    import torch

    copies: dict[int, Any] = {}
    event = None
    for kind in _KINDS:
        values = ids[kind].values
        if id(values) in copies:
            continue
        if values.is_cuda:
            pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = pinned.copy_(values, non_blocking=True)
        copies[id(ids[kind].values)] = values.numpy()
    if ids["load"].values.is_cuda:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(ids["load"].values.device))
    lists = {kind: Ragged(copies[id(ids[kind].values)], ids[kind].offsets) for kind in _KINDS}
    return HostPlan(**lists, _event=event)
