# SPDX-License-Identifier: Apache-2.0
"""The streams beside the renderer's, and the order between them; on the CPU nothing of the kind."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

Name = Literal["compute", "load", "store", "cull"]


class Lanes:
    """Streams by name; ``compute`` is torch's current one. Without CUDA all calls do nothing.

    Loads and stores have priority: their kernels are small, and rendering waits for them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, torch.cuda.Stream] = {}
        if device.type == "cuda":
            for name in ("load", "store", "cull"):
                self._streams[name] = torch.cuda.Stream(device, priority=-1)

    def stream(self, name: Name) -> torch.cuda.Stream | None:
        """For calls that take a stream; None on the CPU."""
        if self._device.type != "cuda":
            return None
        if name == "compute":
            return torch.cuda.current_stream(self._device.index)
        return self._streams[name]

    def on(self, name: Name) -> AbstractContextManager[object]:
        """Makes a stream torch's current one."""
        if self._device.type != "cuda" or name == "compute":
            return nullcontext()
        return torch.cuda.stream(self._streams[name])

    def mark(self, name: Name) -> torch.cuda.Event | None:
        """An event behind everything on a stream so far."""
        stream = self.stream(name)
        if stream is None:
            return None
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait(self, name: Name, event: torch.cuda.Event | None) -> None:
        """Later work on a stream waits for an event; None is one that has passed."""
        if event is None:
            return
        stream = self.stream(name)
        if stream is not None:
            stream.wait_event(event)

    def has_passed(self, event: torch.cuda.Event | None) -> bool:
        """Whether everything before an event is done. Does not synchronise."""
        return event is None or event.query()

    def share(self, name: Name, *tensors: Tensor) -> None:
        """Tensors made on another stream are used on this one: their memory becomes others' only
        after that."""
        stream = self.stream(name)
        for tensor in tensors:
            if stream is not None:
                tensor.record_stream(stream)
