# SPDX-License-Identifier: Apache-2.0
"""Strategies: what makes the densifier of a run when its first Gaussians are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gs_train.densify import Adc, Densifier, Fixed, Mcmc
from gs_train.densify.peers import NO_PEERS, Peers
from gs_train.options.config import FitConfig


@dataclass(frozen=True)
class StrategyStart:
    """What a strategy is told when a run begins, and again when the run is resumed.

    Attributes:
        n_rows: Gaussians that there are now, of this rank.
        scene_scale: radius of the cameras in the frame that is trained in.
        seed: of the run; all random numbers of a densifier should follow from it.
        device: where ids and values are exchanged with the rows.
        config: the run's options.
        peers: the ranks among which the Gaussians are shared. What `Densifier.after_step` reports
            is of all these ranks.
    """

    n_rows: int
    scene_scale: float
    seed: int
    device: torch.device
    config: FitConfig
    peers: Peers = NO_PEERS


Strategy = Callable[[StrategyStart], Densifier]
"""Makes a run's densifier. Of a resumed run, `Densifier.load` is called next."""


def adc(start: StrategyStart) -> Adc:
    """Adaptive density control with the run's options."""
    config = start.config
    options = config.adc if config.cap is None else dataclasses.replace(config.adc, cap=config.cap)
    return Adc(
        options,
        scene_scale=start.scene_scale,
        seed=start.seed,
        n_rows=start.n_rows,
        device=start.device,
        peers=start.peers,
    )


def mcmc(start: StrategyStart) -> Mcmc:
    """Markov chain Monte Carlo with the run's options."""
    config = start.config
    cap = config.mcmc.cap_max if config.cap is None else config.cap
    options = dataclasses.replace(config.mcmc, cap_max=cap)
    return Mcmc(options, seed=start.seed, peers=start.peers)


def fixed(start: StrategyStart) -> Fixed:
    """The first Gaussians alone, whose number stays."""
    return Fixed()


STRATEGIES: dict[str, Strategy] = {"adc": adc, "mcmc": mcmc, "fixed": fixed}
"""By their names on the command line."""

_METHODS = ("observe", "after_step", "permute", "tensors", "load")


def made_by(strategy: Strategy, start: StrategyStart) -> Densifier:
    """The densifier of a run.

    Raises:
        TypeError: the strategy gave something else than a densifier.
    """
    densifier = strategy(start)
    missing = [name for name in _METHODS if not callable(getattr(densifier, name, None))]
    if missing:
        raise TypeError(
            "strategy must return a gs_train.densify.Densifier, got "
            f"{type(densifier).__name__} without {', '.join(missing)}"
        )
    return densifier
