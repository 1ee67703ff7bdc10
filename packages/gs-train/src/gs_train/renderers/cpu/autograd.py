# SPDX-License-Identifier: Apache-2.0
"""The two differentiable steps as torch sees them: tensors in, kernels on their memory, out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gs_train.renderers.cpu import harmonics, projection, rasterize
from gs_train.renderers.cpu.parallel import for_each_range
from gs_train.renderers.cpu.tiles import list_tiles
from gs_train.renderers.protocol import Rect, RenderOptions


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _grad_array(grad: Tensor | None, like: Tensor) -> np.ndarray:
    return _array(torch.zeros_like(like) if grad is None else grad)


class Project(Function):
    """(means, scales, quats, opacities, sh0, shN) to (means2d, conics, depths, radii, opacities,
    colors), shapes as in ``protocol.Rows`` and ``protocol.Splats``."""

    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        scales: Tensor,
        quats: Tensor,
        logits: Tensor,
        sh0: Tensor,
        shN: Tensor,
        degree: int,
        camera: projection.Camera,
        options: RenderOptions,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows = tuple(t.detach().contiguous() for t in (means, scales, quats, logits, sh0, shN))
        n_rows = len(means)
        means2d, conics = means.new_zeros(n_rows, 2), means.new_zeros(n_rows, 3)
        depths, opacities = means.new_zeros(n_rows), means.new_zeros(n_rows)
        colors = means.new_zeros(n_rows, 3)
        radii = torch.zeros(n_rows, 2, dtype=torch.int32)
        arrays = [t.numpy() for t in rows]
        for_each_range(
            projection.project_rows,
            n_rows,
            *arrays[:4],
            *camera,
            options,
            *(t.numpy() for t in (means2d, conics, depths, radii, opacities)),
        )
        for_each_range(
            harmonics.color_rows,
            n_rows,
            degree,
            arrays[0],
            *arrays[4:],
            camera.centre,
            radii.numpy(),
            colors.numpy(),
        )
        ctx.save_for_backward(*rows, radii)
        ctx.degree, ctx.camera, ctx.options = degree, camera, options
        ctx.mark_non_differentiable(radii)
        ctx.set_materialize_grads(False)
        return means2d, conics, depths, radii, opacities, colors

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_means2d: Tensor | None,
        grad_conics: Tensor | None,
        grad_depths: Tensor | None,
        _: None,
        grad_opacities: Tensor | None,
        grad_colors: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        *rows, radii = ctx.saved_tensors
        means, _, _, logits, _, _ = rows
        grads = [torch.zeros_like(t) for t in rows]
        arrays, outputs = [t.numpy() for t in rows], [t.numpy() for t in grads]
        camera = ctx.camera
        for_each_range(
            projection.project_rows_backward,
            len(means),
            *arrays[:4],
            camera.world,
            camera.lens,
            camera.limits,
            ctx.options,
            radii.numpy(),
            _grad_array(grad_means2d, means[:, :2]),
            _grad_array(grad_conics, means),
            _grad_array(grad_depths, logits),
            _grad_array(grad_opacities, logits),
            *outputs[:4],
        )
        if grad_colors is not None:
            for_each_range(
                harmonics.color_rows_backward,
                len(means),
                ctx.degree,
                arrays[0],
                *arrays[4:],
                camera.centre,
                radii.numpy(),
                _array(grad_colors),
                outputs[0],
                *outputs[4:],
            )
        return (*grads, None, None, None)


class Rasterize(Function):
    """(means2d, conics, opacities, colors) to the image (h, w, 3), alpha (h, w, 1) and number of
    pairs of a splat and a tile of a rectangle; the gradient of ``means2d`` is in pixels of the
    whole view."""

    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        depths: Tensor,
        radii: Tensor,
        keys: Tensor | None,
        rect: Rect,
        absgrad_on: Tensor | None,
    ) -> tuple[Tensor, Tensor, int]:
        image = means2d.new_zeros(rect.height, rect.width, 3)
        alpha = means2d.new_zeros(rect.height, rect.width, 1)
        transmittance = means2d.new_ones(rect.height, rect.width)
        last = torch.full((rect.height, rect.width), -1, dtype=torch.int32)
        ties = None if keys is None else _array(keys)
        tiles = list_tiles(_array(means2d), _array(radii), _array(depths), rect, ties)
        packed = np.empty((len(tiles.order), rasterize.SPLAT_WIDTH), _array(means2d).dtype)
        for_each_range(
            rasterize.pack_splats,
            len(tiles.order),
            tiles.order,
            *(_array(t) for t in (means2d, conics, opacities, colors, radii)),
            packed,
        )
        corners = (rect.x0, rect.y0, rect.x1, rect.y1)
        for_each_range(
            rasterize.composite,
            tiles.n_tiles,
            tiles.offsets,
            tiles.splats,
            packed,
            tiles.columns,
            tiles.x0,
            tiles.y0,
            corners,
            *(t.numpy() for t in (image, alpha, transmittance, last)),
        )
        ctx.tiles, ctx.packed, ctx.corners = tiles, packed, corners
        ctx.transmittance, ctx.last = transmittance, last
        ctx.n_rows, ctx.absgrad_on = len(means2d), absgrad_on
        return image, alpha, tiles.n_pairs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_image: Tensor, grad_alpha: Tensor, _: None
    ) -> tuple[Tensor | None, ...]:
        tiles, packed = ctx.tiles, ctx.packed
        absgrad_on: Tensor | None = ctx.absgrad_on
        width = rasterize.SLOT_WIDTH if absgrad_on is None else rasterize.SLOT_WIDTH_ABSGRAD
        slot_grads = np.empty((tiles.n_pairs, width), packed.dtype)
        for_each_range(
            rasterize.composite_backward,
            tiles.n_tiles,
            tiles.offsets,
            tiles.splats,
            tiles.slots,
            packed,
            tiles.columns,
            tiles.x0,
            tiles.y0,
            ctx.corners,
            ctx.transmittance.numpy(),
            ctx.last.numpy(),
            _array(grad_image),
            _array(grad_alpha),
            slot_grads,
        )
        n_rows = ctx.n_rows
        means2d, absgrad = grad_image.new_zeros(n_rows, 2), grad_image.new_zeros(n_rows, 2)
        conics, colors = grad_image.new_zeros(n_rows, 3), grad_image.new_zeros(n_rows, 3)
        opacities = grad_image.new_zeros(n_rows)
        for_each_range(
            rasterize.sum_slots,
            len(tiles.order),
            tiles.order,
            tiles.slot_begins,
            slot_grads,
            *(t.numpy() for t in (means2d, conics, opacities, colors, absgrad)),
        )
        if absgrad_on is not None:
            absgrad_on.absgrad = absgrad  # type: ignore[attr-defined]
        return means2d, conics, opacities, colors, None, None, None, None, None
