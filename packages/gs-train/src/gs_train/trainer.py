# SPDX-License-Identifier: Apache-2.0
"""One optimizer step: render what each view sees, add up gradients, update, densify."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gs_train.config import FitConfig
from gs_train.densify import Adc, Changed, Densifier, Mcmc
from gs_train.densify.protocol import multiple_seen
from gs_train.gaussians import Gaussians
from gs_train.loss import Crop, photometric_loss
from gs_train.morton import morton_order
from gs_train.renderers import Renderer, Rows, View
from gs_train.schedule import active_sh_degree, adam_options, means_decay
from gs_train.visible import visible_ids

_MODEL, _DENSIFY = "model/", "densify/"


@dataclass(frozen=True)
class StepResult:
    """What one step did.

    Attributes:
        loss: () mean photometric loss of the batch, on the device: reading it synchronises.
        changed: what densification did.
    """

    loss: Tensor
    changed: Changed


class Trainer:
    """A model in training: rows, the optimizer's and densification's tensors, and the step.

    Everything else follows from the configuration and the step, random numbers included, so a
    checkpoint of these resumes exactly.

    Args:
        config: the run's options.
        rows: the first Gaussians.
        renderer: draws them; decides the device.
        extent: radius of the scene (see :class:`gs_train.frame.Frame`).
    """

    def __init__(self, config: FitConfig, rows: Rows, *, renderer: Renderer, extent: float) -> None:
        self.config = config
        self.renderer = renderer
        self.extent = extent
        self.step = 0
        self.model = Gaussians(
            rows, device=renderer.device, make_optimizer=_optimizer_factory(renderer.device)
        )
        self.densifier = self._make_densifier()

    @classmethod
    def restore(
        cls,
        config: FitConfig,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        renderer: Renderer,
        extent: float,
    ) -> Trainer:
        """The trainer whose :meth:`tensors` these were, after ``step`` steps."""
        trainer = cls.__new__(cls)
        trainer.config = config
        trainer.renderer = renderer
        trainer.extent = extent
        trainer.step = step
        trainer.model = Gaussians.from_tensors(
            _without_prefix(tensors, _MODEL),
            device=renderer.device,
            make_optimizer=_optimizer_factory(renderer.device),
        )
        trainer.densifier = trainer._make_densifier()
        trainer.densifier.load(_without_prefix(tensors, _DENSIFY))
        return trainer

    def tensors(self) -> dict[str, Tensor]:
        """The whole state but the step, not copied."""
        return {
            **{_MODEL + name: value for name, value in self.model.tensors().items()},
            **{_DENSIFY + name: value for name, value in self.densifier.tensors().items()},
        }

    @property
    def images_seen(self) -> int:
        """Images that the steps so far were made of."""
        return self.step * self.config.batch_size

    def train_step(self, batch: Sequence[tuple[View, Tensor]]) -> StepResult:
        """One optimizer update from the mean loss of ``batch``.

        Args:
            batch: views on the renderer's device with their photographs, (H, W, 3) uint8 there.
        """
        images_before = self.images_seen
        images_after = images_before + len(batch)
        images_total = self.config.steps * self.config.batch_size
        sh_degree = active_sh_degree(images_before, self.config.sh_every, self.model.sh_degree)

        self.model.zero_gradients()
        loss = torch.zeros((), device=self.renderer.device)
        for view, truth in batch:
            loss += self._accumulate(view, truth, sh_degree, len(batch))
        self._regularise()

        means_lr = self._set_options(means_decay(images_before, images_total))
        self.model.optimizer.step()

        # The rate that the next step will use, as gsplat's schedulers have already moved on here.
        next_lr = means_lr * means_decay(images_after - images_before, images_total)
        changed = self.densifier.after_step(
            self.model,
            step=self.step,
            images_before=images_before,
            images_after=images_after,
            means_lr=next_lr,
        )
        changed = self._resort(images_before, images_after, changed)
        self.step += 1
        return StepResult(loss, changed)

    def _accumulate(self, view: View, truth: Tensor, sh_degree: int, batch_size: int) -> Tensor:
        """Add one view's gradients; return its share of the loss."""
        whole = Crop(view, view.rect)
        ids = visible_ids(self.model, view, self.renderer)
        if not len(ids):  # the image is black and nothing can change that
            black = torch.zeros(truth.shape, device=truth.device)
            return photometric_loss(black, truth, whole, self.config.ssim_lambda) / batch_size
        leaves = self.model.leaves(ids)
        splats = self.renderer.project(leaves, view, sh_degree=sh_degree)
        splats.means2d.retain_grad()
        image, _ = self.renderer.rasterize(splats)
        loss = photometric_loss(image, truth, whole, self.config.ssim_lambda) / batch_size
        loss.backward()
        self.model.add_gradients(ids, leaves)
        self.densifier.observe(ids, splats, batch_size=batch_size)
        return loss.detach()

    @torch.no_grad()
    def _regularise(self) -> None:
        """Add the gradients of the mean opacity and the mean scale of all rows."""
        n = self.model.n_rows
        if weight := self.config.by_strategy("opacity_reg"):
            param = self.model.params["opacities"]
            opacity = torch.sigmoid(param)
            assert param.grad is not None
            param.grad.add_(opacity * (1 - opacity), alpha=weight / n)
        if weight := self.config.by_strategy("scale_reg"):
            param = self.model.params["scales"]
            assert param.grad is not None
            param.grad.add_(torch.exp(param), alpha=weight / (3 * n))

    def _set_options(self, decay: float) -> float:
        """Set this step's rates and constants; return the means' rate."""
        options = adam_options(self.config.batch_size, scaled=self.config.scale_with_batch)
        rates = dataclasses.asdict(self.config.lr)
        rates["means"] *= self.extent * decay
        for group in self.model.optimizer.param_groups:
            group["lr"] = rates[group["name"]] * options.lr_factor
            group["betas"] = options.betas
            group["eps"] = options.eps
        return float(rates["means"] * options.lr_factor)

    def _resort(self, images_before: int, images_after: int, changed: Changed) -> Changed:
        """Re-order the rows along the Morton curve when due: a view then sees runs of rows."""
        every = self.config.resort_every
        if every == 0 or not multiple_seen(every, images_before, images_after):
            return changed
        order = morton_order(self.model.read("means"))
        self.model.permute(order)
        self.densifier.permute(order)
        return dataclasses.replace(changed, rows_changed=True)

    def _make_densifier(self) -> Densifier:
        config = self.config
        if config.strategy == "mcmc":
            cap = config.mcmc.cap_max if config.cap is None else config.cap
            return Mcmc(dataclasses.replace(config.mcmc, cap_max=cap), seed=config.seed)
        adc = config.adc if config.cap is None else dataclasses.replace(config.adc, cap=config.cap)
        return Adc(
            adc,
            scene_scale=self.extent,
            seed=config.seed,
            n_rows=self.model.n_rows,
            device=self.model.device,
        )


def _optimizer_factory(
    device: torch.device,
) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    """Dense Adam: torch's fused one on a GPU, this project's one-pass one on the host."""

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if device.type == "cuda":
            return torch.optim.Adam(groups, eps=1e-15, fused=True)
        import gs_adam

        return gs_adam.HostAdam(groups, eps=1e-15, semantics="dense")

    return make


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
