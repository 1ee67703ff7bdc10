# SPDX-License-Identifier: Apache-2.0
"""What gsplat and Faster-GS do in the loop of ``peer_loop.py``."""

from __future__ import annotations

from typing import Any

import gsplat
import torch
from gsplat_densifier import StrategyOfGivenSums
from peer_loop import Parameters
from torch import Tensor

import faster_gs
from gs_train.options.config import FitConfig
from gs_train.scene.scene import Scene


class Gsplat:
    """``gsplat.rasterization`` and torch's fused Adam, as in gsplat's example trainer."""

    def __init__(self, scene: Scene) -> None:
        self._views = scene.views

    def adam(self, parameter: Tensor, rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": parameter, "lr": rate}], eps=1e-15, fused=True)

    def strategy(self, config: FitConfig, extent: float, n_rows: int) -> tuple[Any, dict[str, Any]]:
        if config.strategy == "mcmc":
            return _mcmc(config)
        strategy = gsplat.DefaultStrategy()
        return strategy, strategy.initialize_state(scene_scale=extent)

    def draw(
        self, parameters: Parameters, index: int, sh_degree: int, state: dict[str, Any] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        view = self._views[index]
        image, _, info = gsplat.rasterization(
            parameters["means"],
            parameters["quats"],
            torch.exp(parameters["scales"]),
            torch.sigmoid(parameters["opacities"]),
            torch.cat([parameters["sh0"], parameters["shN"]], 1),
            view.viewmat[None],
            view.K[None],
            view.width,
            view.height,
            sh_degree=sh_degree,
            packed=False,
        )
        return image[0], info


class FasterGs:
    """Faster-GS's rasterizer of stored rows and its Adam, with gsplat's strategy.

    The backward pass itself adds what gsplat's rules of growth look at: how often a Gaussian
    showed, and the norms of its image gradients. Planes of colour become pixels of three colours
    for the loss, and back, by one copy each way.
    """

    def __init__(self, scene: Scene) -> None:
        self._settings = [faster_gs.camera(view, 0) for view in scene.views]
        self._device = scene.views[0].viewmat.device
        self._sums = torch.empty(0)

    def adam(self, parameter: Tensor, rate: float) -> torch.optim.Optimizer:
        return faster_gs.adam(parameter, rate)

    def strategy(self, config: FitConfig, extent: float, n_rows: int) -> tuple[Any, dict[str, Any]]:
        if config.strategy == "mcmc":
            return _mcmc(config)
        strategy = StrategyOfGivenSums()
        state = strategy.initialize_state(scene_scale=extent)
        state["count"], state["grad2d"] = torch.zeros((2, n_rows), device=self._device)
        return strategy, state

    def draw(
        self, parameters: Parameters, index: int, sh_degree: int, state: dict[str, Any] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        settings = self._settings[index]._replace(active_sh_bases=(sh_degree + 1) ** 2)
        sums = None if state is None or "count" not in state else self._sums_of(state)
        return faster_gs.draw(parameters, settings, sums).permute(1, 2, 0), {}

    def _sums_of(self, state: dict[str, Any]) -> Tensor:
        """(2, N): the strategy's count and sum, as one block that the backward pass adds to.

        The strategy replaces both where rows come or go; they are joined again then.
        """
        if state["count"].data_ptr() != self._sums.data_ptr():
            self._sums = torch.stack([state["count"], state["grad2d"]])
            state["count"], state["grad2d"] = self._sums
        return self._sums


def _mcmc(config: FitConfig) -> tuple[Any, dict[str, Any]]:
    strategy = gsplat.MCMCStrategy(cap_max=config.cap or config.mcmc.cap_max)
    return strategy, strategy.initialize_state()
