# SPDX-License-Identifier: Apache-2.0
"""The backend of a preset, around new rows or those of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import gs_adam
from gs_train.engine.backend import Backend
from gs_train.engine.in_device import InDevice
from gs_train.engine.limits import UNLIMITED, Limits
from gs_train.engine.model import OffloadedGaussians
from gs_train.engine.naive import HostMirrorAdam
from gs_train.engine.pipeline import Engine
from gs_train.engine.presets import Preset
from gs_train.engine.restore import Source, restored_gaussians, restored_offloaded
from gs_train.engine.selective import SelectiveAdam
from gs_train.errors import InputError
from gs_train.gaussians import Gaussians
from gs_train.renderers import Renderer, Rows


def make_backend(
    preset: Preset,
    rows: Rows | None,
    source: Source | None,
    *,
    renderer: Renderer,
    semantics: str,
    mem_limit: float,
    limits: Limits = UNLIMITED,
    seed: int = 0,
) -> Backend:
    """Build what a preset names.

    Args:
        preset: which.
        rows: the first Gaussians; or None with
        source: of what ``Backend.model.tensors()`` gave.
        renderer: decides the device.
        semantics: ``dense`` or ``sparse``.
        mem_limit: share of the scene above which a preset that splits views does.
        limits: of rows, where memory sets them.
        seed: of the search for an order.
    """
    device = renderer.device
    if preset.placement != "split":
        make, capacity = _optimizer_factory(preset, device, semantics), limits.capacity
        if rows is not None:
            model = Gaussians(rows, device=device, make_optimizer=make, capacity=capacity)
        else:
            assert source is not None
            model = restored_gaussians(
                source, device=device, make_optimizer=make, capacity=capacity
            )
        return InDevice(model, renderer)
    host = preset.host_semantics(semantics)
    travels = preset.residents and limits.residents != 0
    if rows is not None:
        offloaded = OffloadedGaussians(
            rows, device=device, semantics=host, travels=travels, capacity=limits.capacity
        )
    else:
        assert source is not None
        offloaded = restored_offloaded(
            source, device=device, semantics=host, travels=travels, capacity=limits.capacity
        )
    share = mem_limit if preset.split_share is not None else None
    return Engine(
        offloaded,
        renderer,
        preset,
        limits=limits,
        most_share=share,
        seed=seed,
    )


def _optimizer_factory(
    preset: Preset, device: torch.device, semantics: str
) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    """Dense Adam: torch's fused one on a GPU, this project's one-pass one on the host; or the
    selective one."""
    if semantics == "sparse" and preset.placement == "mirror":
        raise InputError(f"--semantics sparse needs another --offload than {preset.name}")

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if semantics == "sparse":
            return SelectiveAdam(groups)
        if preset.placement == "mirror":
            return HostMirrorAdam(groups, eps=1e-15)
        if device.type == "cuda":
            return torch.optim.Adam(groups, eps=1e-15, fused=True)
        return gs_adam.HostAdam(groups, eps=1e-15, semantics="dense")

    return make
