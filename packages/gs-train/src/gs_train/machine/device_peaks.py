# SPDX-License-Identifier: Apache-2.0
"""The most memory of a device that a run has taken: for training alone, and altogether."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class DevicePeaks:
    """Peaks of torch's allocator since this object was made; all of them are 0 without a GPU.

    Nothing else may reset the allocator's peaks meanwhile.

    Args:
        device: where the run trains.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._training = self._allocated = self._reserved = 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    @property
    def training_bytes(self) -> int:
        """The most that tensors held, but for what :meth:`beside_training` left out."""
        return max(self._training, self._allocated_now())

    @property
    def allocated_bytes(self) -> int:
        """The most that tensors held."""
        return max(self._allocated, self._allocated_now())

    @property
    def reserved_bytes(self) -> int:
        """The most that the allocator held."""
        return max(self._reserved, self._reserved_now())

    @contextlib.contextmanager
    def beside_training(self) -> Iterator[None]:
        """Leave what is taken meanwhile out of the peak of training."""
        self._training = self.training_bytes
        self._begin_anew()
        try:
            yield
        finally:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._allocated, self._reserved = self.allocated_bytes, self.reserved_bytes
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def _allocated_now(self) -> int:
        if self._device.type != "cuda":
            return 0
        return torch.cuda.max_memory_allocated(self._device)

    def _reserved_now(self) -> int:
        if self._device.type != "cuda":
            return 0
        return torch.cuda.max_memory_reserved(self._device)
