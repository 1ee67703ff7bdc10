# SPDX-License-Identifier: Apache-2.0
"""How an engine finds what batches see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from gs_train.engine.lookahead import EarlyList
from gs_train.engine.placement import Batch
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.renderers import View


class LooksAhead(Protocol):
    """Finds what coming batches may see."""

    def find(
        self,
        k: int,
        upcoming: Sequence[Sequence[View]],
        settings: StepSettings,
        step: int,
        edited: torch.cuda.Event | None,
    ) -> EarlyList | None:
        """See `Lookahead.find`."""
        ...

    def looked(self) -> torch.cuda.Event | None:
        """See `Lookahead.looked`."""
        ...


class PlansBatches(Protocol):
    """Makes batches when they begin."""

    def batch(
        self, views: Sequence[View], settings: StepSettings, trouble: Exception | None = None
    ) -> Batch:
        """See `Planner.batch`."""
        ...

    def lists_all(self, n_views: int, settings: StepSettings) -> bool:
        """See `Planner.lists_all`."""
        ...


class Planning(NamedTuple):
    """Both, for rows that are not all at hand.

    Attributes:
        lookahead: finds what coming batches may see.
        of: makes the planner, from the costs of the engine's views.
    """

    lookahead: LooksAhead
    of: Callable[[ViewCosts], PlansBatches]
