# SPDX-License-Identifier: Apache-2.0
"""gsplat's ``DefaultStrategy`` as gs-train's densifier: its code, defaults and random numbers.

gs-train's own sums of image gradients stand in for gsplat's, which are the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gsplat
import torch
from torch import Tensor

from gs_train.densify.protocol import Changed
from gs_train.densify.statistics import Statistics
from gs_train.renderers import Splats
from gs_train.rows.attributes import NAMES
from gs_train.rows.operations import RowOperations
from gs_train.runs.strategies import StrategyStart


class StrategyOfGivenSums(gsplat.DefaultStrategy):
    """gsplat's rules, where something else fills ``count`` and ``grad2d`` of the state."""

    def step_pre_backward(self, *arguments: Any) -> None:
        """No gradient of 2D means is kept."""

    def _update_state(self, *arguments: Any, **options: Any) -> None:
        """Nothing is left to add."""


class GsplatDensifier:
    """A `gs_train.densify.Densifier`, with one view a step."""

    def __init__(self, start: StrategyStart) -> None:
        torch.manual_seed(start.seed)
        self._strategy = StrategyOfGivenSums()
        self._state = self._strategy.initialize_state(scene_scale=start.scene_scale)
        self._sums = Statistics(start.n_rows, device=start.device, absgrad=False, radii=False)

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        self._sums.observe(ids, splats, batch_size=batch_size)

    def after_step(self, rows: RowOperations, *, step: int, **_: Any) -> Changed:
        if step % self._strategy.refine_every:
            return Changed()
        parameters = {
            name: torch.nn.Parameter(rows.read(name).detach(), requires_grad=False)
            for name in NAMES
        }
        # gsplat's functions give rows that they add zeros as moments, and the ids of their parents.
        n = rows.n_rows
        moments = torch.optim.SGD([parameters["means"]])
        moments.state[parameters["means"]] = {"is_old": torch.ones(n, device=rows.device)}
        state = {**self._state, **self._sums.tensors(), "id": torch.arange(n, device=rows.device)}
        self._strategy.step_post_backward(parameters, {"means": moments}, state, step, {})
        is_old = moments.state[parameters["means"]]["is_old"].bool()
        is_removed = torch.ones(n, dtype=torch.bool, device=rows.device)
        is_removed[state["id"][is_old]] = False
        removed = is_removed.nonzero().flatten()
        new = {name: values.detach()[~is_old] for name, values in parameters.items()}
        n_new = len(new["means"])
        if len(removed) or n_new:
            rows.replace(removed, new)
            self._sums.reset(rows.n_rows)
        return Changed(grown=n_new, pruned=len(removed), rows_changed=bool(len(removed) or n_new))

    def permute(self, order: Tensor) -> None:
        self._sums.permute(order)

    def tensors(self) -> Mapping[str, Tensor]:
        return self._sums.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._sums.load(tensors)
