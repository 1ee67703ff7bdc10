# SPDX-License-Identifier: Apache-2.0
"""``sh0`` and ``shN`` as one tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def harmonics(sh0: Tensor, sh_n: Tensor) -> Tensor:
    """(R, 1 + K, 3) of (R, 1, 3) and (R, K, 3); differentiable.

    Not copied where both are columns of one table, as in rows that come from host memory: at a
    million rows that is a tenth of a millisecond each way.
    """
    if not _are_neighbours(sh0, sh_n):
        return torch.cat([sh0, sh_n], 1)
    joined: Tensor = _Neighbours.apply(sh0, sh_n)
    return joined


def _are_neighbours(sh0: Tensor, sh_n: Tensor) -> bool:
    width = 3 + 3 * sh_n.shape[1]
    return (
        len(sh0) > 0
        and sh_n.shape[1] > 0
        and sh0.untyped_storage().data_ptr() == sh_n.untyped_storage().data_ptr()
        and sh_n.storage_offset() == sh0.storage_offset() + 3
        and sh0.stride() == sh_n.stride() == (width, 3, 1)
    )


class _Neighbours(torch.autograd.Function):
    """Both parts where they lie."""

    @staticmethod
    def forward(ctx: Any, sh0: Tensor, sh_n: Tensor) -> Tensor:
        n, k, channels = sh_n.shape
        shape, stride = (n, 1 + k, channels), (channels * (1 + k), channels, 1)
        storage = sh0.untyped_storage()
        # A tensor of its own: a view of sh0 that reaches beyond it would not be one to autograd.
        return sh0.new_empty(0).set_(storage, sh0.storage_offset(), shape, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient[:, :1], gradient[:, 1:]
