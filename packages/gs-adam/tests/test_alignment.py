# SPDX-License-Identifier: Apache-2.0
"""Arrays that lie between two addresses of their type."""

import numpy as np
import pytest
import torch

from gs_adam import HostAdam


def test_unaligned_ids_and_gradients_are_refused_and_change_nothing():
    param = torch.zeros(5, 2)
    host = HostAdam([param])
    ids = np.frombuffer(b"\0" + np.arange(3).tobytes(), np.int64, offset=1)
    grads = np.frombuffer(b"\0\0" + bytes(24), np.float32, offset=2).reshape(3, 2)
    for rows, grad, message in (
        (
            ids,
            np.ones((3, 2), "f4"),
            "rows must be aligned to 8 bytes, got .* 1 beyond; pass",
        ),
        (ids.copy(), grads, r"grads\[0\] must be aligned to 4 bytes, got an address 2 beyond"),
    ):
        with pytest.raises(ValueError, match=message):
            host.step(rows, [grad])
    assert host.step_count == 0
    host.step(ids.copy(), [grads.copy()])
