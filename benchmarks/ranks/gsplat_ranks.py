# SPDX-License-Identifier: Apache-2.0
"""gsplat's own training on several GPUs: ``rasterization`` with ``distributed=True``.

As gsplat's example trainer does it: each process has a part of the Gaussians and draws a part of a
batch's views, and torch's fused Adam updates all of the process's rows. One view of each process is
drawn at a time, so that memory suffices.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

import torch
from bench_engine import Scene, settings
from torch import Tensor

from gs_train.losses.loss import Crop, photometric_loss
from gs_train.renderers import View
from gs_train.world.protocol import World

NAME = "gsplat"


def is_installed() -> bool:
    """Whether gsplat can be imported."""
    return importlib.util.find_spec("gsplat") is not None


class GsplatRank:
    """One process of such a training; a `training_ranks.Trainee`.

    Args:
        rows: of this rank.
        scene: views and photographs.
        batch: views of all ranks; each draws as many.
        world: all ranks.
    """

    def __init__(self, rows: Mapping[str, Tensor], scene: Scene, batch: int, world: World) -> None:
        if batch % world.size:
            raise ValueError(
                f"batch must be a multiple of the {world.size} ranks for gsplat, got {batch}"
            )
        self._scene, self._world, self._batch = scene, world, batch
        options = settings(scene, batch)
        self._parameters = {
            name: torch.nn.Parameter(values.to(world.device)) for name, values in rows.items()
        }
        self._optimizer = torch.optim.Adam(
            [{"params": [p], "lr": options.rates[name]} for name, p in self._parameters.items()],
            betas=options.betas, eps=options.eps, fused=True,
        )  # fmt: skip

    def step(self, now: Sequence[int], upcoming: Sequence[Sequence[int]]) -> None:
        """One update from the views ``now``."""
        from gsplat import rasterization

        n_ranks = self._world.size
        p = self._parameters
        for i in now[self._world.rank :: n_ranks]:
            view = self._scene.views[i]
            images, _, _ = rasterization(
                p["means"],
                p["quats"],
                p["scales"].exp(),
                p["opacities"].sigmoid(),
                torch.cat([p["sh0"], p["shN"]], 1),
                view.viewmat[None],
                view.K[None],
                view.width,
                view.height,
                sh_degree=3,
                # Packed splats of several ranks are read out of bounds in 1.5.3: they travel, and
                # the numbers of their images do not.
                packed=n_ranks == 1,
                distributed=n_ranks > 1,
            )
            self._loss(view, images[0], self._photo(i)).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def finish(self) -> None:
        """Nothing runs in the background."""

    def close(self) -> None:
        """Give the rows back."""
        self._parameters.clear()
        self._optimizer.param_groups.clear()
        self._optimizer.state.clear()

    def _loss(self, view: View, image: Tensor, photo: Tensor) -> Tensor:
        return photometric_loss(image, photo, Crop(view, view.rect), 0.2, weight=1 / self._batch)

    def _photo(self, i: int) -> Tensor:
        return self._scene.photos[i].to(self._world.device, non_blocking=True)
