# SPDX-License-Identifier: Apache-2.0
"""The CPU renderer: gs-raster's stages for the CPU, as torch sees them.

Importing this file imports numba; importing ``gs_train`` does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gs_raster import cpu
from gs_train.renderers.cpu_records import CpuRecords
from gs_train.renderers.protocol import ATTRIBUTES, Rect, RenderOptions, Rows, Splats, View


class CpuRenderer:
    """Renders float32 or float64 rows on the CPU, differentiably, as ``gs_raster.cpu`` defines it.

    Semantics are those of gsplat 1.5.3's CUDA kernels for one pinhole camera and a black
    background. Splats of equal depth are drawn in the order of their keys, else of the rows (gsplat
    leaves their order open), and a row whose splat or colour is not finite does not show.

    The same inputs give the same bits for any number of threads, in every process of a machine, and
    a rectangle's pixels equal those of the whole image bit for bit. Threads are torch's
    (``torch.set_num_threads``). Calls are thread-safe. Not differentiable twice, nor with respect
    to the camera. Kernels compile on first use, some 10 s, and numba keeps them on disk.

    Args:
        options: how rows are projected.
        absgrad: fill ``Splats.absgrad`` in the backward pass.

    Attributes:
        records: draws splats that other ranks projected, with the same bits.

    Raises:
        ValueError: ``eps2d`` is not above 0, or ``near`` is not between 0 and ``far``.
    """

    name = "cpu"
    blends_by_key = True
    device = torch.device("cpu")

    def __init__(
        self,
        options: RenderOptions = RenderOptions(),  # noqa: B008 (immutable)
        *,
        absgrad: bool = False,
    ) -> None:
        self.options = options.checked()
        self.absgrad = absgrad
        self.records = CpuRecords(absgrad=absgrad)

    def __repr__(self) -> str:
        return f"CpuRenderer({self.options}, absgrad={self.absgrad})"

    def project(
        self, rows: Rows, view: View, *, sh_degree: int, keys: Tensor | None = None
    ) -> Splats:
        """Project rows into a view and evaluate their colours.

        Args:
            rows: R rows on the CPU, all float32 or all float64, stored values (log scales, logit
                opacities). R may be 0.
            view: where from; its matrices may have any floating dtype.
            sh_degree: 0 to 3, at most what ``shN`` holds.
            keys: (R,) int32 on the CPU, distinct: rows of equal depth are drawn in their order;
                None: in the order of the rows.

        Returns:
            Splats in the dtype of the rows. Rows that do not show have radii 0, other fields of no
            meaning, and gradient 0.

        Raises:
            TypeError: a tensor is not on the CPU or not of the common dtype.
            ValueError: an attribute is missing, shapes disagree, or ``sh_degree`` is out of range.

        Cost: 0.2 us per row and thread, as much again for the gradient.
        """
        _check_rows(rows)
        _check_keys(keys, len(rows["means"]))
        camera = cpu.Camera.of(
            view.viewmat.detach().cpu().double().numpy(),
            view.K.detach().cpu().double().numpy(),
            view.width,
            view.height,
        )
        how = {"sh_degree": sh_degree, "options": self.options}
        outputs = _Project.apply(*(rows[name] for name in ATTRIBUTES), camera, how)
        means2d, conics, depths, radii, opacities, colors = outputs
        return Splats(means2d, conics, depths, radii, opacities, colors, view, keys)

    def rasterize(self, splats: Splats, rect: Rect | None = None) -> tuple[Tensor, Tensor]:
        """Composite splats over black.

        Args:
            splats: from ``project``, or of the same form, on the CPU.
            rect: pixels of the view; all of them when None. Need not be aligned to tiles.

        Returns:
            Image (h, w, 3) and alpha (h, w, 1) of the rectangle, in the dtype of the splats.

        Raises:
            ValueError: the rectangle is not inside the view.
            TooManyIntersectionsError: the splats touch 2^31 tiles or more.

        Cost: 8 bytes for each tile that each splat touches while the result's graph lives, and
            36 to 44 (float32) more during the backward pass.
        """
        image, alpha = self._drawn(splats, rect, depth=False)
        return image, alpha

    def rasterize_with_depth(
        self, splats: Splats, rect: Rect | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See :class:`gs_train.renderers.protocol.DepthRenderer`. Raises and costs as
        :meth:`rasterize`."""
        image, alpha = self._drawn(splats, rect, depth=True)
        return image[..., :3], alpha, image[..., 3:]

    def _drawn(self, splats: Splats, rect: Rect | None, *, depth: bool) -> tuple[Tensor, Tensor]:
        """Image (h, w, 3), or with depths (h, w, 4), and alpha (h, w, 1)."""
        view = splats.view
        rect = view.rect if rect is None else rect
        if not (0 <= rect.x0 <= rect.x1 <= view.width and 0 <= rect.y0 <= rect.y1 <= view.height):
            raise ValueError(f"rect must lie within {view.width} x {view.height}, got {rect}")
        absgrad_on = splats.means2d.detach() if self.absgrad else None
        if absgrad_on is not None:
            splats.shifted.append(absgrad_on)
        image, alpha, n_intersections = _Rasterize.apply(
            splats.means2d,
            splats.conics,
            splats.depths,
            splats.radii,
            splats.opacities,
            splats.colors,
            splats.keys,
            rect,
            absgrad_on,
            depth,
        )
        splats.n_intersections += n_intersections
        return image, alpha


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _tensors(arrays: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in arrays)


class _Project(Function):
    """The six attributes of rows to the six tensors of ``protocol.Splats``."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        *rows, camera, how = inputs
        arrays = cpu.Rows(*map(_array, rows))
        splats = cpu.project(arrays, camera, **how, n_threads=torch.get_num_threads())
        outputs = _tensors(splats)
        radii = outputs[3]
        ctx.save_for_backward(*rows, radii)
        ctx.camera, ctx.how = camera, how
        ctx.mark_non_differentiable(radii)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *rows, radii = map(_array, ctx.saved_tensors)
        means2d, conics, depths, _, opacities, colors = (
            None if grad is None else _array(grad) for grad in grads
        )
        found = cpu.project_backward(
            cpu.Rows(*rows),
            ctx.camera,
            cpu.SplatGradients(means2d, conics, depths, opacities, colors),
            radii=radii,
            **ctx.how,
            n_threads=torch.get_num_threads(),
        )
        return (*_tensors(found), None, None)


class _Rasterize(Function):
    """The six tensors of ``protocol.Splats`` to the image (h, w, 3), with depths (h, w, 4), alpha
    (h, w, 1) and number of pairs of a splat and a tile of a rectangle; the gradient of ``means2d``
    is in pixels of the whole view."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, int]:
        *tensors, keys, rect, absgrad_on, depth = inputs
        splats = cpu.Splats(*map(_array, tensors))
        tiles = cpu.sort(splats, rect, keys=None if keys is None else _array(keys))
        blended = cpu.blend(splats, tiles, with_depth=depth, n_threads=torch.get_num_threads())
        ctx.blended, ctx.absgrad_on = blended, absgrad_on
        image, alpha = _tensors((blended.image, blended.alpha))
        return image, alpha, tiles.n_pairs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_image: Tensor, grad_alpha: Tensor, _: None
    ) -> tuple[Tensor | None, ...]:
        grads = cpu.blend_backward(
            ctx.blended,
            _array(grad_image),
            _array(grad_alpha),
            absgrad=ctx.absgrad_on is not None,
            n_threads=torch.get_num_threads(),
        )
        if ctx.absgrad_on is not None:
            ctx.absgrad_on.absgrad = torch.from_numpy(grads.absgrad)
        means2d, conics, opacities, colors = _tensors(
            (grads.means2d, grads.conics, grads.opacities, grads.colors)
        )
        depths = None if grads.depths is None else torch.from_numpy(grads.depths)
        return means2d, conics, depths, None, opacities, colors, None, None, None, None


def _check_keys(keys: Tensor | None, n_rows: int) -> None:
    if keys is None:
        return
    if keys.dtype != torch.int32 or keys.device.type != "cpu":
        raise TypeError(f"keys must be int32 on the CPU, got {keys.dtype} on {keys.device}")
    if tuple(keys.shape) != (n_rows,):
        raise ValueError(f"keys must have shape ({n_rows},), got {tuple(keys.shape)}")


def _check_rows(rows: Rows) -> None:
    """That the rows are tensors of one dtype on the CPU; ``gs_raster.cpu`` checks their shapes."""
    missing = [name for name in ATTRIBUTES if name not in rows]
    if missing:
        raise ValueError(f"rows must hold {', '.join(ATTRIBUTES)}, got none for {missing}")
    dtype = rows["means"].dtype
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"rows must be float32 or float64, got {dtype}")
    for name in ATTRIBUTES:
        tensor = rows[name]
        if tensor.device.type != "cpu" or tensor.dtype != dtype:
            raise TypeError(
                f"{name} must be {dtype} on the CPU, got {tensor.dtype} on {tensor.device}"
            )
