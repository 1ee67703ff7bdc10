# SPDX-License-Identifier: Apache-2.0
"""How runs end when something does not suffice or somebody stops them: nothing trained is lost."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gs_train.runs.beginning
import gs_train.runs.captures
import gs_train.runs.evaluate
import gs_train.runs.loop
import gs_train.runs.saver
import gs_train.runs.training
import gs_train.scene.scene
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data.synthetic import write_demo_capture
from gs_train.engine import trace as tracing
from gs_train.engine.trace import Trace
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.lanes import Lanes
from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.runs.trainer import Trainer
from gs_train.sizing.forecasts import need

STEPS = 4


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_capture(
        tmp_path_factory.mktemp("demo") / "capture", n_views=6, width=64, height=48
    )


def _command(capture: Path, out: Path, *more: str) -> list[str]:
    options = ["--renderer", "cpu", "--steps", str(STEPS), "--cap", "3000", "--offload", "best"]
    return ["fit", str(capture), "--out", str(out), *options, *more]


def _saved_step(out: Path) -> int | None:
    newest = latest_checkpoint(out / "checkpoints")
    return None if newest is None else load_checkpoint(newest).step


def _raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


# ---------------------------------------------------------------------- the last checkpoint


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("of a rate")])
def test_training_is_saved_before_a_measurement_that_fails(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(gs_train.runs.saver, "figures", _raises(error))
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                main(_command(capture, out))
        else:
            assert main(_command(capture, out)) == 1
    assert _saved_step(out) == STEPS
    assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0
    assert (out / "metrics.json").exists()


@pytest.mark.parametrize("broken", ["folder", "file", "device"])
def test_a_trace_that_cannot_be_written_is_found_before_training(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: str,
) -> None:
    out, blocked = tmp_path / "run", tmp_path / "blocked"
    if broken == "folder":
        path = blocked
        blocked.mkdir()
    elif broken == "file":
        blocked.write_text("in the way")
        path = blocked / "trace.json"
    else:
        path = Path(os.devnull)
    monkeypatch.setattr(
        gs_train.runs.captures, "open_capture", _raises(AssertionError("read first"))
    )
    assert main(_command(capture, out, "--trace", str(path))) == 2
    assert f"--trace {path} cannot be written: " in capsys.readouterr().err
    assert not out.exists()


def test_a_trace_that_cannot_be_written_any_more_loses_no_step(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(tracing, "replacing", _raises(PermissionError(13, "Permission denied")))
    command = _command(capture, out, "--trace", str(tmp_path / "trace.json"))
    assert main([*command, "--checkpoint-every", "2"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "--trace ends" in line]
    assert len(said) == 1
    assert "Permission denied" in said[0]
    assert _saved_step(out) == STEPS


def test_a_trace_of_a_long_run_holds_its_newest_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_MOST_SPANS", 100)
    trace = Trace(Lanes(torch.device("cpu")))
    trace.start(tmp_path / "trace.json")
    for k in range(250):
        with trace.host(f"{k}"):
            pass
        trace.settle()
    assert [name for _, name, _, _ in trace.spans] == [f"{k}" for k in range(150, 250)]


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_signal_loses_no_step_whenever_it_comes(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Also when it has just been decided that nothing is to be saved."""
    out, train_step, left = tmp_path / "run", Trainer.train_step, [10**6]

    class Looked(StopRequest):
        """Stopped once it has been looked at so often in training."""

        @property
        def signal_number(self) -> int | None:  # type: ignore[override]
            left[0] -= 1
            return signal.SIGINT if left[0] < 0 else None

        @signal_number.setter
        def signal_number(self, number: int | None) -> None:
            pass

    def begins(trainer: Trainer, *arguments: Any, **options: Any) -> Any:
        left[0] = min(left[0], looks)
        return train_step(trainer, *arguments, **options)

    with monkeypatch.context() as asked:
        asked.setattr(Trainer, "train_step", begins)
        asked.setattr(gs_train.runs.training, "StopRequest", Looked)
        assert main(_command(capture, out)) == 130
    assert _saved_step(out) == 1 + looks
    assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0


# ---------------------------------------------------------------------- nothing left


@pytest.mark.parametrize(
    ("offload", "every"),
    [("none", 2), ("naive", 2), ("clm", 2), ("gs-scale", 2), ("best", 2), ("best", 0)],
)
def test_a_run_without_gaussians_ends_and_its_last_checkpoint_is_one_with_some(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], offload: str, every: int
) -> None:
    out, adc = tmp_path / "run", ["--adc.refine-start", "1", "--adc.refine-every", "2"]
    command = _command(capture, out, *adc, "--checkpoint-every", str(every))
    assert main([*command, "--offload", offload, "--adc.prune-opa", "0.4"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "no Gaussian is left after step 3: " in message
    assert "--adc.prune-opa 0.4 (new ones begin at --init-opacity 0.1)" in message
    assert _saved_step(out) == 2 if every else not out.exists()


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (gs_train.runs.beginning, "choice_for"),
        (gs_train.runs.training, "write_point_cloud"),
        (gs_train.runs.training, "report"),
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no room for 7 bytes"),
        torch.cuda.OutOfMemoryError("no room for 7 bytes"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 7 bytes"),
    ],
)
def test_memory_that_runs_out_outside_of_training_is_a_clear_error(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: ModuleType,
    where: str,
    error: Exception,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as short:
        short.setattr(module, where, _raises(error))
        assert main(_command(capture, out)) == 2
    name = "device" if isinstance(error, torch.cuda.OutOfMemoryError) else "host"
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"gs-train: error: {name} memory ran out ({error})")
    if where == "choice_for":
        assert not out.exists()
    else:
        assert _saved_step(out) == STEPS
        assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0


def test_other_errors_are_no_lack_of_memory(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for module, name in (
        (gs_train.runs.beginning, "choice_for"),
        (gs_train.runs.loop, "_view_batches"),
    ):
        with monkeypatch.context() as broken:
            broken.setattr(module, name, _raises(RuntimeError("a bug")))
            assert main(_command(capture, tmp_path / name)) == 1
            assert "gs-train: error: RuntimeError: a bug - " in capsys.readouterr().err


@pytest.mark.parametrize("every", [0, 2])
def test_an_error_in_a_step_says_where_to_go_on(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    every: int,
) -> None:
    out, train_step = tmp_path / "run", Trainer.train_step

    def fails_later(trainer: Trainer, *arguments: Any, **options: Any) -> Any:
        if trainer.step == 3:  # as a worker's does, at whatever call comes next
            raise KeyError("a bug in the worker")
        return train_step(trainer, *arguments, **options)

    with monkeypatch.context() as broken:
        broken.setattr(Trainer, "train_step", fails_later)
        assert main(_command(capture, out, "--checkpoint-every", str(every))) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("gs-train: error: KeyError: 'a bug in the worker' - ")
    assert f"{out}/traceback.txt; training ended after step 3" in said
    assert "in fails_later" in (out / "traceback.txt").read_text()
    if every:
        assert "go on from the checkpoint of step 2 with --resume" in said
        assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0
        assert _saved_step(out) == STEPS
    else:
        assert "there is no checkpoint yet" in said


def test_torch_says_so_when_the_hosts_memory_runs_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert memory_that_ran_out(caught.value) == "host"


def test_memory_that_runs_out_while_scoring_is_a_clear_error(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(_command(capture, tmp_path / "run")) == 0
    monkeypatch.setattr(gs_train.runs.evaluate, "score_views", _raises(MemoryError()))
    assert main(["eval", str(tmp_path / "run"), "--renderer", "cpu"]) == 2
    assert "gs-train: error: host memory ran out; " in capsys.readouterr().err


@pytest.mark.parametrize("offload", ["naive", "clm", "gs-scale", "best"])
def test_rows_that_outgrow_host_memory_leave_the_last_checkpoint(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    offload: str,
) -> None:
    """Nothing in between is made up: rows are added until the cap on host memory is reached."""
    out = tmp_path / "run"
    command = _command(capture, out, "--offload", offload, "--steps", "40", "--cap", "100000")
    command += ["--checkpoint-every", "2", "--adc.grow-grad2d", "1e-7", "--resort-every", "0"]
    command += ["--adc.refine-start", "3", "--adc.refine-every", "2"]
    rows: list[int] = []
    step = Trainer.train_step

    def noted(self: Trainer, *arguments: Any, **options: Any) -> Any:
        rows.append(self.model.n_rows)
        return step(self, *arguments, **options)

    def needs(preset: Any, work: Any, room: Any = None) -> Any:
        """As if a row took so much that some thousand more are too many for any machine."""
        of = need(preset, work, room)
        of.pageable["rows"] = 1 << 30 if work.n_rows < 20_000 else 1 << 60
        return of

    monkeypatch.setattr(Trainer, "train_step", noted)
    monkeypatch.setattr("gs_train.sizing.fitting.need", needs)
    assert main([*command, "--host-memory", "4GiB"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"host memory ran out after step {len(rows) - 1}" in message
    assert "(host memory is there for 19,999 rows, not " in message
    saved = _saved_step(out)
    assert saved is not None
    remedy = "with --resume and more memory (a larger --host-memory) or another --offload"
    assert f"go on from the checkpoint of step {saved} {remedy}" in message
    assert rows[0] < rows[-1] <= 19_999
    state = load_checkpoint(latest_checkpoint(out / "checkpoints") or out).tensors
    assert len(state["model/means"]) <= 19_999


# ---------------------------------------------------------------------- stops


def _interrupts(call: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    def interrupted(*arguments: Any, **options: Any) -> Any:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        return call(*arguments, **options)

    return interrupted


def test_a_stop_before_training_leaves_nothing(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(
        gs_train.runs.beginning, "choice_for", _interrupts(gs_train.runs.beginning.choice_for)
    )
    assert main(_command(capture, out)) == 130
    assert "gs-train: stopped during the start" in capsys.readouterr().err
    assert not out.exists()


def test_points_are_read_until_somebody_stops_it(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = tmp_path / "points.ply"
    lines = ["ply", "format ascii 1.0", "element vertex 5"]
    lines += [*(f"property float {name}" for name in "xyz"), "end_header"]
    lines += [f"{k} {k % 2} {k % 3}" for k in range(5)]
    points.write_text("\n".join(lines) + "\n")
    read = gs_train.scene.scene.read_point_ply
    monkeypatch.setattr(gs_train.scene.scene, "read_point_ply", _interrupts(read))
    assert main(_command(capture, tmp_path / "run", "--init", str(points))) == 130
    assert f"stopped during the reading of {points}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_second_ctrl_c_ends_a_run_at_once_and_the_last_checkpoint_goes_on(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    step = Trainer.train_step

    def twice(self: Trainer, *arguments: Any, **options: Any) -> Any:
        call = _interrupts(step, times=2) if self.step == STEPS - 1 else step
        return call(self, *arguments, **options)

    try:
        with monkeypatch.context() as stopped:
            stopped.setattr(Trainer, "train_step", twice)
            with pytest.raises(KeyboardInterrupt):
                main(_command(capture, out, "--checkpoint-every", "2"))
        assert _saved_step(out) == 2
        assert main(["fit", str(capture), "--out", str(out), "--resume"]) == 0
        assert _saved_step(out) == STEPS
    finally:
        signal.signal(signal.SIGINT, before)
