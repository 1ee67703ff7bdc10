# SPDX-License-Identifier: Apache-2.0
"""Whether training views see the model at all."""

from __future__ import annotations

from gs_train.config import FitConfig
from gs_train.errors import InputError


class BlindEpochError(InputError):
    """An epoch has taught the model nothing: the present state is not worth going on from."""


class Sight:
    """Ends a run in which all training views, one after another, saw no Gaussian.

    Epoch e is images e * V to (e + 1) * V - 1 of the run, every one of V training views once (see
    :class:`gs_order.ViewSampler`); epochs that this process did not see whole do not count.

    Args:
        config: the run's options, for the message.
        n_views: V.
        images_seen: by the run so far.
    """

    def __init__(self, config: FitConfig, n_views: int, images_seen: int) -> None:
        self._config = config
        self._n_views = n_views
        self._dark_from = self._begun_at = images_seen
        self._n_visible = 0

    def check(self, images_seen: int, n_visible: int) -> None:
        """Note what a step saw.

        Args:
            images_seen: by the run so far.
            n_visible: rows rendered by this process so far, see
                :attr:`gs_train.engine.stats.BatchStats.visible`: a number that the host has anyway.

        Raises:
            BlindEpochError: a whole epoch rendered none.
        """
        if n_visible > self._n_visible:
            self._n_visible, self._dark_from = n_visible, images_seen
        epoch = -(-self._dark_from // self._n_views)  # the first that began in the dark
        if images_seen >= (epoch + 1) * self._n_views:
            raise BlindEpochError(
                f"no training view saw a Gaussian in a whole epoch ({self._n_views} images, the "
                f"last of step {images_seen // self._config.batch_size:,}): {self._reason()}"
            )

    def _reason(self) -> str:
        config = self._config
        if self._n_visible or self._begun_at:
            return (
                "all have faded or left the views; start again with smaller rates "
                f"(--lr.means {config.lr.means}, --lr.opacities {config.lr.opacities})"
            )
        points = f"points of {config.data}" if config.init is None else f"--init {config.init}"
        return f"{points} must be in the frame of the capture's poses, and in front of the cameras"
