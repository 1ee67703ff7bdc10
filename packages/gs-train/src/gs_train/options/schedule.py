# SPDX-License-Identifier: Apache-2.0
"""What changes in the course of a run, as plain functions of how many images have been seen.

Steps count optimizer updates; decay, spherical harmonics and densification count images, so that a
recipe keeps its meaning when the batch grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gs_train.errors import InputError
from gs_train.rows.attributes import ADAM_EPS


@dataclass(frozen=True)
class LearningRates:
    """Adam's learning rates for a batch of one image (gsplat's defaults).

    Attributes:
        means: multiplied by the extent of means_extent; decays exponentially to 1 % over the run,
            or over decay_steps.
        scales: of log scales.
        quats: of quaternions.
        opacities: of logit opacities.
        sh0: of the constant spherical harmonics coefficients.
        shN: of the others.
    """

    means: float = 1.6e-4
    scales: float = 5e-3
    quats: float = 1e-3
    opacities: float = 5e-2
    sh0: float = 2.5e-3
    shN: float = 2.5e-3 / 20  # noqa: N815 (gsplat's name)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0.0 <= value < math.inf:
                raise InputError(f"--lr.{name} must be finite and not negative, got {value}")


@dataclass(frozen=True)
class AdamOptions:
    """Adam's constants for one batch size."""

    lr_factor: float
    betas: tuple[float, float]
    eps: float


def adam_options(batch_size: int, *, scaled: bool) -> AdamOptions:
    """Adam's constants for ``batch_size`` images a step.

    Scaled: learning rates grow with sqrt(B), eps shrinks with it, and each beta is raised to the
        B-th power, so that one
    step of B images moves the model about as far as B steps of one (Zhao et al., "On Scaling Up 3D
    Gaussian Splatting Training", section 5; momentum as its released code has it).
    """
    b = batch_size if scaled else 1
    return AdamOptions(math.sqrt(b), (0.9**b, 0.999**b), ADAM_EPS / math.sqrt(b))


@dataclass(frozen=True)
class ExponentialWeight:
    """The weight of a term of the loss, which falls or rises exponentially.

    Attributes:
        start: at the first image; above 0.
        end: after the last, and from then on; above 0.
    """

    start: float
    end: float

    @classmethod
    def parse(cls, text: str, *, option: str) -> ExponentialWeight:
        """Of START:END.

        Raises:
            InputError: it is not two finite numbers above 0.

        >>> ExponentialWeight.parse("1:0.01", option="--depth-weight")
        ExponentialWeight(start=1.0, end=0.01)
        """
        try:
            start, end = map(float, text.split(":"))
        except (ValueError, AttributeError):
            start = end = 0.0
        if not (0.0 < start < math.inf and 0.0 < end < math.inf):
            raise InputError(
                f"{option} must be START:END, two finite numbers above 0, got {str(text)!r:.80}"
            )
        return cls(start, end)

    def at(self, images_seen: int, images_total: int) -> float:
        """The weight after ``images_seen`` of ``images_total`` images."""
        done = min(images_seen, images_total) / max(images_total, 1)
        return float(self.start * (self.end / self.start) ** done)


def means_decay(images_seen: int, images_total: int) -> float:
    """The factor on the means' learning rate: 1 at the first image, 0.01 after ``images_total`` of
    them and from then on."""
    return float(0.01 ** (min(images_seen, images_total) / max(images_total, 1)))


def active_sh_degree(images_seen: int, every: int, max_degree: int) -> int:
    """Spherical harmonics are switched on band by band, one every ``every`` images."""
    return min(images_seen // every, max_degree) if every > 0 else max_degree
