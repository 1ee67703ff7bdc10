# SPDX-License-Identifier: Apache-2.0
"""What one optimizer step is asked to do, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from gs_train.engine.background import ALWAYS_BLACK, Background
from gs_train.engine.exposures import Exposures
from gs_train.renderers.protocol import Splats

Observe = Callable[[Tensor, Splats], None]
"""Called with (ids, splats) of every view after its backward pass; see `Densifier.observe`."""


@dataclass(frozen=True)
class StepSettings:
    """What one optimizer step does, apart from its images.

    Attributes:
        sh_degree: bands of spherical harmonics in use.
        rates: learning rate of each attribute.
        betas, eps: Adam's.
        ssim_lambda: share of 1 - SSIM in the loss.
        opacity_reg, scale_reg: weight of the mean opacity, and of the mean scale, of all rows.
        regularise_all: these losses act on all rows; else on those that the batch sees.
        carves: pixels that masks mark so are to be transparent.
        depth_weight: of the difference to depth maps; 0: these are not looked at.
        background: what lies behind the scene.
        exposures: of the training views, which get the gradients of each batch; None: not trained.
    """

    sh_degree: int
    rates: Mapping[str, float]
    betas: tuple[float, float]
    eps: float
    ssim_lambda: float
    opacity_reg: float = 0.0
    scale_reg: float = 0.0
    regularise_all: bool = True
    carves: bool = False
    depth_weight: float = 0.0
    background: Background = ALWAYS_BLACK
    exposures: Exposures | None = None

    @property
    def regularises_seen(self) -> bool:
        """Whether these losses tell rows that the batch sees from others."""
        return not self.regularise_all and bool(self.opacity_reg or self.scale_reg)
