# SPDX-License-Identifier: Apache-2.0
"""A run with a fixed number of Gaussians: none is added, removed, moved or reset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tide_runs import N_ROWS, fitted

from gs_train import Fitted
from gs_train.densify import Changed, Fixed, direct_of
from gs_train.options.config import FitConfig
from gs_train.sizing.choice import expected_rows, statistics_bytes
from gs_train.sizing.duration import rows_after

CONFIG = FitConfig(Path("x"), Path("y"), strategy="fixed")


def test_nothing_is_observed_kept_or_changed() -> None:
    strategy = Fixed()
    none: object = None
    direct = direct_of(strategy, 3)
    assert direct is not None
    assert (direct.sums, direct.batch_size) == (None, 3)
    changed = strategy.after_step(
        none,  # type: ignore[arg-type]  # no row is looked at
        step=500,
        images_before=500,
        images_after=501,
        means_lr=1.0,
    )
    assert changed == Changed()
    assert strategy.tensors() == {}
    strategy.load({})
    with pytest.raises(ValueError, match=r"tensors must be empty, got \['a'\]"):
        strategy.load({"a": torch.zeros(1)})


def test_no_growth_is_expected() -> None:
    assert CONFIG.row_cap is None
    assert expected_rows(CONFIG, 1000) == 1000
    assert rows_after(CONFIG, 1000, 30_000) == 1000
    assert statistics_bytes(CONFIG) == 0


@pytest.mark.parametrize(
    "offload",
    ["best", *(pytest.param(x, marks=pytest.mark.long) for x in ("none", "naive", "clm"))],
)
def test_every_preset_takes_a_fixed_number(
    tiny_capture: Path, tmp_path: Path, offload: str
) -> None:
    """Longer than where adaptive density control would begin."""
    early = ("--adc.refine-start", "1", "--adc.refine-every", "2", "--adc.grow-grad2d", "1e-7")
    out = fitted(tiny_capture, tmp_path / "run", *early, offload=offload)
    assert json.loads((out / "metrics.json").read_text())["n_gaussians"] == N_ROWS
    assert len(Fitted.open(out).rows()["means"]) == N_ROWS
