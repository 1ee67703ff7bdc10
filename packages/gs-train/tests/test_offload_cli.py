# SPDX-License-Identifier: Apache-2.0
"""Runs of the command line with the scene in more than one memory."""

import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gs_train.runs.loop
import gs_train.runs.offload
import gs_train.runs.run_rows
import gs_train.runs.trainer
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data.colmap import largest, models_in, read_points
from gs_train.errors import InputError
from gs_train.files.ply import load_ply
from gs_train.options.config import FitConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.restore import Part, restored_tiered
from gs_train.rows.tiered import TieredGaussians
from gs_train.rows.visible import caught_up_chunks
from gs_train.runs.offload import cap_device_memory
from gs_train.runs.renderer import renderer_for
from gs_train.runs.resumption import restored_trainer
from gs_train.runs.run import Run
from gs_train.sizing.choice import Choice
from gs_train.sizing.memory import Caps

STEPS = 12
POINTS, CAP = 1500, 1600
OPTIONS = [
    *("--renderer", "cpu", "--steps", str(STEPS), "--checkpoint-every", "5", "--seed", "3"),
    *("--adc.refine-start", "4", "--adc.refine-every", "6", "--adc.reset-every", "100"),
    *("--adc.grow-grad2d", "1e-5", "--cap", str(CAP), "--sh-every", "8", "--resort-every", "0.05"),
]
OFFLOADED = ["naive", "clm", "gs-scale", "best"]
PLY = Path("point_cloud") / f"iteration_{STEPS}" / "point_cloud.ply"


@pytest.fixture(scope="module")
def points(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some points of the capture, so that a step takes little time."""
    where, colors = read_points(largest(models_in(tiny_capture)))
    rgb = ("red", "green", "blue")
    kinds = [*((name, "<f4") for name in "xyz"), *((name, "u1") for name in rgb)]
    records = np.zeros(POINTS, kinds)
    for names, values in (("xyz", where), (rgb, colors)):
        for column, name in enumerate(names):
            records[name] = values[:: len(values) // POINTS, column][:POINTS]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {POINTS}"]
    lines += [f"property float {name}" for name in "xyz"]
    lines += [f"property uchar {name}" for name in rgb]
    path = tmp_path_factory.mktemp("points") / "points.ply"
    path.write_bytes("\n".join([*lines, "end_header", ""]).encode() + records.tobytes())
    return path


@pytest.fixture(scope="module")
def fitted(
    tiny_capture: Path, points: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], Path]:
    """A run of a preset and a batch size, made once; not to be written to."""
    root = tmp_path_factory.mktemp("fitted")

    def run(preset: str, batch: int) -> Path:
        out = root / f"{preset}-{batch}"
        if not out.exists():
            options = [*OPTIONS, "--offload", preset, "--batch-size", str(batch)]
            options += ["--init", str(points)]
            assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 0
        return out

    return run


def _batch(preset: str) -> int:
    return 1 if preset == "gs-scale" else 2


def _tensors(out: Path) -> dict[str, Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return load_checkpoint(newest).tensors


def _assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, values in a.items():
        assert torch.equal(values, b[name]), name


@pytest.mark.parametrize("preset", OFFLOADED)
def test_a_preset_ends_where_training_on_the_device_does(
    fitted: Callable[[str, int], Path], preset: str
) -> None:
    out, reference = fitted(preset, _batch(preset)), fitted("none", _batch(preset))
    ours, theirs = (json.loads((p / "metrics.json").read_text()) for p in (out, reference))
    assert (ours["preset"], theirs["preset"]) == (preset, "none")
    assert abs(ours["psnr"] - theirs["psnr"]) <= 0.05
    assert ours["n_gaussians"] == theirs["n_gaussians"] == CAP
    assert ours["peak_host_bytes"] > 0 == ours["peak_device_bytes"]


@pytest.mark.parametrize("preset", OFFLOADED)
def test_a_finished_run_is_scored_rendered_and_exported(
    fitted: Callable[[str, int], Path],
    preset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And never is an attribute of all rows brought to where the views are rendered."""
    out = tmp_path / "run"
    shutil.copytree(fitted(preset, _batch(preset)), out)
    before = json.loads((out / "metrics.json").read_text())
    monkeypatch.setattr(
        gs_train.runs.run_rows, "caps_of", lambda *_: Caps(device=1 << 20, host=1 << 40)
    )

    def refused(*_: object) -> Tensor:
        raise AssertionError("read() of appearance, which changes rows that sleep")

    monkeypatch.setattr(TieredGaussians, "read", refused)
    assert main(["eval", str(out), "--renderer", "cpu"]) == 0
    after = json.loads((out / "metrics.json").read_text())
    assert after == before
    assert main(["render", str(out), "--renderer", "cpu", "--path", "test"]) == 0
    assert len(list((out / "renders" / "test").glob("*.png"))) == 2
    assert main(["export", str(out), "--layout", "inria", "--to", str(tmp_path / "i")]) == 0
    assert (tmp_path / "i" / PLY).read_bytes() == (out / PLY).read_bytes()
    assert main(["export", str(out), "--layout", "gsplat", "--to", str(tmp_path / "g")]) == 0
    saved = torch.load(tmp_path / "g" / "ckpts" / f"ckpt_{STEPS - 1}_rank0.pt", weights_only=True)
    rows = load_ply(tmp_path / "g" / "ply" / f"point_cloud_{STEPS}.ply")
    _assert_same(saved["splats"], rows)


def test_what_is_written_of_rows_that_sleep_is_their_present_value(
    fitted: Callable[[str, int], Path], tmp_path: Path
) -> None:
    out = fitted("best", 2)
    run = Run.open(out)
    stored = _tensors(out)
    asleep = stored["model/appearance.last_step"] < STEPS
    assert asleep.any()
    model = run.model(torch.device("cpu"))
    assert isinstance(model, TieredGaussians)
    now = model.read("sh0")
    assert not torch.equal(now[asleep], stored["model/sh0"][asleep])
    assert torch.equal(load_ply(out / PLY)["sh0"], now)


def test_a_model_that_fits_is_looked_at_on_the_device(fitted: Callable[[str, int], Path]) -> None:
    device = torch.device("cpu")
    assert isinstance(Run.open(fitted("clm", 2)).model(device), Gaussians)
    assert isinstance(Run.open(fitted("naive", 2)).model(device), Gaussians)


@pytest.mark.parametrize("preset", OFFLOADED)
def test_stopped_and_resumed_it_ends_with_the_same_bits(
    fitted: Callable[[str, int], Path],
    tiny_capture: Path,
    points: Path,
    preset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    batch = _batch(preset)
    options = [*OPTIONS, "--offload", preset, "--batch-size", str(batch)]
    options += ["--init", str(points)]
    _stop_at(monkeypatch, step=8)  # where the run that is not stopped has no checkpoint
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 130
    monkeypatch.undo()
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume"]) == 0
    _assert_same(_tensors(out), _tensors(fitted(preset, batch)))
    assert (out / PLY).read_bytes() == (fitted(preset, batch) / PLY).read_bytes()


def _stop_at(monkeypatch: pytest.MonkeyPatch, *, step: int) -> None:
    original = gs_train.runs.loop.Trainer.train_step

    def stopping(self: gs_train.runs.loop.Trainer, *arguments: Any, **options: Any) -> object:
        if self.step == step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments, **options)

    monkeypatch.setattr(gs_train.runs.loop.Trainer, "train_step", stopping)


# ---------------------------------------------------------------------- other presets, and caps


@pytest.mark.parametrize(
    ("saved", "wanted"), [("none", "best"), ("naive", "clm"), ("clm", "none"), ("best", "gs-scale")]
)
def test_a_preset_reads_the_rows_and_moments_of_another(
    fitted: Callable[[str, int], Path], saved: str, wanted: str
) -> None:
    run = Run.open(fitted(saved, _batch(wanted)))
    config = dataclasses.replace(run.config, offload=wanted)
    choice = Choice(PRESETS[wanted], UNLIMITED, "as tested")
    ours = restored_trainer(run, renderer_for(config), config, choice).tensors()
    theirs = run.checkpoint.read()
    _assert_same(ours, theirs)


def test_a_run_goes_on_with_another_preset(
    fitted: Callable[[str, int], Path],
    tiny_capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    shutil.copytree(fitted("none", 2), out)
    command = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--offload", "best"]
    trace = tmp_path / "trace.json"
    assert main([*command, "--trace", str(trace)]) == 0
    # Nothing is left to do, but for writing the results of what trained it.
    assert f"no steps are left to train, and {trace} is not written" in capsys.readouterr().err
    assert not trace.exists()
    assert json.loads((out / "metrics.json").read_text())["preset"] == "none"
    assert (out / PLY).read_bytes() == (fitted("none", 2) / PLY).read_bytes()
    assert main([*command, "--steps", str(STEPS + 2)]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["steps"], metrics["preset"]) == (STEPS + 2, "best")


@pytest.mark.parametrize("wanted", ["naive", "clm"])
def test_rows_that_sleep_are_woken_for_presets_that_know_no_sleep(
    fitted: Callable[[str, int], Path], tiny_capture: Path, tmp_path: Path, wanted: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(fitted("best", 2), out)
    run = Run.open(out)
    before = run.model(torch.device("cpu"))
    command = ["fit", str(tiny_capture), "--out", str(out), "--resume", "--offload", wanted]
    assert main([*command, "--steps", str(STEPS)]) == 0  # nothing is left to train
    trainer = gs_train.runs.trainer.Trainer.restore(
        run.config,
        run.checkpoint,
        step=STEPS,
        renderer=renderer_for(run.config),
        extent=run.frame.extent,
        preset=PRESETS[wanted],
    )
    for name in NAMES:
        assert torch.equal(trainer.model.read(name), before.read(name)), name
    assert main([*command, "--steps", str(STEPS + 2)]) == 0


def _caps(monkeypatch: pytest.MonkeyPatch, device: int) -> None:
    caps = Caps(device=device, host=1 << 40)
    monkeypatch.setattr(gs_train.runs.offload, "caps_of", lambda *_: caps)


def _limits_seen(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """Those that runs from now on are given."""
    seen: list[Limits] = []
    original = gs_train.runs.trainer.make_backend

    def noted(*arguments: object, **options: object) -> object:
        seen.append(options["limits"])  # type: ignore[arg-type]
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(gs_train.runs.trainer, "make_backend", noted)
    return seen


def test_auto_says_what_it_takes_and_why_and_stays_with_it(
    tiny_capture: Path,
    points: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["fit", str(tiny_capture), "--renderer", "cpu", "--init", str(points)]
    command += ["--cap", "8000", "--out"]
    assert main([*command, str(tmp_path / "a"), "--steps", "1"]) == 0
    assert "offload none: all of it fits on the device (" in capsys.readouterr().err
    _caps(monkeypatch, 7 << 20)  # less than 944 bytes for each of 8000 rows
    assert main([*command, str(tmp_path / "b"), "--steps", "1"]) == 0
    assert "offload best: not all of it fits on the device (" in capsys.readouterr().err
    monkeypatch.undo()
    assert main([*command, str(tmp_path / "b"), "--resume", "--steps", "2"]) == 0
    assert "offload best: as before" in capsys.readouterr().err
    assert json.loads((tmp_path / "b" / "metrics.json").read_text())["preset"] == "best"


def test_views_are_cut_where_the_cap_asks_for_it_and_again_after_a_stop(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _limits_seen(monkeypatch)
    command = ["fit", str(tiny_capture), "--renderer", "cpu", "--cap", "8000", "--out"]
    command += [str(tmp_path / "run"), "--offload", "best"]
    with monkeypatch.context() as narrow:
        _caps(narrow, 15 << 19)
        assert main([*command, "--steps", "1"]) == 0
    assert main([*command, "--resume", "--steps", "2"]) == 0
    assert seen[0].rows is not None
    assert 0 < seen[0].rows < 8000
    assert seen == [seen[0]] * 2


def test_a_run_goes_on_with_less_memory_than_it_began_with(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = _limits_seen(monkeypatch)
    command = ["fit", str(tiny_capture), "--renderer", "cpu", "--cap", "8000", "--out"]
    command += [str(tmp_path / "run"), "--offload", "best"]
    assert main([*command, "--steps", "1"]) == 0
    assert seen[0].rows is None
    with monkeypatch.context() as narrow:
        _caps(narrow, 15 << 19)
        assert main([*command, "--resume", "--steps", "2"]) == 0
    assert "with fewer rows on the device than before" in capsys.readouterr().err
    assert seen[1].rows is not None
    assert 0 < seen[1].rows < 8000


@pytest.mark.parametrize("failed", [3, 6])
@pytest.mark.parametrize("kind", [MemoryError, torch.cuda.OutOfMemoryError])
def test_when_memory_runs_out_the_last_checkpoint_is_left(
    tiny_capture: Path,
    points: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failed: int,
    kind: type[Exception],
) -> None:
    out, name = tmp_path / "run", "device" if kind is torch.cuda.OutOfMemoryError else "host"
    command = ["fit", str(tiny_capture), "--out", str(out), *OPTIONS, "--init", str(points)]
    step = gs_train.runs.trainer.Trainer.train_step

    def failing(self: gs_train.runs.trainer.Trainer, *arguments: Any, **options: Any) -> object:
        if self.step + 1 == failed:
            raise kind("no room for 7 bytes")
        return step(self, *arguments, **options)

    with monkeypatch.context() as short:
        short.setattr(gs_train.runs.trainer.Trainer, "train_step", failing)
        assert main([*command, "--offload", "best"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{name} memory ran out after step {failed - 1}, with 1,5" in message
    assert "(no room for 7 bytes)" in message
    assert f"a larger --{name}-memory" in message
    assert ("a smaller --cap" in message) == (failed < 5), "--resume keeps it"
    if failed < 5:  # checkpoints are written every five steps
        assert "no checkpoint yet" in message
        assert not (out / "checkpoints").exists()
        assert main([*command, "--offload", "best"]) == 0
    else:
        assert "checkpoint of step 5" in message
        assert main(["fit", str(tiny_capture), "--out", str(out), "--resume"]) == 0


def test_too_small_caps_are_refused_with_the_smallest_that_do(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["fit", str(tiny_capture), "--out", str(out), "--renderer", "cpu"]
    assert main([*command, "--device-memory", "1MiB", "--offload", "best"]) == 2
    message = capsys.readouterr().err
    assert "8,000 Gaussians do not fit into --device-memory 1.0 MiB" in message
    assert "with --offload best" in message
    assert not out.exists()


def test_looking_at_a_model_in_training_changes_no_bit(
    fitted: Callable[[str, int], Path], tiny_capture: Path
) -> None:
    """Rows that sleep are shown as they would be awake, and sleep on."""
    run = Run.open(fitted("best", 2))
    device = torch.device("cpu")
    model = restored_tiered(Part(run.checkpoint, "model/"), device=device, semantics="deferred")
    before = {name: value.clone() for name, value in model.tensors().items()}
    assert (before["appearance.last_step"] < STEPS).any()
    awake = run.model(device)
    ids = torch.arange(0, model.n_rows, 3)
    shown = model.snapshot(ids)
    chunks = list(caught_up_chunks(model, 1000))
    for name in NAMES:
        assert torch.equal(shown[name], awake.read(name, ids)), name
        assert torch.equal(torch.cat([chunk[name] for chunk in chunks]), awake.read(name)), name
    _assert_same(model.tensors(), before)


@pytest.mark.gpu
def test_the_cap_on_device_memory_is_a_hard_one(tiny_capture: Path) -> None:
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved(device)  # such as the workspace of a matrix product before
    config = FitConfig(data=tiny_capture, out=tiny_capture, device_memory=f"{(held >> 20) + 64}MiB")
    try:
        cap_device_memory(config, device)
        torch.empty(32 << 20, dtype=torch.uint8, device=device)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(128 << 20, dtype=torch.uint8, device=device)
        too_much = FitConfig(data=tiny_capture, out=tiny_capture, device_memory="64TiB")
        with pytest.raises(InputError, match="--device-memory must be at most the"):
            cap_device_memory(too_much, device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
