# SPDX-License-Identifier: Apache-2.0
"""The two differentiable steps as autograd sees them.

``Project`` gives the fields of splats as views of their records, and ``Rasterize`` gives the
gradients of these fields as views of one (R, 12) tensor. Where a field, or a gradient, arrives as
such a view, nothing is copied; where another tensor took its place, the tensor is copied in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gs_raster.cuda.blending import Pixels, blend, blend_backward
from gs_raster.cuda.columns import SHAPES
from gs_raster.cuda.projection import project, project_backward
from gs_raster.cuda.rows import Rows
from gs_raster.cuda.sorting import TileLists
from gs_raster.cuda.splats import WORDS, Splats
from gs_raster.cuda.views import View
from gs_raster.types import Options

FIELDS: dict[str, int | slice] = {
    "means2d": slice(0, 2),
    "conics": slice(4, 7),
    "opacities": 2,
    "colors": slice(8, 11),
    "depths": 3,
}
"""Where each differentiable field is in a record."""

GRADIENTS: dict[str, int | slice] = {
    "means2d": slice(0, 2),
    "conics": slice(2, 5),
    "opacities": 5,
    "colors": slice(6, 9),
    "depths": 9,
}
"""Where the gradient of each field is in the 12 floats of a splat's gradient."""

ABSGRAD = slice(10, 12)

Fields = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class AbsgradPlace(NamedTuple):
    """Where sums of absolute gradients go: the attribute ``absgrad`` of a tensor of positions.

    Attributes:
        means2d: (..., 2), as gsplat leaves ``absgrad`` on it.
        index: of the splats in it.
    """

    means2d: Tensor
    index: Any = ...

    def add(self, part: Tensor) -> None:
        """Rectangles add, as pixels do."""
        if not hasattr(self.means2d, "absgrad"):
            zeros = torch.zeros(self.means2d.shape, dtype=part.dtype, device=part.device)
            self.means2d.absgrad = zeros  # type: ignore[attr-defined]
        self.means2d.absgrad[self.index] += part  # type: ignore[attr-defined]


class Project(Function):
    """The six attributes of R rows to the five fields, the records and, if asked for, the radii."""

    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        scales: Tensor,
        quats: Tensor,
        opacities: Tensor,
        sh0: Tensor,
        shN: Tensor,
        view: View,
        sh_degree: int,
        options: Options,
        radii: bool,
    ) -> tuple[Tensor | None, ...]:
        columns = (means, scales, quats, opacities, sh0, shN)
        rows = Rows(*(tensor.detach() for tensor in columns))
        splats = project(rows, view, sh_degree=sh_degree, options=options, radii=radii)
        ctx.save_for_backward(*columns, splats.records, view.viewmat, view.K)
        ctx.size, ctx.sh_degree, ctx.options = (view.width, view.height), sh_degree, options
        ctx.mark_non_differentiable(splats.records)
        if splats.radii is not None:
            ctx.mark_non_differentiable(splats.radii)
        ctx.set_materialize_grads(False)
        floats = splats.floats
        # Detached: autograd shall know nothing of one tensor below all fields.
        fields = (floats[:, columns_].detach() for columns_ in FIELDS.values())
        return (*fields, splats.records, splats.radii)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *columns, records, viewmat, K = ctx.saved_tensors
        fields = dict(zip(GRADIENTS, grads, strict=False))
        if all(grad is None for grad in fields.values()):
            return (None,) * 10
        view = View(viewmat, K, *ctx.size)
        out = project_backward(
            Rows(*(tensor.detach() for tensor in columns)),
            view,
            Splats(records, view),
            _joined(fields, len(records), records.device),
            sh_degree=ctx.sh_degree,
            options=ctx.options,
        )
        found = (out.columns[name] for name in SHAPES)
        needed = zip(ctx.needs_input_grad, found, strict=False)
        return (*(grad if is_needed else None for is_needed, grad in needed), *(None,) * 4)


class Take(Function):
    """Some of the splats: the five fields and the records of rows ``ids``, (S,) int64, distinct.

    The records alone are gathered, and the fields are views of them again; a field that another
    tensor has taken the place of is gathered besides.
    """

    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        depths: Tensor,
        records: Tensor,
        ids: Tensor,
    ) -> tuple[Tensor, ...]:
        chosen = records.index_select(0, ids)
        floats = chosen.view(torch.float32)
        for columns, field in _others((means2d, conics, opacities, colors, depths), records):
            floats[:, columns] = field.index_select(0, ids)
        ctx.save_for_backward(ids)
        ctx.n_rows = len(records)
        ctx.mark_non_differentiable(chosen)
        ctx.set_materialize_grads(False)
        return (*(floats[:, columns].detach() for columns in FIELDS.values()), chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        fields = dict(zip(GRADIENTS, grads, strict=False))
        if all(grad is None for grad in fields.values()):
            return (None,) * 7
        chosen = _joined(fields, len(ids), ids.device)
        whole = chosen.new_zeros((ctx.n_rows, WORDS)).index_copy_(0, ids, chosen)
        return (*(whole[:, columns] for columns in GRADIENTS.values()), None, None)


class Rasterize(Function):
    """The five fields to image (h, w, 3), alpha (h, w) and, if asked for, depth (h, w).

    ``splats`` have the fields in their records. The backward pass adds to ``absgrad_on``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        means2d: Tensor,
        conics: Tensor,
        opacities: Tensor,
        colors: Tensor,
        depths: Tensor,
        background: Tensor | None,
        splats: Splats,
        lists: TileLists,
        depth: bool,
        absgrad_on: AbsgradPlace | None,
    ) -> tuple[Tensor | None, ...]:
        behind = None if background is None else background.detach()
        pixels = blend(splats, lists, background=behind, depth=depth)
        # Image and alpha are not kept: the graph would hold its own outputs.
        ctx.save_for_backward(background, pixels.transmittance, pixels.last)
        ctx.splats, ctx.lists, ctx.absgrad_on = splats, lists, absgrad_on
        ctx.set_materialize_grads(False)
        return pixels.image, pixels.alpha, pixels.depth

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_image: Tensor | None,
        grad_alpha: Tensor | None,
        grad_depth: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        background, transmittance, last = ctx.saved_tensors
        of_background = None
        if ctx.needs_input_grad[5] and grad_image is not None:
            of_background = (grad_image * transmittance[..., None]).sum((0, 1))
        gradient = blend_backward(
            ctx.splats,
            ctx.lists,
            Pixels(transmittance, transmittance, None, transmittance, last),
            *(None if g is None else g.contiguous() for g in (grad_image, grad_alpha, grad_depth)),
            background=None if background is None else background.detach(),
            absgrad=ctx.absgrad_on is not None,
        )
        if ctx.absgrad_on is not None:
            ctx.absgrad_on.add(gradient[:, ABSGRAD])
        fields = (gradient[:, columns] for columns in GRADIENTS.values())
        return (*fields, of_background, None, None, None, None)


def records_of(fields: Fields, records: Tensor) -> Tensor:
    """(R, 12) int32 records that hold these fields: the given ones where they do already, else a
    copy with the fields written in."""
    others = _others(fields, records)
    if not others:
        return records
    records = records.clone()
    floats = records.view(torch.float32)
    for columns, field in others:
        floats[:, columns] = field
    return records


def _others(fields: Fields, records: Tensor) -> list[tuple[int | slice, Tensor]]:
    """The fields that are no views of the records, and where in them they belong."""
    floats = records.view(torch.float32)
    return [
        (columns, field.detach())
        for columns, field in zip(FIELDS.values(), fields, strict=True)
        if not _is_same(field, floats[:, columns])
    ]


def _joined(fields: dict[str, Tensor | None], n: int, device: torch.device) -> Tensor:
    """(n, 12) float32 that holds the gradients of the fields, without a copy where they are views
    of such a tensor."""
    first = fields["means2d"]
    if first is not None and n and first.stride() == (WORDS, 1) and first.data_ptr() % 16 == 0:
        offset = first.storage_offset()
        if offset % WORDS == 0 and first.untyped_storage().nbytes() >= 4 * (offset + n * WORDS):
            whole = first.as_strided((n, WORDS), (WORDS, 1), offset)
            expected = ((grad, whole[:, GRADIENTS[name]]) for name, grad in fields.items())
            if all(grad is not None and _is_same(grad, part) for grad, part in expected):
                return whole
    whole = torch.zeros((n, WORDS), dtype=torch.float32, device=device)
    for name, grad in fields.items():
        if grad is not None:
            whole[:, GRADIENTS[name]] = grad
    return whole


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
