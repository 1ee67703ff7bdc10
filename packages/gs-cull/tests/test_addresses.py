# SPDX-License-Identifier: Apache-2.0
"""What a tensor must be before its address goes to the device code; the CPU will do to test it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gs_cull.addresses import address

CPU = torch.device("cpu")


def test_the_address_is_that_of_the_first_element() -> None:
    rows = torch.zeros((10, 3), requires_grad=True)
    assert address("means", rows, (-1, 3), torch.float32, CPU) == rows.data_ptr()
    assert address("means", rows[4:], (6, 3), torch.float32, CPU) == rows.data_ptr() + 48
    assert address("means", rows[:0], (0, 3), torch.float32, CPU) == 0


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(5, 2), ValueError, r"a must have shape \(any, 3\), got \(5, 2\)"),
        (torch.zeros(3), ValueError, r"a must have shape \(any, 3\), got \(3\)"),
        (torch.zeros(5, 3).double(), TypeError, "a must be float32, got float64"),
        (torch.zeros(5, 3, device="meta"), ValueError, "a must be on the CPU, got meta"),
        (torch.zeros(3, 5).T, ValueError, "a must be contiguous, got strides that leave gaps"),
        (torch.zeros(5, 6)[:, ::2], ValueError, "a must be contiguous"),
    ],
)
def test_what_does_not_fit_is_named(tensor: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        address("a", tensor, (-1, 3), torch.float32, CPU)


def test_a_tensor_between_two_addresses_of_its_type_is_refused() -> None:
    shifted = torch.frombuffer(bytearray(13), dtype=torch.float32, offset=1).view(1, 3)
    with pytest.raises(ValueError, match=r"a must be aligned to 4 bytes, got .* 1 beyond; pass a"):
        address("a", shifted, (-1, 3), torch.float32, CPU)


def test_all_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"a must have shape \(6, 3\), got \(5, 3\)"):
        address("a", torch.zeros(5, 3), (6, 3), torch.float32, CPU)
