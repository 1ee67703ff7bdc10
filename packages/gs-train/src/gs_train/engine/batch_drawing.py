# SPDX-License-Identifier: Apache-2.0
"""A batch whose rows are there and whose views are to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from gs_train.engine.placement import Batch
from gs_train.engine.settings import Observe, StepSettings
from gs_train.errors import InputError
from gs_train.renderers.tables import Direct

Truth: TypeAlias = Tensor | Callable[[], Tensor]
"""A photograph on the model's device, (H, W, 3) uint8, with more bytes a pixel where it has a
mask or a depth map (`gs_train.losses.channels`); or what gives it, called at most once where and
when its view is drawn."""


@dataclass(frozen=True)
class Unreadable:
    """A `Truth` that is known to be missing: a batch with it ends before it changes a row, on all
    ranks where one has met the error."""

    error: InputError | OSError

    def __call__(self) -> Tensor:
        raise self.error


def trouble_of(truths: Sequence[Truth]) -> InputError | OSError | None:
    """Why a batch with these photographs cannot be drawn, if that is known."""
    return next((truth.error for truth in truths if isinstance(truth, Unreadable)), None)


def pixels_of(truth: Truth) -> Tensor:
    """(H, W, 3 to 6) uint8."""
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
