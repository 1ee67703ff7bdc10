# SPDX-License-Identifier: Apache-2.0
"""Adam on the rows that a batch sees; all others stand still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gs_train.rows import rowwise
from gs_train.rows.attributes import ADAM_EPS


class SelectiveAdam(torch.optim.Optimizer):
    """gsplat's ``SelectiveAdam`` from compact gradients, on any device.

    Nothing is corrected for bias, and rows without a gradient keep parameters and moments.

    Args:
        params: groups with one float32 parameter each, all with the same rows.
        lr, betas, eps: Adam's; a group's own count.

    State is named as torch.optim.Adam's, so that row operations carry it.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = ADAM_EPS,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        ids: Tensor,
        grads: Sequence[Tensor],
        *,
        penalties: Sequence[tuple[str, float] | None] | None = None,
    ) -> None:
        """Update some rows.

        Args:
            ids: (U,) sorted and unique rows, on the parameters' device.
            grads: one (U, ...) a parameter, in the order of the groups.
            penalties: as `gs_adam.DeviceAdam.step`'s, on the values of these rows.

        Cost: reads and writes U rows; about ten kernels a parameter. Does not synchronise.
        """
        rows = ids.long()
        losses = [None] * len(grads) if penalties is None else penalties
        for group, grad, loss in zip(self.param_groups, grads, losses, strict=True):
            (param,) = group["params"]
            if loss is not None:
                kind, weight = loss
                slope = rowwise.slope_of(kind, param.index_select(0, rows))
                grad = grad.add(slope, alpha=weight)
            state = self.state[param]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg_sq"] = torch.zeros_like(param)
            state["step"] += 1
            beta1, beta2 = group["betas"]
            mean = state["exp_avg"].index_select(0, rows).lerp_(grad, 1 - beta1)
            square = state["exp_avg_sq"].index_select(0, rows)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            change = mean / square.sqrt().add_(group["eps"])
            param.index_add_(0, rows, change, alpha=-group["lr"])  # each row once
            state["exp_avg"].index_copy_(0, rows, mean)
            state["exp_avg_sq"].index_copy_(0, rows, square)
