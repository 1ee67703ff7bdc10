# SPDX-License-Identifier: Apache-2.0
"""What rows have missed, in device memory: uploaded once a step, of the past only what is new."""

from __future__ import annotations

import threading
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from gs_adam import _core

_FIRST_STEPS = 1024
# One size for almost all uploads, so that page-locked memory is allocated only for the first ones.
_STAGED_BYTES = 1 << 16


class _Upload(NamedTuple):
    """A step's tables, ready on other streams than their own once `is_ready`."""

    recent: torch.Tensor
    past: torch.Tensor
    stream: int
    is_ready: torch.cuda.Event


class SleepTables:
    """Follows an optimizer's schedule on one CUDA device.

    Args:
        device: with its index.

    Asynchrony: copies are queued on the current stream from page-locked memory; never
        synchronises.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        # Of plans that somebody holds: an optimizer those of its open steps.
        self._uploads: WeakKeyDictionary[_core.StepPlan, _Upload] = WeakKeyDictionary()
        self._last: tuple[_core.StepPlan, _Upload] | None = None

    def of(
        self, plan: _core.StepPlan, stream: torch.cuda.Stream
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sleeps that end at the step before the plan's, and the steps before it.

        Args:
            plan: of the step.
            stream: the current one.

        Returns:
            (bytes,) uint8 each, to be used on the stream.
        """
        with self._lock:
            if self._last is not None and self._last[0] is plan:
                upload = self._last[1]
            elif (earlier := self._uploads.get(plan)) is not None:
                upload = earlier
            else:
                upload = self._upload(plan, stream)
                self._uploads[plan] = upload
                self._last = (plan, upload)
        _use(upload, stream)
        return upload.recent, upload.past

    def _upload(self, plan: _core.StepPlan, stream: torch.cuda.Stream) -> _Upload:
        past, first = self._continued(plan, stream)
        n_step = plan.past_bytes
        begin, end = first * n_step, plan.step * n_step
        n_recent, n_past = plan.recent_bytes, end - begin
        recent = torch.empty(n_recent, dtype=torch.uint8, device=self._device)
        # torch keeps page-locked memory that it hands out from reuse until its copies are done.
        size = max(n_recent + n_past, _STAGED_BYTES)
        staged = torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")
        on_host = staged.numpy()
        plan.write_recent(on_host[:n_recent])
        recent.copy_(staged[:n_recent], non_blocking=True)
        if n_past:
            plan.write_past(first, on_host[n_recent : n_recent + n_past])
            past[begin:end].copy_(staged[n_recent : n_recent + n_past], non_blocking=True)
        is_ready = torch.cuda.Event()
        is_ready.record(stream)
        return _Upload(recent, past, stream.cuda_stream, is_ready)

    def _continued(
        self, plan: _core.StepPlan, stream: torch.cuda.Stream
    ) -> tuple[torch.Tensor, int]:
        """Where the past goes, and the first step of it that is not there."""
        size = plan.step * plan.past_bytes
        if self._last is not None:
            last, upload = self._last
            if plan.shares_past(last) and size <= upload.past.nbytes:
                _use(upload, stream)
                return upload.past, min(last.step, plan.step)
        room = max(_FIRST_STEPS * plan.past_bytes, 2 * size)
        return torch.empty(room, dtype=torch.uint8, device=self._device), 0


def _use(upload: _Upload, stream: torch.cuda.Stream) -> None:
    if stream.cuda_stream == upload.stream:
        return
    stream.wait_event(upload.is_ready)
    upload.recent.record_stream(stream)
    upload.past.record_stream(stream)
