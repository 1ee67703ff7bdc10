# SPDX-License-Identifier: Apache-2.0
"""Small arrays between host and device are copies of what was there at the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gs_train.machine.host_copies import HostCopy, to_device

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@DEVICES
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_arrays_arrive_as_they_are(device: str, n: int) -> None:
    array = np.arange(3 * n, dtype=np.int64).reshape(3, n)
    there = to_device(array, torch.device(device))
    assert there.device.type == device
    assert there.shape == (3, n)
    np.testing.assert_array_equal(HostCopy(there).numpy(), array)


@pytest.mark.gpu
def test_copies_are_of_the_moment_of_the_call() -> None:
    device = torch.device("cuda")
    array = np.zeros(1 << 20)
    there = to_device(array, device)
    array[:] = 1.0  # the copy left from memory of its own
    back = HostCopy(there)
    there += 2.0  # behind the copy on the stream
    assert (back.numpy() == 0.0).all()
    assert (HostCopy(there).numpy() == 2.0).all()
