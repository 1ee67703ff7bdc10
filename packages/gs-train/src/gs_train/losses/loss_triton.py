# SPDX-License-Identifier: Apache-2.0
"""The photometric loss of a rectangle by two Triton kernels: its value, and its gradient.

Between the two only the three derivative maps of SSIM are kept, and those only for a gradient.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gs_train.losses.loss_kernels import gradient_kernel, value_kernel
from gs_train.losses.ssim import WINDOW
from gs_train.renderers.protocol import Rect

_WARPS = 4
_BLOCK = 32 * _WARPS
"""Columns of a program, one for each of its threads."""

_VALUE_RESIDENT, _GRADIENT_RESIDENT = 6, 9
"""Programs that run on a multiprocessor at a time: with 80 and 56 registers a thread."""

_LEAST_ROWS = 16
"""Of a program, which reads 10 more: fewer would mostly read what others read too."""


def weighted_l1_and_ssim(
    image: Tensor,
    truth: Tensor,
    core: Rect,
    l1_weight: float,
    ssim_weight: float,
    constant: float = 0.0,
) -> Tensor:
    """``l1_weight * sum |image - truth| over core + ssim_weight * sum of the SSIM map + constant``.

    Args:
        image: (H, W, C) float32 on a CUDA device; H, W >= 11. Differentiable.
        truth: (H, W, C) float32, or uint8 that stands for 255ths, there.
        core: pixels of the image that count for L1; all windows inside the image count for SSIM.

    Returns:
        () float32.
    """
    return _WeightedSums.apply(image, truth, core, l1_weight, ssim_weight, constant)


def value_and_gradient(
    image: Tensor, truth: Tensor, core: Rect, l1_weight: float, ssim_weight: float, constant: float
) -> tuple[Tensor, Tensor]:
    """The same with its gradient by the image, (H, W, C), without a graph."""
    weights = l1_weight, ssim_weight, constant
    image, truth = image.contiguous(), truth.contiguous()
    value, maps = _value(image, truth, core, weights, needs_grad=True)
    return value, _gradient(image, truth, maps, None, core, weights)


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, truth: Tensor, core: Rect, *weights: float) -> Tensor:
        image, truth = image.contiguous(), truth.contiguous()
        value, maps = _value(image, truth, core, weights, needs_grad=ctx.needs_input_grad[0])
        ctx.core, ctx.weights = core, weights
        ctx.save_for_backward(image, truth, maps)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        image, truth, maps = ctx.saved_tensors
        gradient = _gradient(image, truth, maps, upstream, ctx.core, ctx.weights)
        return gradient, None, None, None, None, None


def _value(
    image: Tensor, truth: Tensor, core: Rect, weights: tuple[float, ...], *, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """The sum, and the maps that its gradient needs."""
    sizes, scale = _sizes(image, truth, core)
    height, n, plane = sizes[:3]
    grid, rows = _grid(height, n, _VALUE_RESIDENT, image.device)
    partial = image.new_empty(grid)
    maps = image.new_empty((3, plane) if needs_grad else (1,))
    with torch.cuda.device(image.get_device()):
        value_kernel[grid](
            image, truth, maps, partial, *sizes, rows, scale, *weights,
            NEEDS_GRAD=needs_grad, C=image.shape[2], BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return partial.sum(), maps


def _gradient(
    image: Tensor,
    truth: Tensor,
    maps: Tensor,
    upstream: Tensor | None,
    core: Rect,
    weights: tuple[float, ...],
) -> Tensor:
    """The gradient by the image.

    Args:
        upstream: () gradient of the sum; None for 1.
    """
    sizes, scale = _sizes(image, truth, core)
    gradient = torch.empty_like(image)
    height, n, _ = sizes[:3]
    grid, rows = _grid(height, n, _GRADIENT_RESIDENT, image.device)
    with torch.cuda.device(image.get_device()):
        gradient_kernel[grid](
            image, truth, maps, maps if upstream is None else upstream, gradient,
            *sizes, rows, scale, *weights[:2],
            HAS_UPSTREAM=upstream is not None, C=image.shape[2], BLOCK=_BLOCK, num_warps=_WARPS,
        )  # fmt: skip
    return gradient


def _sizes(image: Tensor, truth: Tensor, core: Rect) -> tuple[tuple[int, ...], float]:
    """What both kernels are told: rows, columns, numbers of a map, the core; the truth's unit."""
    height, width, channels = image.shape
    n, reach = width * channels, (WINDOW - 1) * channels
    plane = (height - WINDOW + 1) * n + reach
    sizes = height, n, plane, channels * core.x0, core.y0, channels * core.x1, core.y1
    return sizes, 1.0 / 255.0 if truth.dtype == torch.uint8 else 1.0


def _grid(height: int, n: int, resident: int, device: torch.device) -> tuple[tuple[int, int], int]:
    """The programs of a kernel, (strips of columns, runs of rows), and the rows of a run.

    As many as the device holds at a time: with a few more, most of it would wait for those.
    """
    strips = -(-n // _BLOCK)
    runs = max(resident * _multiprocessors(device) // strips, 1)
    rows = max(-(-height // runs), _LEAST_ROWS)
    return (strips, -(-height // rows)), rows


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
