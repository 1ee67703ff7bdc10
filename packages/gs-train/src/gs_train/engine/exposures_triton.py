# SPDX-License-Identifier: Apache-2.0
"""The update of `gs_train.engine.exposures.Exposures` by one Triton kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from gs_train.engine.exposures_kernels import update_kernel

_BLOCK = 32


def update(
    state: Sequence[Tensor],
    rows: Sequence[int],
    gradients: Tensor,
    *,
    pull: float,
    betas: tuple[float, float],
    eps: float,
    rate: float,
    step: int,
) -> None:
    """One step of Adam.

    Args:
        state: (V, 12) values, means of gradients and of their squares, which change.
        rows: R different ones, of the views that have gradients.
        gradients: (R, 12) of these.
        pull: towards no correction, of these.
        betas, eps, rate: Adam's.
        step: steps done before this one.
    """
    first, second = betas
    values = state[0]
    numbers = torch.tensor([len(values), len(rows), *rows], dtype=torch.int32)
    if values.is_cuda:
        numbers = numbers.pin_memory().to(values.device, non_blocking=True)
    device = torch.cuda.device(values.get_device()) if values.is_cuda else contextlib.nullcontext()
    with device:
        update_kernel[(1,)](
            *state, numbers, gradients.contiguous(),
            pull, first, second, 1.0 / (1.0 - second ** (step + 1)), eps,
            rate / (1.0 - first ** (step + 1)), BLOCK=_BLOCK,
        )  # fmt: skip
