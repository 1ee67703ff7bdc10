# SPDX-License-Identifier: Apache-2.0
"""Training as a plain loop with torch.optim.Adam: what every preset is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gs_train.densify import Adc, Densifier, Mcmc
from gs_train.options.config import FitConfig
from gs_train.options.schedule import adam_options, means_decay
from gs_train.renderers import Rows, Splats, View
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.morton import morton_order
from gs_train.rows.restore import InMemory, awake, restored_gaussians

Gradients = Callable[[View, int, Gaussians], tuple[Mapping[str, Tensor], Splats | None]]
"""(view, step, model) -> gradients of all N rows by attribute, and splats of all N rows."""


class PlainLoop:
    """All rows on one device, dense gradients, torch.optim.Adam.

    Args:
        orders: the permutations by which rows are re-sorted. Which of two rows comes first on the
            curve may hang on the last bit of a mean, in which torch's Adam differs; so the order
            is taken from the run that is compared, and checked.

    Attributes:
        model: the rows. `Gaussians` only holds them and follows row operations.
        rates: of the last step, by attribute.
    """

    def __init__(
        self, config: FitConfig, rows: Rows, *, extent: float, orders: Sequence[Tensor] = ()
    ) -> None:
        self._start(config, extent)
        self._orders = list(orders)
        self.model = Gaussians(rows, device="cpu", make_optimizer=_torch_adam)
        self.densifier = self._make_densifier()

    @classmethod
    def restore(
        cls, config: FitConfig, tensors: Mapping[str, Tensor], *, step: int, extent: float
    ) -> PlainLoop:
        """From what a trainer of the preset ``none`` saved."""
        loop = cls.__new__(cls)
        loop._start(config, extent)
        parts = {
            prefix: {
                name.removeprefix(prefix): value
                for name, value in tensors.items()
                if name.startswith(prefix)
            }
            for prefix in ("model/", "densify/")
        }
        loop.model = restored_gaussians(
            awake(InMemory(parts["model/"])),
            device=torch.device("cpu"),
            make_optimizer=_torch_adam,
        )
        loop.densifier = loop._make_densifier()
        loop.densifier.load(parts["densify/"])
        loop.step = step
        loop._changes = int(tensors["order/changes"])
        return loop

    def _start(self, config: FitConfig, extent: float) -> None:
        self._config = config
        self._extent = extent
        self._orders: list[Tensor] = []
        self.step = self._changes = 0
        self.rates: dict[str, float] = {}

    def train_step(self, views: Sequence[View], gradients_of: Gradients) -> None:
        """One update from the sum of the gradients of some views."""
        config, model = self._config, self.model
        n_views, total = len(views), config.steps * config.batch_size
        before = self.step * config.batch_size
        model.zero_gradients()
        for view in views:
            gradients, splats = gradients_of(view, self.step, model)
            for name in NAMES:
                grad = model.params[name].grad
                assert grad is not None
                grad += gradients[name].view(grad.shape)
            if splats is not None:
                self.densifier.observe(None, splats, batch_size=n_views)
        self._regularise()
        options = adam_options(config.batch_size, scaled=config.scale_with_batch)
        self.rates = {name: getattr(config.lr, name) * options.lr_factor for name in NAMES}
        self.rates["means"] *= self._extent * means_decay(before, total)
        for group in model.optimizer.param_groups:
            group.update(lr=self.rates[group["name"]], betas=options.betas, eps=options.eps)
        model.optimizer.step()
        changed = self.densifier.after_step(
            model,
            step=self.step,
            images_before=before,
            images_after=before + n_views,
            means_lr=self.rates["means"] * means_decay(n_views, total),
        )
        self._changes += changed.n_changes
        if self._changes and 0 < config.resort_every * model.n_rows <= self._changes:
            self._changes = 0
            order = self._orders.pop(0)
            _check_order(order, morton_order(model.read("means")))
            model.permute(order)
            self.densifier.permute(order)
        self.step += 1

    def _regularise(self) -> None:
        """By autograd, from the definition: the mean opacity and the mean scale of all rows."""
        params = self.model.params
        for name, weight, squash in (
            ("opacities", self._config.by_strategy("opacity_reg"), torch.sigmoid),
            ("scales", self._config.by_strategy("scale_reg"), torch.exp),
        ):
            if weight:
                (weight * squash(params[name]).mean()).backward()

    def _make_densifier(self) -> Densifier:
        config = self._config
        if config.strategy == "mcmc":
            return Mcmc(config.mcmc, seed=config.seed)
        return Adc(
            config.adc,
            scene_scale=self._extent,
            seed=config.seed,
            n_rows=self.model.n_rows,
            device="cpu",
        )


def _torch_adam(groups: list[dict[str, object]]) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, eps=1e-15)


def _check_order(order: Tensor, own: Tensor) -> None:
    """Both put the rows in the same order, but for a few that lie between two cells."""
    rank = torch.empty_like(own)
    rank[own] = torch.arange(len(own))
    falls = int((rank[order].diff() < 0).sum())
    assert falls <= 1e-3 * len(own), f"{falls} rows out of order"
