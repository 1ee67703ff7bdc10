# SPDX-License-Identifier: Apache-2.0
"""One real batch of rows in blocks, from states in which rows sleep, is one of torch's Adam."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from one_thread import one_threaded
from photographed import (
    LIVELY,
    TWO,
    gradients_of,
    photo_config,
    photographed,
    renderer,
    train,
)
from plain_adam import PlainLoop
from stored_training import (
    by_key,
    resumed_trainer,
    room_for,
    saved_in_one_memory,
    stored_trainer,
)
from street import drive

from gs_pinned import BlockStore
from gs_train.options.schedule import adam_options
from gs_train.rows.attributes import NAMES
from gs_train.runs.trainer import Trainer
from gs_train.tide.model import StoredModel

POINTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 24, 28, 33, 38, 44, 50, 57, 64)


@pytest.mark.parametrize("scene", TWO)
@pytest.mark.parametrize(
    ("batch_size", "points"),
    [
        (2, (3, 12)),
        pytest.param(1, POINTS, marks=pytest.mark.long),
        pytest.param(4, POINTS, marks=pytest.mark.long),
    ],
)
@one_threaded
def test_one_batch_from_a_trained_store_moves_rows_as_torch_adam_does(
    tmp_path: Path, scene: str, batch_size: int, points: tuple[int, ...]
) -> None:
    """The gradients by autograd over whole views, of all rows."""
    taken = photographed(scene)
    config = photo_config(batch_size=batch_size, strategy="fixed", resort_every=0, lr=LIVELY)
    steps = drive(points[-1] + 1, batch_size, n_views=len(taken.views))
    gradients = gradients_of(taken, batch_size, config.ssim_lambda)
    betas = adam_options(batch_size, scaled=config.scale_with_batch).betas
    room = room_for(len(taken.rows["means"]))
    none = Trainer(config, taken.rows, renderer=renderer(), extent=taken.extent)
    ours = stored_trainer(config, taken, tmp_path / "store", room)
    n_read = 0
    for point in points:
        train(none, steps[:point], scene=taken)  # for the names and the number of steps
        train(ours, steps[:point], scene=taken)
        ours.model.begin_saving(()).wait()  # type: ignore[attr-defined]
        copy = tmp_path / f"{point}"
        shutil.copytree(tmp_path / "store", copy)
        with BlockStore.open(copy, read_only=True) as store:
            last_step = store.read(store.blocks, ["last_step"])["last_step"]
        assert (last_step < point).any()
        saved = saved_in_one_memory(copy, none.tensors(), betas)
        plain = PlainLoop.restore(config, saved, step=point, extent=taken.extent)
        views = [taken.views[i] for i in steps[point]]
        resumed = resumed_trainer(config, taken, copy, room, step=point)
        plain.train_step([views[k] for k in resumed.backend.costs.order(views)], gradients)
        train(resumed, steps[: point + 1], scene=taken)
        resumed.backend.finish()
        assert isinstance(resumed.model, StoredModel)
        n_read += resumed.model.rows.cache.stats.read
        found = by_key(resumed.model.rows)
        resumed.close()
        shutil.rmtree(copy)
        for name in NAMES:
            a, b = found[name].double(), plain.model.read(name).double()
            excess = (a - b).abs() / b.abs().clamp_min(plain.rates[name])
            assert excess.max() <= 1e-5, f"{point}, {name}: {excess.max():.1e}"
    ours.close()
    assert n_read > 0
