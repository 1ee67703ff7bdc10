# SPDX-License-Identifier: Apache-2.0
"""`gs_train.losses.depth` by one Triton kernel in place of thirty operations."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from gs_train.losses.depth_kernels import depth_kernel
from gs_train.losses.loss import Crop

_BLOCK = 1024


def added(
    share: Tensor,
    alpha: Tensor,
    depth: Tensor,
    truth: Tensor,
    crop: Crop,
    *,
    scale: float,
    offset: float | None,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `gs_train.losses.depth.add_depth`; float32.

    Args:
        scale, offset: a value of the map is an inverse depth of ``value * scale + offset``; where
            the offset is None a depth of ``value * scale``, and unknown where it is 0.
        factor: of a pixel's difference.
    """
    height, width = alpha.shape
    alpha, depth, core = alpha.contiguous(), depth.contiguous(), crop.core_in_rect
    if truth.stride(2) != 1 or truth.stride(1) != truth.shape[2]:
        truth = truth.contiguous()
    of_alpha, of_depth = torch.empty_like(alpha), torch.empty_like(alpha)
    n_programs = -(-height * width // _BLOCK)
    sums = torch.empty(n_programs, dtype=torch.float64, device=alpha.device)
    device = torch.cuda.device(alpha.get_device()) if alpha.is_cuda else contextlib.nullcontext()
    with device:
        depth_kernel[(n_programs,)](
            alpha, depth, truth, of_alpha, of_depth, sums, height, width, truth.stride(0),
            core.x0, core.y0, core.x1, core.y1, scale, offset or 0.0, factor,
            CHANNELS=truth.shape[2], IS_METRIC=offset is None, BLOCK=_BLOCK,
        )  # fmt: skip
    return share + (sums.sum() * factor).to(share.dtype), of_alpha, of_depth
