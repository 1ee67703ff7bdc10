# SPDX-License-Identifier: Apache-2.0
"""The engine of a preset: which placements, around new rows or those of a checkpoint."""

from __future__ import annotations

from typing import Any

from gs_train.engine.all_rows import MOST_ROWS
from gs_train.engine.engine import Engine
from gs_train.engine.placement import Placement, Tools
from gs_train.engine.residents import Residents
from gs_train.engine.slots import HomeSlots, SlotPlacement
from gs_train.engine.stats import BatchStats
from gs_train.engine.together import Sharing
from gs_train.engine.trace import Trace
from gs_train.errors import CommonError, InputError
from gs_train.machine.lanes import Lanes
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import Preset
from gs_train.published.mirror import MirrorPlacement
from gs_train.published.streamed import StreamedPlacement
from gs_train.renderers import Renderer, Rows
from gs_train.rows.attributes import ADAM_EPS
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.keys import RowKeys
from gs_train.rows.mirror_adam import HostMirrorAdam
from gs_train.rows.restore import Source, awake, restored_gaussians, restored_tiered
from gs_train.rows.tiered import TieredGaussians

_LISTS_ALL = {"cuda": MOST_ROWS, "cpu": 0}
"""Rows times views of batches that list all rows: the CPU renderer takes long for any row."""


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
    keys: RowKeys | None = None,
    sharing: Sharing | None = None,
) -> Engine:
    """Build what a preset names.

    Args:
        preset: which.
        rows: the first Gaussians; or None with
        source: of what ``Engine.model.tensors()`` gave.
        renderer: decides the device.
        semantics: ``dense`` or ``sparse``.
        mem_limit: share of the scene above which a preset that splits views does.
        limits: of rows, where memory sets them.
        seed: of the search for an order.
        keys: of ``rows``, on the device; None numbers them from 0.
        sharing: with other ranks; see `Engine`.

    Raises:
        InputError: several ranks cannot do what was asked for.
    """
    if sharing is not None and sharing.world.size > 1:
        _check_shared(preset, renderer)
    if source is not None and preset.host_semantics(semantics) != "deferred":
        source = awake(source)
    options: dict[str, Any] = {"device": renderer.device, "capacity": limits.capacity}
    if preset.placement == "mirror":
        if semantics == "sparse":
            raise InputError(f"--semantics sparse needs another --offload than {preset.name}")
        options["make_optimizer"] = lambda groups: HostMirrorAdam(groups, eps=ADAM_EPS)
        if rows is not None:
            return mirror_engine(Gaussians(rows, keys=keys, **options), renderer)
        assert source is not None
        return mirror_engine(restored_gaussians(source, **options), renderer)
    options["semantics"] = preset.host_semantics(semantics)
    options["home"] = "device" if preset.placement == "device" else "host"
    options["travels"] = preset.residents and limits.residents != 0
    if rows is not None:
        tiered = TieredGaussians(rows, keys=keys, **options)
    else:
        assert source is not None
        tiered = restored_tiered(source, **options)
    share = mem_limit if preset.split_share is not None else None
    return tiered_engine(
        preset, tiered, renderer, limits=limits, most_share=share, seed=seed, sharing=sharing
    )


def tiered_engine(
    preset: Preset,
    model: TieredGaussians,
    renderer: Renderer,
    *,
    limits: Limits = UNLIMITED,
    most_share: float | None = None,
    seed: int = 0,
    sharing: Sharing | None = None,
) -> Engine:
    """The engine of any preset but ``naive``.

    Args:
        preset: which.
        model: made with ``home``, ``semantics`` and ``travels`` as the preset says.
        renderer: draws the rows, on the model's device.
        limits: of rows, where memory sets them.
        most_share: views that see a larger share of all rows are cut into crops.
        seed: of the search for an order.
        sharing: with other ranks; see `Engine`.
    """
    lanes = Lanes(model.device)
    tools = Tools(lanes, Trace(lanes, model.appearance.worker), BatchStats())
    # Sparse steps tell rows that a batch sees from others.
    looks = preset.early_cull and model.appearance.adam.semantics != "sparse"
    placements: list[Placement] = []
    lists_all = 0
    if preset.placement == "device":
        lists_all = _LISTS_ALL[model.device.type] * looks
        placements.append(
            SlotPlacement(model, HomeSlots(model.local), tools, lists_ahead=2 * looks)
        )
    else:
        if preset.residents and limits.residents != 0:
            residents = Residents(model.host, lanes, tools.trace, limits.residents)
            placements.append(SlotPlacement(model, residents, tools, lists_ahead=2 * looks))
        placements.append(
            StreamedPlacement(model, preset, tools, most_slots=limits.slots, seed=seed)
        )
    return Engine(
        *(model, renderer, placements, tools),
        lists_all=lists_all,
        most_rows=limits.rows,
        most_share=most_share,
        sharing=sharing,
    )


def _check_shared(preset: Preset, renderer: Renderer) -> None:
    """Raise CommonError where several ranks cannot draw so."""
    if not preset.residents:
        raise CommonError(
            f"--offload {preset.name} is for one GPU: several take --offload none or best"
        )
    if not hasattr(renderer, "records"):
        raise CommonError(
            f"the renderer {renderer.name} is for one GPU: several take --renderer raster, or cpu "
            "without CUDA"
        )


def mirror_engine(model: Gaussians, renderer: Renderer) -> Engine:
    """The engine of ``naive``, or of any optimizer of all rows.

    Args:
        model: the rows, all on the device.
        renderer: draws them, on the model's device.
    """
    lanes = Lanes(model.device)
    tools = Tools(lanes, Trace(lanes), BatchStats())
    return Engine(model, renderer, [MirrorPlacement(model, tools)], tools)
