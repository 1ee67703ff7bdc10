# SPDX-License-Identifier: Apache-2.0
"""Whether training views see the model at all."""

from __future__ import annotations

from collections.abc import Callable

from gs_train.errors import CommonError
from gs_train.options.config import FitConfig


class BlindEpochError(CommonError):
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
        self._begun_at = self._images = images_seen
        self._seen = 0  # by this process, until the last step, if the next one begins an epoch
        self._seen_before: int | None = 0 if images_seen % n_views == 0 else None
        self._n_seen = 0  # until the epoch before

    def check(self, images_seen: int, seen: Callable[[], int]) -> None:
        """Note what a step saw.

        Args:
            images_seen: by the run so far, equally many in each step.
            seen: returns the rows seen by this process so far, see
                :attr:`gs_train.engine.stats.BatchStats.seen`. It may wait for the device, and is
                called where an epoch ends and, where that is in the middle of a step, before it.

        Raises:
            BlindEpochError: a whole epoch saw none.
        """
        n_views, following = self._n_views, 2 * images_seen - self._images
        has_ended = images_seen // n_views > self._images // n_views
        ends_within = following // n_views > images_seen // n_views and following % n_views > 0
        self._images = images_seen
        if not has_ended and not ends_within:
            return
        before, n_seen = self._seen, seen()
        self._seen = n_seen
        if not has_ended:
            return
        began = self._seen_before
        # The next epoch began in the middle of this step, or with its end.
        self._seen_before = n_seen if images_seen % n_views == 0 else before
        self._n_seen = n_seen
        if began == n_seen:
            raise BlindEpochError(
                f"no training view saw a Gaussian in a whole epoch ({self._n_views} images, the "
                f"last of step {images_seen // self._config.batch_size:,}): {self._reason()}"
            )

    def _reason(self) -> str:
        config = self._config
        if self._n_seen or self._begun_at:
            return (
                "all have faded or left the views; start again with smaller rates "
                f"(--lr.means {config.lr.means}, --lr.opacities {config.lr.opacities})"
            )
        points = f"points of {config.data}" if config.init is None else f"--init {config.init}"
        return f"{points} must be in the frame of the capture's poses, and in front of the cameras"
