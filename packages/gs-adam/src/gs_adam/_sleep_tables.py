# SPDX-License-Identifier: Apache-2.0
"""What rows have missed, in device memory: uploaded once a step, of the past only what is new."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import torch

from gs_adam import _core

_FIRST_STEPS = 1024
# One size for almost all uploads, so that page-locked memory is allocated only for the first ones.
_STAGED_BYTES = 1 << 16
# Steps whose uploads are kept: rows of a step before these need another one.
_KEPT = 4
# Steps whose sleeps are allocated together.
_STEPS_TOGETHER = 16


class _Staging(NamedTuple):
    """Page-locked memory, free once what was copied from it `is_copied`."""

    memory: torch.Tensor
    is_copied: torch.cuda.Event


# By device and bytes, in the order of use; all of the process, never given back: torch would hand
# memory out again while a native copy reads it.
_staged: dict[tuple[int, int], deque[_Staging]] = {}


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
        self._uploads: deque[tuple[_core.StepPlan, _Upload]] = deque(maxlen=_KEPT)  # the last ones
        self._rooms: dict[int, list[torch.Tensor]] = {}  # of later steps, by stream
        # That rooms were cut from, the last two by stream: all uploads that are kept lie in them,
        # so that memory is the same from step to step.
        self._pieces: dict[int, deque[torch.Tensor]] = {}

    def of(self, plan: _core.StepPlan, handle: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The sleeps that end at the step before the plan's, and the steps before it.

        Args:
            plan: of the step.
            handle: of the current stream.

        Returns:
            (bytes,) uint8 each, to be used on the stream.
        """
        with self._lock:
            for known, made in reversed(self._uploads):
                if known is plan or plan.shares_sleeps(known):
                    upload = made
                    break
            else:
                upload = self._upload(plan, handle)
                self._uploads.append((plan, upload))
        if upload.stream != handle:
            self._use(upload)
        return upload.recent, upload.past

    def _upload(self, plan: _core.StepPlan, handle: int) -> _Upload:
        index = self._device.index
        past, first = self._continued(plan, handle)
        n_recent = plan.recent_bytes
        recent = self._room(n_recent, handle)
        size = _rounded(max(n_recent + plan.past_bytes(first), _STAGED_BYTES))
        waiting = _staged.setdefault((index, size), deque())
        staged = _free_or_new(waiting, size)
        try:
            _core.upload_sleeps(plan, first, staged.memory, recent, past, index, handle)
        finally:  # also where Ctrl-C is raised behind the call
            staged.is_copied.record(torch.cuda.current_stream(index))
            waiting.append(staged)
        # Later uploads from the same memory record the event again, when this one is done: whoever
        # waits for it then waits for more than this one, never for less.
        return _Upload(recent, past, handle, staged.is_copied)

    def _room(self, n_bytes: int, handle: int) -> torch.Tensor:
        """Memory for a step's sleeps, used once, that was allocated on the stream."""
        rooms = self._rooms.setdefault(handle, [])
        if not rooms or rooms[-1].nbytes < n_bytes:
            size = _rounded(n_bytes)
            together = torch.empty(_STEPS_TOGETHER * size, dtype=torch.uint8, device=self._device)
            rooms[:] = together.split(size)
            self._pieces.setdefault(handle, deque(maxlen=2)).append(together)
        return rooms.pop()

    def _continued(self, plan: _core.StepPlan, handle: int) -> tuple[torch.Tensor, int]:
        """Where the past goes, and the first step of it that is not there."""
        size = plan.past_bytes(0)
        if self._uploads:
            last, upload = self._uploads[-1]
            if plan.shares_past(last) and size <= upload.past.nbytes:
                if upload.stream != handle:
                    self._use(upload)
                return upload.past, min(last.step, plan.step)
        room = max(_FIRST_STEPS * (size // plan.step), 2 * size)
        return torch.empty(room, dtype=torch.uint8, device=self._device), 0

    def _use(self, upload: _Upload) -> None:
        """Order the upload of another stream before what comes on the current one."""
        stream = torch.cuda.current_stream(self._device.index)
        stream.wait_event(upload.is_ready)
        upload.recent.record_stream(stream)
        upload.past.record_stream(stream)


def _rounded(n_bytes: int) -> int:
    """The next power of two, so that sizes are few."""
    return 1 << (n_bytes - 1).bit_length()


def _free_or_new(waiting: deque[_Staging], size: int) -> _Staging:
    """One whose copies are done, taken out; a new one while the device is behind with all."""
    for _ in range(len(waiting)):
        try:
            staged = waiting.popleft()
        except IndexError:  # other threads take some, too
            break
        if staged.is_copied.query():
            return staged
        waiting.append(staged)
    memory = torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")
    return _Staging(memory, torch.cuda.Event())
