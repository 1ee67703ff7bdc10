# SPDX-License-Identifier: Apache-2.0
"""`gs_train.fit` with a function that is called after each step."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest
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
from gs_train.machine.interrupt import Interrupted
from gs_train.runs.strategies import adc


@pytest.fixture(scope="module")
def plain(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_plainly(tiny_capture, tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("offload", ["none", "best"])
def test_looking_at_every_step_changes_nothing(
    tiny_capture: Path, tmp_path: Path, offload: str
) -> None:
    seen: list[tuple[int, int, float, int]] = []
    last: dict[str, Tensor] = {}

    def look(report: gs_train.StepReport) -> None:
        rows = report.rows()
        assert len(rows["shN"]) == report.n_rows == report.model.n_rows
        seen.append((report.step, report.images_seen, report.loss.item(), report.n_rows))
        last.update(rows)

    options = {**OPTIONS, "offload": offload}
    gs_train.fit(data=tiny_capture, out=tmp_path / "unseen", **options)
    fitted = gs_train.fit(data=tiny_capture, out=tmp_path / "seen", on_step=look, **options)
    assert_same(state_of(tmp_path / "seen"), state_of(tmp_path / "unseen"))
    assert [(step, images) for step, images, _, _ in seen] == [
        (i, 2 * i) for i in range(1, STEPS + 1)
    ]
    assert all(math.isfinite(loss) for _, _, loss, _ in seen)
    assert_same(last, fitted.rows(frame="trained"))


def test_stop_training_writes_a_checkpoint_and_the_run_goes_on(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(gs_train.StopTraining) as stopped:
        gs_train.fit(data=tiny_capture, out=out, on_step=stop_at(5), **OPTIONS)
    assert stopped.value.__notes__ == [
        "training ended after step 5; go on from the checkpoint of step 5 with --resume"
    ]
    assert state_of(out, 5)
    assert not (out / "metrics.json").exists()
    assert main(["fit", "--out", str(out), "--resume"]) == 0
    assert_same(state_of(out), state_of(plain))


def test_a_signal_ends_a_run_of_parts_with_the_way_to_go_on(
    tiny_capture: Path, tmp_path: Path
) -> None:
    def interrupt(report: gs_train.StepReport) -> None:
        if report.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as stopped:
        gs_train.fit(
            data=tiny_capture, out=tmp_path / "run", strategy=adc, on_step=interrupt, **OPTIONS
        )
    assert str(stopped.value) == (
        "stopped after step 2 of 8, checkpoint written; go on with: "
        "gs_train.fit(..., resume=True) and the same strategy"
    )
    assert state_of(tmp_path / "run", 2)


def test_stop_training_in_the_last_step_changes_nothing(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fitted = gs_train.fit(data=tiny_capture, out=out, on_step=stop_at(STEPS), **OPTIONS)
    assert fitted.metrics["steps"] == STEPS
    assert_same(state_of(out), state_of(plain))


def test_an_exception_of_the_callback_keeps_the_last_checkpoint(
    tiny_capture: Path, plain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def fail(report: gs_train.StepReport) -> None:
        if report.step == 5:
            raise ZeroDivisionError("of a metric")

    with pytest.raises(ZeroDivisionError, match="of a metric") as failed:
        gs_train.fit(data=tiny_capture, out=out, on_step=fail, **OPTIONS)
    assert failed.value.__notes__ == [
        "training ended after step 5; go on from the checkpoint of step 3 with --resume"
    ]
    assert state_of(out, 3)
    gs_train.fit(out=out, resume=True)
    assert_same(state_of(out), state_of(plain))


def test_a_second_run_on_a_folder_is_refused_inside_the_first(
    tiny_capture: Path, tmp_path: Path
) -> None:
    out, errors = tmp_path / "run", []

    def again(report: gs_train.StepReport) -> None:
        with pytest.raises(gs_train.InputError) as refused:
            gs_train.fit(data=tiny_capture, out=out, overwrite=True, **OPTIONS)
        errors.append(str(refused.value))

    gs_train.fit(data=tiny_capture, out=out, on_step=again, **{**OPTIONS, "steps": 1})
    assert len(errors) == 1
    assert str(out) in errors[0]
