# SPDX-License-Identifier: Apache-2.0
"""The loop of gsplat's example trainer, over the kernels of a peer.

Every step draws all rows into one view and updates every parameter by an optimizer of its own.
gsplat's strategy then adds and removes Gaussians, with its defaults. Photographs, order of views,
initial rows, learning rates and loss are gs-train's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gs_order import ViewSampler
from gs_train.data import Capture, read_image
from gs_train.losses.loss import Crop, photometric_loss
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.schedule import active_sh_degree
from gs_train.runs.feed import ImageFeed
from gs_train.runs.metrics import psnr, ssim
from gs_train.scene.scene import Scene

Parameters = Mapping[str, Tensor]


class Kernels(Protocol):
    """What a peer does in the loop."""

    def adam(self, parameter: Tensor, rate: float) -> torch.optim.Optimizer:
        """The optimizer of one parameter."""
        ...

    def strategy(self, config: FitConfig, extent: float, n_rows: int) -> tuple[Any, dict[str, Any]]:
        """gsplat's strategy, and its state."""
        ...

    def draw(
        self, parameters: Parameters, index: int, sh_degree: int, state: dict[str, Any] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """A view's image (H, W, 3), and what the strategy wants to know of the drawing.

        Args:
            index: of the view in its scene.
            state: the strategy's; None: for scoring.
        """
        ...


class PeerRun:
    """A model that a peer trains."""

    def __init__(self, kernels: Kernels, scene: Scene, config: FitConfig) -> None:
        self._kernels, self._scene, self._config = kernels, scene, config
        torch.manual_seed(config.seed)
        with StopRequest() as stop:
            rows = scene.initial_rows(config, stop)
        self._device = scene.views[0].viewmat.device
        self.parameters = {
            name: torch.nn.Parameter(value.to(self._device)) for name, value in rows.items()
        }
        extent = scene.frame.extent
        rates = vars(config.lr) | {"means": config.lr.means * extent}
        self._optimizers = {
            name: kernels.adam(parameter, rates[name])
            for name, parameter in self.parameters.items()
        }
        means = self._optimizers["means"]
        self._decay = torch.optim.lr_scheduler.ExponentialLR(means, 0.01 ** (1 / config.steps))
        n_rows = len(rows["means"])
        self._strategy, self._state = kernels.strategy(config, extent, n_rows)
        self._strategy.check_sanity(self.parameters, self._optimizers)

    def step(self, step: int, index: int, truth: Tensor) -> None:
        """One view: draw, differentiate, update, refine."""
        config, parameters, strategy = self._config, self.parameters, self._strategy
        sh_degree = active_sh_degree(step, config.sh_every, config.sh_degree)
        image, info = self._kernels.draw(parameters, index, sh_degree, self._state)
        strategy.step_pre_backward(parameters, self._optimizers, self._state, step, info)
        view = self._scene.views[index]
        loss = photometric_loss(image, truth, Crop(view, view.rect), config.ssim_lambda)
        if config.strategy == "mcmc":
            opacity_reg, scale_reg = map(config.by_strategy, ("opacity_reg", "scale_reg"))
            loss = loss + opacity_reg * parameters["opacities"].sigmoid().mean()
            loss = loss + scale_reg * parameters["scales"].exp().mean()
        loss.backward()
        for optimizer in self._optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._decay.step()
        more = {"lr": self._decay.get_last_lr()[0]} if config.strategy == "mcmc" else {}
        strategy.step_post_backward(parameters, self._optimizers, self._state, step, info, **more)

    @torch.no_grad()
    def scores(self) -> tuple[float, float]:
        """Mean PSNR and SSIM of the held-out views."""
        psnrs, ssims = [], []
        for index in self._scene.capture.test:
            image, _ = self._kernels.draw(self.parameters, index, self._config.sh_degree, None)
            photo = torch.from_numpy(read_image(self._scene.capture.views[index]))
            truth = photo.to(self._device).float() / 255
            psnrs.append(psnr(image.clamp(0, 1), truth))
            ssims.append(ssim(image.clamp(0, 1), truth))
        return statistics.mean(psnrs), statistics.mean(ssims)


def train(kernels: Kernels, scene: Scene, config: FitConfig) -> dict[str, float]:
    """One run; what the benchmark compares, by column."""
    run = PeerRun(kernels, scene, config)
    views = scene.capture.views
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with ImageFeed(
        _sequence(scene.capture, config),
        lambda i: read_image(views[i]),
        device=scene.views[0].viewmat.device,
        cache_bytes=4 << 30,
        largest_bytes=max(v.width * v.height * 3 for v in views),
    ) as feed:
        started = time.perf_counter()
        for step in range(config.steps):
            run.step(step, *feed.next())
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated()
    psnr_mean, ssim_mean = run.scores()
    return {
        "psnr": psnr_mean,
        "ssim": ssim_mean,
        "n_gaussians": len(run.parameters["means"]),
        "images_per_second": config.steps / seconds,
        "peak_device_mb": peak / 1e6,
    }


def _sequence(capture: Capture, config: FitConfig) -> Iterator[int]:
    n_views = len(capture.train)
    for batch in ViewSampler(n_views, 1, seed=config.seed, n_steps=config.steps):
        yield capture.train[batch[0]]
