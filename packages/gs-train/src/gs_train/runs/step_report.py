# SPDX-License-Identifier: Apache-2.0
"""The report of a step to a caller of :func:`gs_train.fit`, and the way to end a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from gs_train.densify import Changed
from gs_train.engine.backend import Backend
from gs_train.rows.operations import Model
from gs_train.rows.visible import all_rows


class StopTraining(Exception):  # noqa: N818 (a request, no error)
    """Raise this in ``on_step`` to end a run early, as Ctrl-C does.

    The run writes a checkpoint of the step and :func:`gs_train.fit` raises this very exception to
    its caller; ``resume=True`` goes on from there. Without effect after the last step.
    """


@dataclass(frozen=True)
class StepReport:
    """One step that has just been done.

    Attributes:
        step: steps done so far, this one included.
        images_seen: images of these steps.
        loss: () mean photometric loss of the batch, on the device: reading the value synchronises.
        changed: changes by densification.
        n_rows: present number of Gaussians.
    """

    step: int
    images_seen: int
    loss: Tensor
    changed: Changed
    n_rows: int
    _backend: Backend = field(repr=False)

    @property
    def model(self) -> Model:
        """The Gaussians of the training, in the training frame, to read: only a strategy may change
        Gaussians. Waits for work in the background. Where Gaussians live in host memory, reading
        through :meth:`rows` changes no result; other ways of reading may."""
        self._backend.finish()
        return self._backend.model

    def rows(self) -> dict[str, Tensor]:
        """Copies on the CPU of all Gaussians, in the training frame.

        Returns:
            means (N, 3), scales (N, 3) log, quats (N, 4), opacities (N,) logit, sh0 (N, 1, 3) and
            shN (N, K, 3); float32.

        Cost: waits for work in the background, and copies the whole model. No result changes.
        """
        return all_rows(self.model)


OnStep = Callable[[StepReport], object]
"""Called after each step; the result is ignored."""
