# SPDX-License-Identifier: Apache-2.0
"""The exposure of each training photograph, an affine colour that is trained beside the scene.

    drawn image ──► over the background ──► A c + b of its photograph ──► loss
    gradients by A and b, a row a microbatch ──► sums a view, in canonical order ──► Adam
    A and b of all photographs less their mean, plus identity: the scene keeps its colours

An exported scene knows nothing of exposures. Where the mean of all corrections is no correction,
the scene has the colours of the capture's mean photograph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

RATE, LAST_RATE = 1e-2, 1e-3
"""Of Adam, for one image a step; from the first to the last step by a constant factor a step."""

PULL = 1e-3
"""Weight of the squared distance to no correction, in the loss of a view."""

N_VALUES = 12


def rate_of(images_before: int, images_decay: int) -> float:
    """Learning rate of the step that begins after so many images.

    Args:
        images_decay: images over which the rate decays.
    """
    share = min(1.0, images_before / max(1, images_decay))
    return float(RATE * (LAST_RATE / RATE) ** share)


class Exposures:
    """Exposures with Adam's moments; every one is updated in every step, as by `torch.optim.Adam`.

    Args:
        names: of the V training views, all different.
        device: of the views.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._rows = {name: row for row, name in enumerate(names)}
        self._identity = torch.eye(3, 4, device=device).flatten()
        self._values = self._identity.repeat(len(names), 1)  # (V, 12)
        self._mean = torch.zeros_like(self._values)
        self._square = torch.zeros_like(self._values)
        self._gradients: dict[int, Tensor] = {}

    def of(self, view: str) -> Tensor:
        """(3, 4) float32 of a training view, not copied."""
        return self._values[self._rows[view]].view(3, 4)

    def take(self, views: Sequence[str], gradients: Tensor) -> None:
        """Gradients of one batch's loss.

        Args:
            views: M names, of the batch's microbatches in canonical order; repeats allowed.
            gradients: (M, 12) of the exposures of these.
        """
        self._gradients = {}
        for view, gradient in zip(views, gradients, strict=True):
            row = self._rows[view]
            before = self._gradients.get(row)
            self._gradients[row] = gradient if before is None else before + gradient

    def update(
        self, *, rate: float, betas: tuple[float, float], eps: float, n_views: int, step: int
    ) -> None:
        """One step of Adam from what :meth:`take` was given; then the mean is no correction again.

        Args:
            rate: learning rate.
            betas, eps: Adam's.
            n_views: that the loss is the mean of.
            step: steps done before this one.
        """
        gradients = torch.zeros_like(self._values)
        for row, gradient in self._gradients.items():
            pull = (self._values[row] - self._identity) * (2.0 * PULL / n_views)
            gradients[row] = gradient + pull
        self._gradients = {}
        first, second = betas
        self._mean.mul_(first).add_(gradients, alpha=1.0 - first)
        self._square.mul_(second).addcmul_(gradients, gradients, value=1.0 - second)
        root = (self._square / (1.0 - second ** (step + 1))).sqrt_().add_(eps)
        self._values -= (self._mean / root) * (rate / (1.0 - first ** (step + 1)))
        # By columns: torch adds up in as many parts as it has threads where one sum is all.
        excess = self._values.T.contiguous().sum(1, dtype=torch.float64) / len(self._values)
        self._values -= (excess - self._identity).float()

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, (V, 12) each, not copied."""
        return {"values": self._values, "mean": self._mean, "square": self._square}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take a state that :meth:`tensors` gave.

        Raises:
            ValueError: it is of other views.
        """
        for name, own in self.tensors().items():
            if name not in tensors or tensors[name].shape != own.shape:
                raise ValueError(
                    f"exposures must be those of {len(own)} training views, got "
                    f"{tuple(tensors[name].shape) if name in tensors else 'none'}"
                )
            own.copy_(tensors[name])
