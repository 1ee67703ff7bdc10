# SPDX-License-Identifier: Apache-2.0
"""Checked addresses of tensors.

The native functions take plain addresses: exporting every tensor through DLPack would take longer
than some stages. Dtype, shape, device, strides and alignment are checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gs_raster.cuda.place import device_name


def check(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    *,
    alignment: int = 4,
) -> None:
    """Raise unless a tensor is contiguous, aligned, and of this shape, dtype and device.

    Args:
        name: of the argument, for errors.
        shape: -1 stands for any size.
        alignment: bytes, of which the tensor begins at a multiple.

    Raises:
        TypeError: the dtype differs, or it is no tensor.
        ValueError: the shape or the device differs, or the tensor has gaps or is not aligned.
    """
    if (
        isinstance(tensor, Tensor)
        and (tensor.shape == shape or _has_shape(tensor, shape))
        and tensor.dtype is dtype
        and tensor.device == device
        and tensor.is_contiguous()
        and tensor.data_ptr() % alignment == 0
    ):
        return  # what most are, told soon
    check_kind(name, tensor, shape, dtype, device)
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tuple(tensor.stride())}")
    check_alignment(name, tensor, alignment)


def address(
    name: str,
    tensor: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Where a checked tensor begins, see :func:`check`; 0 for none."""
    if tensor is None:
        return 0
    check(name, tensor, shape, dtype, device)
    return tensor.data_ptr()


def check_kind(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """As :func:`check`, whatever the strides."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
    if not _has_shape(tensor, shape):
        expected = ", ".join("any" if n < 0 else str(n) for n in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {tuple(tensor.shape)}")
    if tensor.dtype is not dtype:
        raise TypeError(f"{name} must be {_name(dtype)}, got {_name(tensor.dtype)}")
    if tensor.device != device:
        raise ValueError(
            f"{name} must be on {device_name(device)}, got {device_name(tensor.device)}"
        )


def check_alignment(name: str, tensor: Tensor, n_bytes: int = 4) -> None:
    """Raise ValueError unless a tensor begins at a multiple of ``n_bytes``."""
    beyond = tensor.data_ptr() % n_bytes
    if beyond:
        raise ValueError(
            f"{name} must be aligned to {n_bytes} bytes, got an address {beyond} beyond; pass a "
            "copy (clone() in torch)"
        )


def span(memory: Tensor) -> tuple[int, int]:
    """Address and bytes of a workspace."""
    return memory.data_ptr(), memory.shape[0]


def _has_shape(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor has a shape, of which -1 stands for any size."""
    found = tensor.shape
    return len(found) == len(shape) and all(n in (-1, m) for n, m in zip(shape, found))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
