# SPDX-License-Identifier: Apache-2.0
"""A batch whose rows are there and whose views are to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from gs_train.engine.placement import Batch
from gs_train.engine.settings import Observe, StepSettings
from gs_train.renderers.tables import Direct
from gs_train.world.protocol import Pending

Truth: TypeAlias = Tensor | Callable[[], Tensor]
"""A photograph, (H, W, 3) uint8 on the model's device; or what gives it, called at most once: when
its view is drawn, and where ranks are several before the batch begins, by those that draw it."""


def pixels_of(truth: Truth) -> Tensor:
    """(H, W, 3) uint8."""
    return truth if isinstance(truth, Tensor) else truth()


class Running(NamedTuple):
    """A batch between `Placement.begin` and `Placement.update`.

    Attributes:
        batch: which.
        order: of its microbatches, as the placement takes them.
        truths: photographs of its views.
        settings: of the step.
        observe: told about each view.
        direct: see `Engine.step`.
    """

    batch: Batch
    order: Sequence[int]
    truths: Sequence[Truth]
    settings: StepSettings
    observe: Observe
    direct: Direct | None


class BatchDrawing(Protocol):
    """Draws the views of batches."""

    def photographs(self, batch: Batch, truths: Sequence[Truth]) -> Pending[Sequence[Truth]]:
        """What `draw` shall get, before any row is changed for the batch.

        Args:
            truths: photographs of the batch's views.

        Raises:
            CommonError: from ``wait``: a rank has met an InputError or an OSError; on all ranks.
        """
        ...

    def draw(self, run: Running, meanwhile: Callable[[], object] | None) -> Tensor:
        """Draw a batch: all gradients are in the placement's sums afterwards.

        Args:
            meanwhile: called once the views are enqueued, before the host waits for the device.

        Returns:
            () the loss, on the device.
        """
        ...

    def finish(self) -> None:
        """Wait for what is still on its way between two batches."""
        ...

    def release(self) -> None:
        """`finish`, and give memory back."""
        ...
