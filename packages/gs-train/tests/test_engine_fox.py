# SPDX-License-Identifier: Apache-2.0
"""Presets on real photographs: from one state, a batch does to all rows what it does on the device.

The capture is not in this repository; GS_DATA names the folder that has it.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from watchdog import within

from gs_train.cli import main
from gs_train.rows import NAMES
from gs_train.run import Run
from gs_train.schedule import LearningRates

FOX = Path(os.environ.get("GS_DATA", Path(__file__).resolve().parents[4] / "shared/data")) / "fox"
STEPS = 12
OPTIONS = ["--renderer", "cpu", "--max-side", "160", "--seed", "4", "--sh-every", "4"]
# Every view sees most of this scene. Cut into crops it would add its pixels in another order, whose
# rounding Adam's first steps blow up; test_engine_photographs bounds it where views are cut.
OPTIONS += ["--mem-limit", "1.0"]

pytestmark = pytest.mark.skipif(not FOX.is_dir(), reason=f"needs the capture {FOX} (set GS_DATA)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A run of `none` by batch size, made once."""
    root = tmp_path_factory.mktemp("fox")

    def run(batch: int) -> Path:
        out = root / str(batch)
        if not out.exists():
            options = [*OPTIONS, "--batch-size", str(batch), "--steps", str(STEPS)]
            assert main(["fit", str(FOX), "--out", str(out), "--offload", "none", *options]) == 0
        return out

    return run


def _one_more(run: Path, out: Path, preset: str) -> dict[str, Tensor]:
    """All rows after another batch, those that sleep brought up to date."""
    shutil.copytree(run, out)
    more = ["--resume", "--steps", str(STEPS + 1), "--offload", preset]
    assert main(["fit", str(FOX), "--out", str(out), *more]) == 0
    return _rows(out)


def _rows(out: Path) -> dict[str, Tensor]:
    model = Run.open(out).model(torch.device("cpu"))
    return {name: model.read(name).double() for name in NAMES}


@pytest.mark.parametrize(
    ("preset", "batch"), [("naive", 4), ("clm", 4), ("best", 4), ("best", 1), ("gs-scale", 1)]
)
@within(300)
def test_a_batch_of_photographs_moves_rows_as_on_the_device(
    trained: Callable[[int], Path], tmp_path: Path, preset: str, batch: int
) -> None:
    run = trained(batch)
    before = _rows(run)
    theirs = _one_more(run, tmp_path / "none", "none")
    ours = _one_more(run, tmp_path / preset, preset)
    moved = 0
    for name in NAMES:
        a, b, rate = ours[name], theirs[name], getattr(LearningRates(), name)
        assert len(a) > 1000
        excess = (a - b).abs() / b.abs().clamp_min(rate)
        assert excess.max() <= 1e-5, f"{name}: {excess.max():.1e}"
        moved += int((b != before[name]).sum())
    assert moved > 10_000
