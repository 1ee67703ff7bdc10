# SPDX-License-Identifier: Apache-2.0
"""`gs_train.renderers.activation` by one Triton kernel each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gs_train.renderers.activation_kernels import gradient_kernel, value_kernel
from gs_train.renderers.protocol import Rows

_VALUE = {"BLOCK": 32, "num_warps": 4}
_GRADIENT = {"BLOCK": 16, "num_warps": 2}
"""Of 16 to 256 rows by 1 to 8 warps these were the fastest."""


def activate(rows: Rows, viewmat: Tensor, sh_degree: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means, extents, opacities and colours; see `gs_train.renderers.activation.activate`."""
    stored = (rows[name] for name in ("means", "scales", "opacities", "sh0", "shN"))
    means, scales, opacities, colors = _Activate.apply(*stored, viewmat, sh_degree)
    return means, scales, opacities, colors


class _Activate(torch.autograd.Function):
    """Gives the means as they came, so that their gradient is added up here."""

    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        scales: Tensor,
        opacities: Tensor,
        sh0: Tensor,
        sh_n: Tensor,
        viewmat: Tensor,
        degree: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inputs = [part.contiguous() for part in (means, scales, opacities, sh0, sh_n, viewmat)]
        n = len(means)
        out = torch.empty_like(inputs[1]), torch.empty_like(inputs[2])
        raw, colors = torch.empty_like(inputs[0]), torch.empty_like(inputs[0])
        with torch.cuda.device(means.get_device()):
            value_kernel[(-(-n // _VALUE["BLOCK"]),)](
                *inputs[:4], _some(inputs[4], sh0), inputs[5],
                *out, raw, colors, n, _n_used(degree), REST=3 * sh_n.shape[1], **_VALUE,
            )  # fmt: skip
        ctx.save_for_backward(inputs[0], inputs[4], inputs[5], *out, raw)
        ctx.degree = degree
        return means, *out, colors

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        means, sh_n, viewmat, scales, opacities, raw = ctx.saved_tensors
        n = len(means)
        to = [torch.empty_like(like) for like in (means, scales, opacities, raw, sh_n)]
        with torch.cuda.device(means.get_device()):
            gradient_kernel[(-(-n // _GRADIENT["BLOCK"]),)](
                means, _some(sh_n, raw), viewmat, scales, opacities, raw,
                *(part.contiguous() for part in upstream),
                *to[:4], _some(to[4], raw), n, _n_used(ctx.degree),
                REST=3 * sh_n.shape[1], **_GRADIENT,
            )  # fmt: skip
        return *to[:3], to[3].unsqueeze(1), to[4], None, None


def _n_used(degree: int) -> int:
    """Basis functions of ``shN`` that a degree needs."""
    return (degree + 1) ** 2 - 1


def _some(part: Tensor, other: Tensor) -> Tensor:
    """What stands for an empty tensor and is not read."""
    return part if part.numel() else other
