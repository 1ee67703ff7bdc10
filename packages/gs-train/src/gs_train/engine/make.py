# SPDX-License-Identifier: Apache-2.0
"""The backend of a preset, around new rows or those of a checkpoint."""

from __future__ import annotations

from typing import Any

from gs_train.engine.backend import Backend
from gs_train.engine.limits import UNLIMITED, Limits
from gs_train.engine.pipeline import Engine
from gs_train.errors import InputError
from gs_train.options.presets import Preset
from gs_train.published.in_device import InDevice
from gs_train.published.naive import HostMirrorAdam
from gs_train.renderers import Renderer, Rows
from gs_train.rows.attributes import ADAM_EPS
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.restore import Source, awake, restored_gaussians, restored_tiered
from gs_train.rows.tiered import TieredGaussians


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
    if source is not None and preset.host_semantics(semantics) != "deferred":
        source = awake(source)
    if preset.placement == "mirror":
        if semantics == "sparse":
            raise InputError(f"--semantics sparse needs another --offload than {preset.name}")
        mirrored: dict[str, Any] = {
            "device": device,
            "make_optimizer": lambda groups: HostMirrorAdam(groups, eps=ADAM_EPS),
            "capacity": limits.capacity,
        }
        if rows is not None:
            return InDevice(Gaussians(rows, **mirrored), renderer)
        assert source is not None
        return InDevice(restored_gaussians(source, **mirrored), renderer)
    options: dict[str, Any] = {
        "device": device,
        "semantics": preset.host_semantics(semantics),
        "home": "device" if preset.placement == "device" else "host",
        "travels": preset.residents and limits.residents != 0,
        "capacity": limits.capacity,
    }
    if rows is not None:
        tiered = TieredGaussians(rows, **options)
    else:
        assert source is not None
        tiered = restored_tiered(source, **options)
    share = mem_limit if preset.split_share is not None else None
    return Engine(
        tiered,
        renderer,
        preset,
        limits=limits,
        most_share=share,
        seed=seed,
    )
