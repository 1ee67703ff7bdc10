# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: complete in itself, its own, and read while something happens to it."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gs_train.runs.run_rows
from gs_train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from gs_train.cli import main
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config_file import load_config
from gs_train.runs.captures import open_capture
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.runs.trainer import Trainer

STEPS = 4
OPTIONS = ["--renderer", "cpu", "--steps", str(STEPS), "--checkpoint-every", "2", "--cap", "200"]


def _fit(capture: Path, out: Path, *more: str) -> int:
    return main(["fit", str(capture), "--out", str(out), *OPTIONS, *more])


@pytest.fixture(scope="module")
def fitted(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be written to."""
    out = tmp_path_factory.mktemp("fitted") / "run"
    assert _fit(tiny_capture, out) == 0
    return out


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(fitted, tmp_path / "run"))


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The last line that a command prints which ends with 2."""

    def of(*command: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in command]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("gs-train: error: "), lines
        return lines[-1]

    return of


def _newest(out: Path) -> Path:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return newest


def _save_changed(out: Path, change: Callable[[dict[str, Any]], None], step: int = STEPS) -> Path:
    """The newest checkpoint again, with another state."""
    checkpoint = load_checkpoint(_newest(out))
    change(checkpoint.state)
    return save_checkpoint(
        out / "checkpoints",
        step=step,
        tensors=checkpoint.tensors,
        state=checkpoint.state,
        keep=5,
    )


# ---------------------------------------------------------------------- whose it is


def test_config_checkpoints_and_metrics_name_the_same_run(fitted: Path) -> None:
    record = RunRecord.load(fitted / "run.json")
    assert record is not None
    assert record.id is not None
    assert json.loads((fitted / "metrics.json").read_text())["run_id"] == record.id
    states = [load_checkpoint(path).state for path in (fitted / "checkpoints").iterdir()]
    assert [state["run_id"] for state in states] == [record.id] * 2


def test_a_checkpoint_of_another_run_is_refused_with_both_named(
    tiny_capture: Path, run: Path, tmp_path: Path, error: Callable[..., str]
) -> None:
    other = tmp_path / "other"
    assert _fit(tiny_capture, other, "--seed", "1") == 0
    ids = [Run.open(folder).id for folder in (other, run)]
    copy = run / "checkpoints" / "step_000009"
    shutil.copytree(_newest(other), copy)
    for command in (
        ["fit", tiny_capture, "--out", run, "--resume"],
        ["eval", run],
        ["export", run],
    ):
        said = f"{copy} is a checkpoint of the run {ids[0]!r}, {run} holds the run {ids[1]!r}: "
        assert said in error(*command)


def test_options_that_were_changed_in_the_file_do_not_go_on(
    tiny_capture: Path, run: Path, error: Callable[..., str]
) -> None:
    config = (run / "config.yml").read_text()
    (run / "config.yml").write_text(config.replace("seed: 0", "seed: 5"))
    said = error("fit", tiny_capture, "--out", run, "--resume", "--steps", "6")
    assert "--resume must keep the run's options: seed was 0, got 5" in said
    (run / "config.yml").write_text(config.replace("prune_opa: 0.005", "prune_opa: 0.4"))
    said = error("fit", tiny_capture, "--out", run, "--resume", "--steps", "6")
    assert "options: adc.prune_opa was 0.005, got 0.4" in said


def test_options_that_another_version_had_or_has_do_not_matter(
    tiny_capture: Path, run: Path
) -> None:
    def older(state: dict[str, Any]) -> None:
        del state["recipe"]["adc"]["prune_opa"]
        state["recipe"]["adc"]["past"] = 7

    _save_changed(run, older)
    assert main(["fit", str(tiny_capture), "--out", str(run), "--resume", "--steps", "5"]) == 0


def test_a_run_that_counted_images_between_re_orderings_goes_on_with_a_share_of_its_rows(
    tiny_capture: Path, run: Path
) -> None:
    """An earlier version wrote the whole number 1000."""

    def older(state: dict[str, Any]) -> None:
        assert state["recipe"]["resort_every"] == 1.0
        state["recipe"]["resort_every"] = 1000

    _save_changed(run, older)
    config = run / "config.yml"
    now = config.read_text()
    assert "\nresort_every: 1.0\n" in now
    config.write_text(now.replace("resort_every: 1.0", "resort_every: 1000"))
    assert load_config(config).resort_every == 1.0
    assert main(["export", str(run)]) == 0
    assert main(["fit", str(tiny_capture), "--out", str(run), "--resume", "--steps", "5"]) == 0
    assert "\nresort_every: 1.0\n" in config.read_text()


def _as_of_old(run: Path) -> None:
    def forget(state: dict[str, Any]) -> None:
        del state["run_id"], state["recipe"]

    (run / "run.json").unlink()
    config = (run / "config.yml").read_text().splitlines(keepends=True)
    (run / "config.yml").write_text("".join(line for line in config if line != "mask: auto\n"))
    old = _newest(run)
    _save_changed(run, forget)
    shutil.rmtree(old)


def test_a_run_of_an_older_version_goes_on_and_is_read_with_its_capture(
    tiny_capture: Path, run: Path, tmp_path: Path, error: Callable[..., str]
) -> None:
    _as_of_old(run)
    frames = ["--frames", "2", "--renderer", "cpu", "--to", tmp_path / "frames"]
    assert main(["render", str(run), *map(str, frames)]) == 0
    config = run / "config.yml"
    there = config.read_text()
    config.write_text(there.replace(str(tiny_capture), str(tmp_path / "gone")))
    assert "where the capture was moved, name it with --data" in error("render", run, *frames)
    config.write_text(there)
    assert main(["fit", str(tiny_capture), "--out", str(run), "--resume", "--steps", "5"]) == 0
    record = RunRecord.load(run / "run.json")
    assert record is not None
    assert record.id is None
    assert "run_id" in load_checkpoint(_newest(run)).state
    assert main(["fit", str(tiny_capture), "--out", str(run), "--resume", "--steps", "6"]) == 0


# ---------------------------------------------------------------------- without photographs


def test_a_record_comes_back_with_the_same_bits(fitted: Path, tmp_path: Path) -> None:
    record = RunRecord.load(fitted / "run.json")
    assert record is not None
    record.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (fitted / "run.json").read_bytes()
    run = Run.open(fitted)
    capture = open_capture(run.config, run.folder, StopRequest())
    assert (record.train, record.test) == (capture.train, capture.test)
    for ours, theirs in zip(record.views, capture.views, strict=True):
        assert (ours.name, ours.width, ours.height) == (theirs.name, theirs.width, theirs.height)
        np.testing.assert_array_equal(ours.K, theirs.K)
        np.testing.assert_array_equal(ours.world_to_camera, theirs.world_to_camera)


def test_render_and_export_need_no_photographs_and_eval_says_where_to_name_them(
    tiny_capture: Path, run: Path, tmp_path: Path, error: Callable[..., str]
) -> None:
    with_photographs = tmp_path / "with"
    for path in ("interp", "ellipse", "test"):
        to = ["--to", str(with_photographs / path), "--data", str(tiny_capture)]
        assert main(["render", str(run), "--path", path, "--frames", "2", *to]) == 0
    config = run / "config.yml"
    config.write_text(config.read_text().replace(str(tiny_capture), str(tmp_path / "gone")))
    for path in ("interp", "ellipse", "test"):
        to = ["--to", str(tmp_path / path)]
        assert main(["render", str(run), "--path", path, "--frames", "2", *to]) == 0
        for frame in sorted((with_photographs / path).iterdir()):
            assert frame.read_bytes() == (tmp_path / path / frame.name).read_bytes()
    for layout in ("inria", "gsplat"):
        assert main(["export", str(run), "--layout", layout]) == 0
    assert len(json.loads((run / "export" / "inria" / "cameras.json").read_text())) == 12
    said = error("eval", run, "--renderer", "cpu")
    assert f"got no folder at {tmp_path / 'gone'}" in said
    assert said.endswith("where the capture was moved, name it with --data")


RECORDS = {
    "no JSON": b"{",
    "deep brackets": b"[" * 100_000,
    "another format": b'{"format": "other", "version": 1}',
    "a flipped digit": None,
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_one_line(run: Path, name: str, error: Callable[..., str]) -> None:
    content = RECORDS[name]
    if content is None:
        content = (run / "run.json").read_bytes().replace(b'"width": 64', b'"width": 65', 1)
    (run / "run.json").write_bytes(content)
    assert f"{run}/run.json is damaged" in error("export", run)


STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no frame": lambda s: s.pop("frame"),
    "a frame of text": lambda s: s.update(frame="frame"),
    "a shift of two": lambda s: s["frame"].update(shift=[0.0, 1.0]),
    "a scale of nothing": lambda s: s["frame"].update(scale=0.0),
    "an extent that is not finite": lambda s: s["frame"].update(extent=float("inf")),
    "no time spent": lambda s: s.pop("spent"),
    "time spent that is text": lambda s: s["spent"].update(seconds="7"),
    "an unknown cost": lambda s: s["spent"].update(euros=7),
    "figures in a list": lambda s: s["spent"].update(figures=[]),
    "no placing": lambda s: s.pop("placing"),
    "an unknown preset": lambda s: s["placing"].update(preset="fastest"),
    "a limit that is negative": lambda s: s["placing"]["limits"].update(rows=-1),
    "no capture": lambda s: s.pop("capture"),
    "a recipe of text": lambda s: s.update(recipe="secret"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_no_trainer_saves_is_damage(
    run: Path, name: str, error: Callable[..., str]
) -> None:
    path = _save_changed(run, STATES[name])
    assert f"{path}/manifest.json is damaged; remove its folder" in error("export", run)


def test_tensors_that_no_trainer_saves_are_one_line(
    tiny_capture: Path, run: Path, error: Callable[..., str]
) -> None:
    checkpoint = load_checkpoint(_newest(run))
    for step, change in enumerate(
        (
            lambda tensors: tensors.pop("model/means"),
            lambda tensors: tensors.update({"model/quats": torch.ones(5, 7)}),
        ),
        start=10,
    ):
        tensors = dict(checkpoint.tensors)
        change(tensors)
        folder = run / "checkpoints"
        save_checkpoint(folder, step=step, tensors=tensors, state=checkpoint.state, keep=9)
        for command in (
            ["export", run],
            ["fit", tiny_capture, "--out", run, "--resume", "--steps", "20"],
        ):
            assert f"step_0000{step} does not hold what its run needs: " in error(*command)


# ---------------------------------------------------------------------- beside a fit


def test_a_checkpoint_that_is_removed_before_it_is_read_is_replaced_by_the_newest(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a running fit does it, twice in a row."""
    read, left = gs_train.runs.run_rows.restored_to_look_at, [7, 8]

    def late(*arguments: Any, **options: Any) -> Any:
        if left:
            old = _newest(run)
            _save_changed(run, lambda state: None, step=left.pop(0))
            shutil.rmtree(old)
        return read(*arguments, **options)

    monkeypatch.setattr(gs_train.runs.run_rows, "restored_to_look_at", late)
    assert main(["export", str(run)]) == 0
    assert (run / "export/inria/point_cloud/iteration_8/point_cloud.ply").exists()
    left[:] = [9]
    assert main(["eval", str(run), "--renderer", "cpu"]) == 0
    assert json.loads((run / "metrics.json").read_text())["steps"] == 9


def test_a_checkpoint_that_is_gone_without_a_newer_one_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Run.open(run)
    shutil.rmtree(opened.checkpoint.path)
    with pytest.raises(InputError, match=r"00000\.safetensors cannot be read: No such file"):
        opened.read(torch.device("cpu"))


# ---------------------------------------------------------------------- what happens to a run


def _at_step(monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], object]) -> None:
    train_step = Trainer.train_step

    def disturbed(trainer: Trainer, *arguments: Any, **options: Any) -> Any:
        if trainer.step == step:
            do()
        return train_step(trainer, *arguments, **options)

    monkeypatch.setattr(Trainer, "train_step", disturbed)


@pytest.mark.parametrize("gone", ["tensorboard", "log.csv", "."])
def test_what_is_removed_during_a_run_costs_no_step(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gone: str,
) -> None:
    out = tmp_path / "run"

    def remove() -> None:
        path = out / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    with monkeypatch.context() as disturbed:
        _at_step(disturbed, 3, remove)
        assert _fit(tiny_capture, out) == 0
    said = capsys.readouterr().err
    names = ["log.csv", "tensorboard"] if gone == "." else [gone]
    for name in names:
        assert said.count(f"{out / name} ends, it cannot be written: it was removed") == 1
    assert load_checkpoint(_newest(out)).step == STEPS
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", "5"]) == 0
    assert main(["export", str(out)]) == 0


def test_a_run_does_not_write_into_another_that_took_its_folder(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[..., str]
) -> None:
    out, other = tmp_path / "run", []

    def replace() -> None:
        if not other:
            shutil.rmtree(out)
            other.append(gs_train.runs.lock.RunLock(out))
            (out / "config.yml").write_text("another's")

    _at_step(monkeypatch, 1, replace)
    said = error("fit", tiny_capture, "--out", out, *OPTIONS)
    assert f"--out {out} is being written by another gs-train" in said
    assert (out / "config.yml").read_text() == "another's"
    assert not (out / "checkpoints").exists()
    other[0].release()


def test_an_error_of_the_system_between_two_steps_saves_what_was_trained(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[..., str]
) -> None:
    def vanished(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error", "/dev/pts/7")

    monkeypatch.setattr("gs_train.machine.progress.Progress.update", vanished)
    out = tmp_path / "run"
    said = error("fit", tiny_capture, "--out", out, *OPTIONS)
    assert "/dev/pts/7 cannot be used: Input/output error; training ended after step 1" in said
    assert load_checkpoint(_newest(out)).step == 1


def test_what_a_kill_left_goes_with_the_next_resume(tiny_capture: Path, run: Path) -> None:
    (run / "checkpoints" / "step_000001.tmp").mkdir()
    (run / "checkpoints" / "step_000001.tmp" / "00000.safetensors").write_bytes(b"half")
    left = run / f".gs-train-{'0' * 16}.tmp"
    left.write_bytes(b"half")
    assert main(["fit", str(tiny_capture), "--out", str(run), "--resume"]) == 0
    assert sorted(os.listdir(run / "checkpoints")) == ["step_000002", "step_000004"]
    assert not left.exists()


def test_a_removal_that_was_killed_can_be_repeated(
    tiny_capture: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says that the folder is a run's goes last."""
    rmtree = shutil.rmtree

    def killed(path: Path, **options: bool) -> None:
        if path.name == "point_cloud":
            raise KeyboardInterrupt
        rmtree(path, **options)

    with monkeypatch.context() as kill:
        kill.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            _fit(tiny_capture, run, "--overwrite")
    assert not (run / "checkpoints").exists()
    assert _fit(tiny_capture, run, "--overwrite") == 0


# ---------------------------------------------------------------------- files of odd kinds


def test_a_newest_checkpoint_without_its_manifest_is_named(
    tiny_capture: Path, run: Path, capsys: pytest.CaptureFixture[str], error: Callable[..., str]
) -> None:
    (_newest(run) / "manifest.json").unlink()
    assert main(["export", str(run)]) == 0
    said = capsys.readouterr().err
    assert f"{run}/checkpoints/step_000004 has no manifest.json that can be read: " in said
    assert "step_000002 is taken instead" in said
    (_newest(run) / "manifest.json").unlink()
    why = "holds none (step_000004 has no manifest.json that can be read)"
    assert f"--resume needs a checkpoint, {run}/checkpoints {why}" in error(
        "fit", tiny_capture, "--out", run, "--resume"
    )
    assert why in error("export", run)


@pytest.mark.parametrize("name", ["log.csv", "tensorboard"])
def test_a_log_that_is_of_another_kind_does_not_keep_a_run_from_going_on(
    tiny_capture: Path, run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("mine")
    else:
        path.unlink()
        path.mkdir()
    command = ["fit", str(tiny_capture), "--out", str(run), "--resume", "--steps", "5"]
    assert main(command) == 0
    assert f"{path} ends, it cannot be written: " in capsys.readouterr().err
    assert load_checkpoint(_newest(run)).step == 5


def test_without_tensorboard_a_run_says_so_and_logs_to_the_other_file(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    out = tmp_path / "run"
    assert _fit(tiny_capture, out) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "TensorBoard" in line]
    assert len(said) == 1
    assert 'pip install "gs-train[tensorboard]"' in said[0]
    assert (out / "log.csv").exists()
    assert not (out / "tensorboard").exists()


def test_an_output_folder_whose_name_is_not_utf8_works(tiny_capture: Path, tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert _fit(tiny_capture, out) == 0
    assert list((out / "tensorboard").iterdir())
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume", "--steps", "5"]) == 0
    for command in (["eval", "--renderer", "cpu"], ["export"], ["render", "--frames", "1"]):
        assert main([command[0], str(out), *command[1:]]) == 0


@pytest.mark.parametrize("more", [[], ["--resume"], ["--overwrite"]])
def test_an_output_folder_whose_name_is_too_long_is_one_line(
    tiny_capture: Path, tmp_path: Path, more: list[str], error: Callable[..., str]
) -> None:
    out = tmp_path / ("x" * 300)
    assert "File name too long" in error("fit", tiny_capture, "--out", out, *more)
    for command in ("eval", "render", "export"):
        assert "File name too long" in error(command, out)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- the last resort


def test_an_error_that_nothing_foresaw_is_one_line_and_a_file(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise AssertionError("one\x1b[31m thing\nand another")

    monkeypatch.setattr("gs_train.commands.export.write_rows_of_ranks", bug)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    capsys.readouterr()
    assert main(["export", str(run)]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("gs-train: error: AssertionError: one\\x1b[31m thing - ")
    assert f"report it with {run}/traceback.txt; {run}/checkpoints/step_000004 is there" in line
    assert "AssertionError: one" in (run / "traceback.txt").read_text()
    (run / "traceback.txt").unlink()
    (run / "traceback.txt").mkdir()  # so that it cannot be written
    assert main(["export", str(run)]) == 1
    (written,) = tmp_path.glob("gs-train-traceback-*.txt")
    assert str(written) in capsys.readouterr().err
    assert "and another" in written.read_text()


@pytest.mark.parametrize("error_raised", [KeyboardInterrupt(), SystemExit(7)])
def test_who_wants_the_process_to_end_ends_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, error_raised: BaseException
) -> None:
    def end(*_: object, **__: object) -> None:
        raise error_raised

    monkeypatch.setattr("gs_train.commands.export.write_rows_of_ranks", end)
    with pytest.raises(type(error_raised)):
        main(["export", str(run)])
    assert not (run / "traceback.txt").exists()
