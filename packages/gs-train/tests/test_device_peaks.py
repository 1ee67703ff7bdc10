# SPDX-License-Identifier: Apache-2.0
"""Peaks of device memory, with a scripted allocator in the place of CUDA's."""

from __future__ import annotations

import pytest
import torch

from gs_train.machine.device_peaks import DevicePeaks


class Allocator:
    """What torch's allocator counts; each take reserves a tenth more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = 100
        self.peak = 1000  # of what came before
        for name, count in (
            ("max_memory_allocated", lambda _: self.peak),
            ("max_memory_reserved", lambda _: self.peak * 11 // 10),
            ("reset_peak_memory_stats", self.reset),
        ):
            monkeypatch.setattr(torch.cuda, name, count)

    def reset(self, _: torch.device) -> None:
        self.peak = self.held

    def take_for_a_moment(self, n_bytes: int) -> None:
        self.peak = max(self.peak, self.held + n_bytes)


def test_scores_are_in_the_peak_of_the_run_and_not_in_that_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = Allocator(monkeypatch)
    peaks = DevicePeaks(torch.device("cuda"))
    allocator.take_for_a_moment(50)
    with peaks.beside_training():
        allocator.take_for_a_moment(500)
    assert (peaks.training_bytes, peaks.allocated_bytes) == (150, 600)
    assert peaks.reserved_bytes == 660
    allocator.take_for_a_moment(70)
    assert (peaks.training_bytes, peaks.allocated_bytes) == (170, 600)
    allocator.take_for_a_moment(700)
    assert (peaks.training_bytes, peaks.allocated_bytes, peaks.reserved_bytes) == (800, 800, 880)


def test_scores_that_fail_are_left_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(monkeypatch)
    peaks = DevicePeaks(torch.device("cuda"))

    def run_out() -> None:
        with peaks.beside_training():
            allocator.take_for_a_moment(500)
            raise MemoryError

    with pytest.raises(MemoryError):
        run_out()
    assert (peaks.training_bytes, peaks.allocated_bytes) == (100, 600)


def test_without_a_gpu_there_are_no_peaks() -> None:
    peaks = DevicePeaks(torch.device("cpu"))
    with peaks.beside_training():
        pass
    assert (peaks.training_bytes, peaks.allocated_bytes, peaks.reserved_bytes) == (0, 0, 0)
