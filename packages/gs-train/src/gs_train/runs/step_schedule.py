# SPDX-License-Identifier: Apache-2.0
"""The settings of each step of a run, which follow from its options and the step alone."""

from __future__ import annotations

from typing import Any

from gs_train.engine.background import Background
from gs_train.engine.exposures import Exposures, rate_of
from gs_train.engine.settings import StepSettings
from gs_train.options.config import FitConfig
from gs_train.options.schedule import AdamOptions, active_sh_degree, adam_options, means_decay


class StepSchedule:
    """What each step of a run does, as its options say.

    Args:
        config: the run's options.
        means_extent: what the means' learning rate is a multiple of.
        exposures: of the training views; None where they are not trained.

    Attributes:
        options: Adam's constants, the same in all steps.
        exposures: of the training views.
    """

    def __init__(
        self, config: FitConfig, *, means_extent: float, exposures: Exposures | None = None
    ) -> None:
        self.options = adam_options(config.batch_size, scaled=config.scale_with_batch)
        self.exposures = exposures
        self._config = config
        self._means_extent = means_extent
        self._rates = {
            name: float(rate * self.options.lr_factor) for name, rate in vars(config.lr).items()
        }
        self._constants = _constants(config, self.options)
        self._depths = config.weight_of_depth
        self._images_decay = config.steps_of_decay * config.batch_size

    def images_before(self, step: int) -> int:
        """Images that the first ``step`` steps are made of."""
        return step * self._config.batch_size

    def settings(self, step: int, *, max_degree: int) -> StepSettings:
        """What the engine is told.

        Args:
            step: steps that are done.
            max_degree: of the model's spherical harmonics.
        """
        config, images = self._config, self.images_before(step)
        decay = self._means_extent * means_decay(images, self._images_decay)
        means = float(config.lr.means * decay * self.options.lr_factor)
        return StepSettings(
            sh_degree=active_sh_degree(images, config.sh_every, max_degree),
            rates={**self._rates, "means": means},
            depth_weight=self._depths.at(images, self._images_decay) if self._depths else 0.0,
            background=Background(config.background, config.seed, step),
            exposures=self.exposures,
            **self._constants,
        )

    def next_means_rate(self, settings: StepSettings, step: int, n_views: int) -> float:
        """The means' learning rate of the step that follows one of ``n_views`` images."""
        before, decay = self.images_before(step), self._images_decay
        n_decaying = min(before + n_views, decay) - min(before, decay)
        return settings.rates["means"] * means_decay(n_decaying, decay)

    def update_exposures(self, settings: StepSettings, step: int, n_views: int) -> None:
        """One step of Adam on the exposures, where these are trained.

        Args:
            settings: of the step.
            step: steps done before it.
            n_views: that its loss is the mean of.
        """
        if self.exposures is None:
            return
        rate = rate_of(self.images_before(step), self._images_decay)
        self.exposures.update(
            rate=rate * float(self.options.lr_factor),
            betas=settings.betas,
            eps=settings.eps,
            n_views=n_views,
            step=step,
        )

    @property
    def ceilings(self) -> dict[str, float]:
        """Learning rates of means and scales that no step exceeds."""
        means = float(self._config.lr.means * self._means_extent * self.options.lr_factor)
        return {"means": means, "scales": self._rates["scales"]}


def _constants(config: FitConfig, options: AdamOptions) -> dict[str, Any]:
    """What the settings of all steps of a run have in common."""
    return {
        "betas": options.betas,
        "eps": options.eps,
        "ssim_lambda": config.ssim_lambda,
        "opacity_reg": config.by_strategy("opacity_reg"),
        "scale_reg": config.by_strategy("scale_reg"),
        "regularise_all": config.regularise == "all",
        "carves": config.mask == "carve",
    }
