# SPDX-License-Identifier: Apache-2.0
"""`gs_train.fit` with a strategy from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from python_runs import (
    OPTIONS,
    STEPS,
    assert_same,
    state_of,
    stop_at,
    trained_plainly,
)
from torch import Tensor

import gs_train
from gs_train.cli import main
from gs_train.densify import Adc, Changed
from gs_train.renderers import Splats
from gs_train.runs.strategies import StrategyStart, adc


@pytest.fixture(scope="module")
def plain(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_plainly(tiny_capture, tmp_path_factory.mktemp("plain") / "run")


class Dropping:
    """Drops every fifth Gaussian in every third step; its state is the number of steps."""

    def __init__(self, start: StrategyStart) -> None:
        self.start = start
        self.n_steps = torch.zeros((), dtype=torch.int64)
        self.n_views = 0

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        self.n_views += 1

    def after_step(
        self,
        rows: Any,
        *,
        step: int,
        images_before: int,
        images_after: int,
        means_lr: float,
    ) -> Changed:
        self.n_steps += 1
        if int(self.n_steps) % 3:
            return Changed()
        dropped = torch.arange(0, rows.n_rows, 5)
        rows.replace(dropped)
        return Changed(pruned=len(dropped), rows_changed=True)

    def permute(self, order: Tensor) -> None:
        pass

    def tensors(self) -> dict[str, Tensor]:
        return {"n_steps": self.n_steps}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.n_steps = tensors["n_steps"].clone()


@pytest.mark.parametrize("offload", ["none", "best"])
def test_a_strategy_changes_the_rows_and_its_state_is_resumed(
    tiny_capture: Path, tmp_path: Path, offload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Dropping] = []

    def dropping(start: StrategyStart) -> Dropping:
        made.append(Dropping(start))
        return made[-1]

    reports: list[gs_train.StepReport] = []
    options = {**OPTIONS, "offload": offload, "strategy": dropping}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    gs_train.fit(data=tiny_capture, out=whole, on_step=reports.append, **options)
    first = made[0].start.n_rows
    assert (made[0].start.seed, made[0].start.device.type) == (3, "cpu")
    assert made[0].start.config.batch_size == 2
    assert made[0].start.scene_scale > 0
    assert made[0].n_views >= STEPS * 2
    assert [r.changed.pruned > 0 for r in reports] == [i % 3 == 2 for i in range(STEPS)]
    kept = first - -(-first // 5)
    assert reports[2].n_rows == kept
    assert reports[-1].n_rows == kept - -(-kept // 5)

    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=tiny_capture, out=parts, on_step=stop_at(4), **options)
    gs_train.fit(out=parts, resume=True, strategy=dropping)
    assert int(made[-1].n_steps) == STEPS
    assert_same(state_of(parts), state_of(whole))

    capsys.readouterr()
    assert main(["fit", "--out", str(parts), "--resume"]) == 2
    assert "was trained with the strategy " in capsys.readouterr().err
    assert main(["inspect", str(parts)]) == 0
    assert ", from Python\n" in capsys.readouterr().out


def test_a_named_strategy_is_what_its_function_makes(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    made: list[Adc] = []

    def remembered(start: StrategyStart) -> Adc:
        made.append(adc(start))
        return made[-1]

    gs_train.fit(data=tiny_capture, out=tmp_path / "run", strategy=remembered, **OPTIONS)
    assert len(made) == 1
    assert_same(state_of(tmp_path / "run"), state_of(plain))


def test_a_strategy_that_makes_no_densifier_is_named(tiny_capture: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"strategy must return a .*Densifier, got list without ob"):
        gs_train.fit(data=tiny_capture, out=tmp_path / "run", strategy=lambda start: [], **OPTIONS)
    assert not (tmp_path / "run/config.yml").exists()


def test_an_error_of_a_strategy_is_not_taken_for_a_damaged_checkpoint(
    tiny_capture: Path, tmp_path: Path
) -> None:
    class Forgetful(Dropping):
        def load(self, tensors: Mapping[str, Tensor]) -> None:
            raise ValueError("of the strategy")

    out = tmp_path / "run"
    with pytest.raises(gs_train.StopTraining):
        gs_train.fit(data=tiny_capture, out=out, strategy=Forgetful, on_step=stop_at(1), **OPTIONS)
    with pytest.raises(ValueError, match="of the strategy"):
        gs_train.fit(out=out, resume=True, strategy=Forgetful)
    assert state_of(out, 1)
