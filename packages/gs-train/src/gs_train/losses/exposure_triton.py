# SPDX-License-Identifier: Apache-2.0
"""`gs_train.losses.exposure` by one Triton kernel each way: launches, of which torch needs thirty,
take longer than the device."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from gs_train.losses.exposure_kernels import exposed_kernel, gradients_kernel

_BLOCK = 1024


def exposed(image: Tensor, exposure: Tensor) -> Tensor:
    """See `gs_train.losses.exposure.exposed`; float32."""
    image, exposure = image.contiguous(), exposure.contiguous()
    out, n = torch.empty_like(image), image.numel() // 3
    with _on(image):
        exposed_kernel[(-(-n // _BLOCK),)](image, out, exposure, n, BLOCK=_BLOCK)
    return out


def gradients(gradient: Tensor, image: Tensor, exposure: Tensor) -> tuple[Tensor, Tensor]:
    """See `gs_train.losses.exposure.gradients`; float32."""
    gradient, image, exposure = gradient.contiguous(), image.contiguous(), exposure.contiguous()
    by_image, n = torch.empty_like(image), image.numel() // 3
    n_programs = -(-n // _BLOCK)
    sums = torch.empty((n_programs, 3, 4), dtype=torch.float64, device=image.device)
    with _on(image):
        gradients_kernel[(n_programs,)](gradient, image, by_image, exposure, sums, n, BLOCK=_BLOCK)
    return by_image, sums.sum(0).float()


def _on(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """The tensor's device for a launch; none where kernels are interpreted."""
    return torch.cuda.device(tensor.get_device()) if tensor.is_cuda else contextlib.nullcontext()
