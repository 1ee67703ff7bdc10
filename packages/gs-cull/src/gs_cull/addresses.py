# SPDX-License-Identifier: Apache-2.0
"""Checked addresses of tensors on a CUDA device.

The native device functions take plain addresses: exporting fifteen tensors through DLPack would
take longer than culling a view. What they may assume is checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def address(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> int:
    """Where a tensor's first element is; 0 may be the address of a tensor without elements.

    Args:
        name: the argument's name, for errors.
        shape: the first size may be -1 for any.

    Raises:
        TypeError: the dtype differs.
        ValueError: the shape or the device differs, or the tensor has gaps or is not aligned.
    """
    same = tensor.shape == shape or _fits(tensor.shape, shape)
    if same and tensor.dtype is dtype and tensor.device == device and tensor.is_contiguous():
        start = tensor.data_ptr()
        beyond = start % dtype.itemsize
        if beyond:
            raise ValueError(
                f"{name} must be aligned to {dtype.itemsize} bytes, got an address {beyond} "
                "beyond; pass a copy (clone() in torch)"
            )
        return start
    if not same:
        expected = ", ".join("any" if n < 0 else str(n) for n in shape)
        found = ", ".join(str(n) for n in tensor.shape)
        raise ValueError(f"{name} must have shape ({expected}), got ({found})")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {_place(device)}, got {_place(tensor.device)}")
    if tensor.dtype is not dtype:
        raise TypeError(f"{name} must be {_dtype(dtype)}, got {_dtype(tensor.dtype)}")
    raise ValueError(f"{name} must be contiguous, got strides that leave gaps or reorder it")


def _fits(shape: torch.Size, expected: tuple[int, ...]) -> bool:
    return expected[0] == -1 and bool(shape) and shape == (shape[0], *expected[1:])


def _place(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else str(device)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
