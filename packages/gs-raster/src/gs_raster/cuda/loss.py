# SPDX-License-Identifier: Apache-2.0
"""The photometric loss of an image with its gradient, on a CUDA device."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check, check_kind
from gs_raster.cuda.place import place_of
from gs_raster.cuda.sorting import corners
from gs_raster.numbers import real
from gs_raster.types import Rect

_MOST_SIDE = 2**24
_CHANNELS, _MASKED = 3, 4
_MOST = 3e38  # below the largest float32


def photometric_loss(
    image: Tensor,
    truth: Tensor,
    *,
    l1_weight: float,
    dssim_weight: float,
    core: Rect | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Absolute error and structural dissimilarity of an image, and the gradient.

    The sum of ``l1_weight * |image - truth|`` over the values of the pixels in ``core``, and of
    ``dssim_weight * (1 - SSIM)`` over all windows that lie inside the image, for each channel (Wang
    et al. 2004; 11 x 11 pixels, sigma 1.5, K1 = 0.01, K2 = 0.03, data range 1). With the weights
    (1 - lambda) / values and lambda / windows it is the loss of 3D Gaussian Splatting (Kerbl et al.
    2023, eq. 7). An image that is smaller than the window has no window.

    With a mask neither value nor gradient depends on pixels that do not count. A window counts
    where its centre does, and the weights of its pixels that count are scaled to a sum of 1
    (normalized convolution, Knutsson and Westin 1993).

    Args:
        image: (h, w, 3) float32, contiguous.
        truth: (h, w, 3) uint8 in 255ths on the same device. Rows are contiguous and may lie apart
            by any pitch, so that the photograph may be a rectangle of a larger one. Or (h, w, 4)
            with a mask: a pixel counts where its fourth value is 255.
        l1_weight, dssim_weight: finite in float32.
        core: pixels of the image; all of them when None.
        out: (h, w, 3) float32 on the same device, contiguous, for the gradient; allocated when
            None.

    Returns:
        () float32 the sum, and (h, w, 3) float32 its gradient by the image, ``out`` if given.

    Raises:
        TypeError: a dtype differs, ``core`` is no rectangle, or a weight is no number.
        ValueError: the tensors are not on one CUDA device, a shape differs, a row has gaps,
            ``core`` is not inside the image, or a weight is not finite.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: two kernels on torch's current stream; does not synchronise. Sums are taken in a
        fixed order: the same inputs give the same bits on the same kind of device.
    Cost: reads image and truth and writes the gradient about once. GIL released.
    """
    at = place_of("image", image)
    shape = image.shape
    height, width, _ = shape if len(shape) == 3 else (-1, -1, -1)
    of_image = address("image", image, (height, width, _CHANNELS), torch.float32, at.device)
    if max(height, width) > _MOST_SIDE:
        raise ValueError(f"image must have sides of at most {_MOST_SIDE}, got {width} x {height}")
    has_mask = isinstance(truth, Tensor) and truth.shape[-1:] == (_MASKED,)
    channels = _MASKED if has_mask else _CHANNELS
    check_kind("truth", truth, (height, width, channels), torch.uint8, at.device)
    pitch, across, channel = truth.stride()
    if image.numel() and ((width > 1 and across != channels) or channel != 1):
        raise ValueError(f"truth must have contiguous rows, got strides {tuple(truth.stride())}")
    if core is None:
        core = Rect(0, 0, width, height)
    if not isinstance(core, Rect):
        raise TypeError(f"core must be a gs_raster.Rect or None, got {type(core).__name__}")
    if not (0 <= core.x0 <= core.x1 <= width and 0 <= core.y0 <= core.y1 <= height):
        raise ValueError(f"core must lie within {width} x {height}, got {core}")
    weights = _finite("l1_weight", l1_weight), _finite("dssim_weight", dssim_weight)
    if out is None:
        gradient = at.empty(height, width, _CHANNELS)
    else:
        check("out", out, (height, width, _CHANNELS), torch.float32, at.device)
        gradient = out
    n_partials = _partials(width, height, at.number)
    # The sum, and behind it partial sums: one piece of memory is taken sooner than two.
    sums = at.empty(2 + 2 * n_partials)
    _core.photometric_loss_cuda(
        of_image,
        truth.data_ptr(),
        pitch,
        has_mask,
        (width, height),
        corners(core),
        weights,
        sums.data_ptr(),
        gradient.data_ptr(),
        sums.data_ptr() + 8,
        n_partials,
        at.number,
        at.stream,
    )
    return sums.as_strided((), ()), gradient


@functools.lru_cache(1024)
def _partials(width: int, height: int, device: int) -> int:
    return _core.loss_partials(width, height, device)


def _finite(name: str, value: float) -> float:
    if type(value) is float and abs(value) <= _MOST:
        return value  # what most are, told soon
    number = real(name, value)
    if not abs(number) <= _MOST or math.isnan(number):
        raise ValueError(f"{name} must be finite in float32, got {number}")
    return number
