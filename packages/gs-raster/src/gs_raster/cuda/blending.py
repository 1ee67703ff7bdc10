# SPDX-License-Identifier: Apache-2.0
"""Alpha compositing of tile lists, and its gradient, on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import address, check, check_alignment
from gs_raster.cuda.place import Place, place_of
from gs_raster.cuda.sorting import TileLists
from gs_raster.cuda.splats import WORDS, Splats


@dataclass(frozen=True, eq=False)
class Pixels:
    """The pixels of a rectangle of h x w.

    Attributes:
        image: (h, w, 3) float32.
        alpha: (h, w) float32.
        depth: (h, w) float32 sum of weight times depth; None if not asked for.
        transmittance: (h, w) float32, what is left behind the last splat; for the gradient.
        last: (h, w) int32, the tile's instance that came last, -1 for none; for the gradient.
    """

    image: Tensor
    alpha: Tensor
    depth: Tensor | None
    transmittance: Tensor
    last: Tensor


def blend(
    splats: Splats, lists: TileLists, *, background: Tensor | None = None, depth: bool = False
) -> Pixels:
    """Composite splats front to back over a background.

    A pixel's alpha below 1/255 counts as nothing, alpha is at most 0.999, and the splat that would
    bring the transmittance to 1e-4 or below ends the pixel.

    Args:
        splats: from :func:`gs_raster.project`.
        lists: from :func:`gs_raster.sort` of the same splats.
        background: (3,) float32 on the device; None for black.
        depth: also sum depths.

    Raises:
        TypeError: a dtype differs.
        ValueError: the lists are of other splats, or a shape or device differs.
        CudaError: this build has no CUDA, or the launch failed.

    Asynchrony: one kernel on torch's current stream; does not synchronise. A pixel has the same
        bits from any rectangle.
    """
    at = _place(splats, lists)
    behind = address("background", background, (3,), torch.float32, at.device)
    h, w = lists.rect.height, lists.rect.width
    pixels = Pixels(
        image=at.empty(h, w, 3),
        alpha=at.empty(h, w),
        depth=at.empty(h, w) if depth else None,
        transmittance=at.empty(h, w),
        last=at.empty(h, w, dtype=torch.int32),
    )
    if h and w:
        _core.blend_cuda(
            splats.records.data_ptr(),
            lists.native(),
            behind,
            pixels.image.data_ptr(),
            pixels.alpha.data_ptr(),
            0 if pixels.depth is None else pixels.depth.data_ptr(),
            pixels.transmittance.data_ptr(),
            pixels.last.data_ptr(),
            at.number,
            at.stream,
        )
    return pixels


def blend_backward(
    splats: Splats,
    lists: TileLists,
    pixels: Pixels,
    grad_image: Tensor | None,
    grad_alpha: Tensor | None = None,
    grad_depth: Tensor | None = None,
    *,
    background: Tensor | None = None,
    absgrad: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The gradients of splats from those of pixels.

    Args:
        splats, lists, background: as for :func:`blend`.
        pixels: what :func:`blend` made of them; the transmittance and the last instances are read.
        grad_image: (h, w, 3) float32; None for 0.
        grad_alpha: (h, w) float32; None for 0.
        grad_depth: (h, w) float32; None for 0.
        absgrad: also sum |d loss / d mean| over pixels (AbsGS, Ye et al. 2024).
        out: (R, 12) float32, added to; allocated when None.

    Returns:
        (R, 12) float32, ``out`` if given: the gradients of mean x, y; conic xx, xy, yy; opacity;
        red, green, blue; depth; then the sums of |d loss / d mean x| and |d loss / d mean y|. Depth
        is 0 without ``grad_depth``, the sums are 0 without ``absgrad``.

    Raises:
        TypeError: a dtype differs.
        ValueError: the lists are of other splats, or a shape, stride or device differs.
        CudaError: this build has no CUDA, or a launch failed.

    Asynchrony: enqueued on torch's current stream; does not synchronise. Sums are taken in a fixed
        order: the same inputs give the same bits.
    Cost: 36 to 48 bytes of workspace an instance.
    """
    at = _place(splats, lists)
    n, h, w = splats.n, lists.rect.height, lists.rect.width
    real = torch.float32
    behind = address("background", background, (3,), real, at.device)
    left = address("pixels.transmittance", pixels.transmittance, (h, w), real, at.device)
    last = address("pixels.last", pixels.last, (h, w), torch.int32, at.device)
    of_image = address("grad_image", grad_image, (h, w, 3), real, at.device)
    of_alpha = address("grad_alpha", grad_alpha, (h, w), real, at.device)
    of_depth = address("grad_depth", grad_depth, (h, w), real, at.device)
    add = out is not None
    if out is None:
        out = at.empty(n, WORDS)
    else:
        check("out", out, (n, WORDS), real, at.device)
        check_alignment("out", out, 16)
    if not lists.n_instances or not (of_image or of_alpha or of_depth):
        return out if add else out.zero_()
    width = _core.slot_width(grad_depth is not None, absgrad)
    slots = at.empty(lists.n_instances, width)
    _core.blend_backward_cuda(
        splats.records.data_ptr(),
        n,
        lists.native(),
        behind,
        left,
        last,
        of_image,
        of_alpha,
        of_depth,
        absgrad,
        slots.data_ptr(),
        out.data_ptr(),
        add,
        at.number,
        at.stream,
    )
    return out


def _place(splats: Splats, lists: TileLists) -> Place:
    at = place_of("splats", splats.records)
    check("lists.counts", lists.counts, (splats.n,), torch.int32, at.device)
    return at
