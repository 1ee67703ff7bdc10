# SPDX-License-Identifier: Apache-2.0
"""What a trainer asks of whatever renders a batch and updates the rows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gs_train.engine.stats import BatchStats
from gs_train.engine.trace import Trace
from gs_train.engine.view_costs import ViewCosts
from gs_train.renderers.protocol import Splats, View
from gs_train.rows.operations import Model

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
    """

    sh_degree: int
    rates: Mapping[str, float]
    betas: tuple[float, float]
    eps: float
    ssim_lambda: float
    opacity_reg: float = 0.0
    scale_reg: float = 0.0
    regularise_all: bool = True

    @property
    def regularises_seen(self) -> bool:
        """Whether these losses tell rows that the batch sees from others."""
        return not self.regularise_all and bool(self.opacity_reg or self.scale_reg)


class Backend(Protocol):
    """Renders batches and updates a model from them.

    Attributes:
        trace: off until started.
        stats: what has moved so far.
        costs: of the views: what a checkpoint needs beside the model to go on with the same bits.
    """

    trace: Trace
    stats: BatchStats
    costs: ViewCosts

    @property
    def model(self) -> Model:
        """The rows."""
        ...

    def step(
        self,
        batch: Sequence[tuple[View, Tensor]],
        settings: StepSettings,
        observe: Observe,
        *,
        upcoming: Sequence[Sequence[View]] = (),
    ) -> Tensor:
        """One optimizer update from the mean loss of a batch.

        Args:
            batch: views on the model's device with their photographs, (H, W, 3) uint8 there.
            settings: rates and weights of this step.
            observe: told about each view.
            upcoming: views of the batches that follow, as far as known; two of them are enough. A
                hint that changes no result.

        Returns:
            () the loss, on the device: reading it synchronises.
        """
        ...

    def finish(self) -> None:
        """Wait for work in the background, so that the rows may be read, edited or saved."""
        ...

    def make_room(self) -> None:
        """Finish, and give back device memory that can be taken again: rows are about to be
        re-ordered or refined, which needs much."""
        ...
