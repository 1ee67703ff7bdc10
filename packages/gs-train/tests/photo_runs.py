# SPDX-License-Identifier: Apache-2.0
"""Short runs on photographs with masks or depth maps, and what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from photographed import LIVELY, Photographed, photo_config, renderer, rows_of, train
from street import drive
from torch import Tensor

from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer
from gs_train.rows.attributes import NAMES
from gs_train.runs.trainer import Trainer

BATCHES = drive(7, 1, n_views=12)[1:]


def run(
    scene: Photographed,
    preset: str = "none",
    *,
    draws: Renderer | None = None,
    limits: Limits | None = None,
    batches: Sequence[Sequence[int]] = BATCHES,
    stops: bool = False,
    **options: Any,
) -> tuple[dict[str, Tensor], list[float], int]:
    """Rows, losses and number of microbatches of a run that carves.

    Args:
        stops: after two steps, to go on from what was saved.
        options: of the run, in place of its own.
    """
    config = photo_config(**{"mask": "carve", "resort_every": 0, "lr": LIVELY, **options})
    how: dict[str, Any] = {
        "renderer": draws or renderer(),
        "extent": scene.extent,
        "preset": PRESETS[preset],
        "limits": limits or Limits(),
    }
    trainer = Trainer(config, scene.rows, **how)
    losses: list[Tensor] = []
    if stops:
        losses += train(trainer, batches[:2], scene=scene)
        saved = {name: values.clone() for name, values in trainer.tensors().items()}
        trainer = Trainer.restore(config, saved, step=2, **how)
    losses += train(trainer, batches, scene=scene)
    n_microbatches = getattr(trainer.backend.stats, "microbatches", 0)
    return rows_of(trainer), [loss.item() for loss in losses], n_microbatches


def assert_same_rows(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """To the bit."""
    for name in NAMES:
        assert torch.equal(ours[name], theirs[name]), name


def assert_crops_see_their_part(scene: Photographed, preset: str, **options: Any) -> None:
    """That one step in crops leaves what the same step of whole views leaves."""
    batches = BATCHES[:1]
    expected, (loss,), whole = run(scene, preset, batches=batches, mem_limit=1.0, **options)
    limits = Limits(rows=150, residents=0)
    rows, (found,), cut = run(
        scene, preset, batches=batches, mem_limit=0.03, limits=limits, **options
    )
    assert cut > whole
    assert abs(found - loss) <= 1e-6 * abs(loss)
    for name in NAMES:  # Adam's first step is as long for any gradient that does not cancel
        apart = ~torch.isclose(rows[name], expected[name], rtol=1e-4, atol=1e-6)
        assert apart.float().mean() < 0.01, name
