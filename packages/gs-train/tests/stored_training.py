# SPDX-License-Identifier: Apache-2.0
"""Trainers whose rows are in a store of which little is in memory, and such a store as what a run
in one memory would have saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from photographed import Photographed, renderer
from torch import Tensor

from gs_pinned import BlockStore
from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.stored_rows import StoredRows
from gs_train.options.config import FitConfig
from gs_train.options.presets import NAMED
from gs_train.renderers import Rows
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES
from gs_train.runs.trainer import Trainer
from gs_train.tide.block_room import BlockRoom
from gs_train.tide.store_use import StoreUse


def room_for(n_rows: int, *, slots: int = 16, places: int = 8, block_rows: int = 64) -> BlockRoom:
    """Few blocks of the scene, and more rows of a batch than any batch of the tests sees."""
    return BlockRoom(slots, places, block_rows, row_bytes=1, n_rows=n_rows, batch_rows=n_rows)


def stored_trainer(
    config: FitConfig,
    scene: Photographed,
    folder: Path,
    room: BlockRoom,
    *,
    drawn_by: str = "cpu",
    rows: Rows | None = None,
) -> Trainer:
    """A new run of the preset ``tide``; of the scene's rows, where there are no others."""
    return Trainer(
        config,
        rows or scene.rows,
        renderer=renderer(drawn_by),
        extent=scene.extent,
        preset=NAMED["tide"],
        store=StoreUse(folder, room),
    )


def resumed_trainer(
    config: FitConfig,
    scene: Photographed,
    folder: Path,
    room: BlockRoom,
    *,
    step: int,
    drawn_by: str = "cpu",
) -> Trainer:
    """The run that goes on from the newest snapshot of a store, which is of this step."""
    with BlockStore.open(folder, read_only=True) as store:
        newest = store.snapshots[-1]
    return Trainer.restore(
        config,
        {},
        step=step,
        renderer=renderer(drawn_by),
        extent=scene.extent,
        preset=NAMED["tide"],
        store=StoreUse(folder, room, snapshot=newest),
    )


def by_key(stored: StoredRows) -> dict[str, Tensor]:
    """Present values of all rows in the order of their keys, on the CPU."""
    keys, rows = zip(*stored.pieces(), strict=True)
    order = torch.cat(keys).argsort()
    return {name: torch.cat([part[name] for part in rows])[order].cpu() for name in NAMES}


def saved_in_one_memory(
    folder: Path, like: dict[str, Tensor], betas: tuple[float, float]
) -> dict[str, Tensor]:
    """What a trainer of the preset ``none`` would have saved of the newest snapshot of a store:
    no row sleeps.

    Args:
        like: tensors of a trainer of ``none`` with as many rows and as many steps.
        betas: of Adam.
    """
    with BlockStore.open(folder, read_only=True) as store:
        planes = store.read(store.blocks)
    with StoredRows.open(folder, slots=4, host_blocks=4) as stored:
        values, step = by_key(stored), stored.step
    order = planes["key"][:, 0].argsort()
    saved = {name: tensor.clone() for name, tensor in like.items()}
    slept = step - planes["last_step"][order].astype(np.float64)
    n_rows = len(order)
    for plane, names in (("geometry", GEOMETRY), ("appearance", APPEARANCE)):
        widths = [values[name][0].numel() for name in names]
        for moment, beta in zip(MOMENTS[1:], betas, strict=True):
            decayed = torch.from_numpy((planes[plane + moment][order] * beta**slept).astype("f4"))
            for name, own in zip(names, decayed.split(widths, 1), strict=True):
                saved[f"model/{name}{moment}"] = own.reshape(values[name].shape).contiguous()
    for name in NAMES:
        saved[f"model/{name}"] = values[name]
        assert int(saved[f"model/{name}.step"]) == step
    saved["model/keys"] = torch.arange(n_rows, dtype=torch.int32)
    saved["model/appearance.last_step"] = torch.full((n_rows,), step, dtype=torch.int32)
    return saved
