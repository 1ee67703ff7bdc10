# SPDX-License-Identifier: Apache-2.0
"""Where a stage works: a CUDA device, and the stream that torch works on there now."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gs_raster import _core

HAS_CUDA = _core.build_info()["cuda_toolkit"] is not None


class Place(NamedTuple):
    """A device, its number, and the handle of torch's current stream on it."""

    device: torch.device
    number: int
    stream: int

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of any values on the device."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def workspace(self, n_bytes: int) -> Tensor:
        """Memory for a native function."""
        return torch.empty(max(n_bytes, 1), dtype=torch.uint8, device=self.device)


def place_of(name: str, tensor: Tensor) -> Place:
    """The place of a tensor.

    Args:
        name: of the argument, for errors.

    Raises:
        CudaError: this build of gs-raster has no CUDA.
        ValueError: the tensor is not on a CUDA device.
    """
    if not HAS_CUDA:
        require_cuda()
    if not tensor.is_cuda:
        raise ValueError(
            f"{name} must be on a CUDA device, got {device_name(tensor.device)}; gs_raster.cpu "
            "renders there"
        )
    number = tensor.get_device()
    return Place(tensor.device, number, _current_stream(number))


def _public_current_stream(number: int) -> int:
    return torch.cuda.current_stream(number).cuda_stream


# The handle without torch's object around it, where this torch has that: making the object takes as
# long as a launch, and a view asks three times.
_current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _public_current_stream
)


def require_cuda() -> None:
    """Raise CudaError where this build of gs-raster has no CUDA."""
    if not HAS_CUDA:
        raise _core.CudaError(
            "this build of gs-raster has no CUDA. Reinstall it where nvcc is on the PATH; "
            "gs_raster.cpu renders without"
        )


def device_name(device: torch.device) -> str:
    """A device in the words of an error."""
    return "the CPU" if device.type == "cpu" else str(device)
