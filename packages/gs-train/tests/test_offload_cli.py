# SPDX-License-Identifier: Apache-2.0
"""Runs of the command line with the scene in more than one memory."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gs_train.placing
import gs_train.run
import gs_train.visible
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.engine.caps import Caps
from gs_train.engine.model import OffloadedGaussians
from gs_train.gaussians import Gaussians
from gs_train.ply import load_ply
from gs_train.run import Run

STEPS = 24
OPTIONS = [
    *("--renderer", "cpu", "--steps", str(STEPS), "--checkpoint-every", "10", "--seed", "3"),
    *("--adc.refine-start", "4", "--adc.refine-every", "6", "--adc.reset-every", "100"),
    *("--adc.grow-grad2d", "1e-5", "--cap", "8200", "--sh-every", "8", "--resort-every", "12"),
]
OFFLOADED = ["naive", "clm", "gs-scale", "best"]
PLY = Path("point_cloud") / f"iteration_{STEPS}" / "point_cloud.ply"


@pytest.fixture(scope="module")
def fitted(
    tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int], Path]:
    """A run of a preset and a batch size, made once; not to be written to."""
    root = tmp_path_factory.mktemp("fitted")

    def run(preset: str, batch: int) -> Path:
        out = root / f"{preset}-{batch}"
        if not out.exists():
            options = [*OPTIONS, "--offload", preset, "--batch-size", str(batch)]
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
    assert ours["n_gaussians"] == theirs["n_gaussians"] == 8200
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
    monkeypatch.setattr(gs_train.run, "caps_of", lambda *_: Caps(device=1 << 20, host=1 << 40))

    def refused(*_: object) -> Tensor:
        raise AssertionError("read() of appearance, which changes rows that sleep")

    monkeypatch.setattr(OffloadedGaussians, "read", refused)
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
    assert isinstance(model, OffloadedGaussians)
    now = model.read("sh0")
    assert not torch.equal(now[asleep], stored["model/sh0"][asleep])
    assert torch.equal(load_ply(out / PLY)["sh0"], now)


def test_a_model_that_fits_is_looked_at_on_the_device(fitted: Callable[[str, int], Path]) -> None:
    device = torch.device("cpu")
    assert isinstance(Run.open(fitted("clm", 2)).model(device), Gaussians)
    assert isinstance(Run.open(fitted("naive", 2)).model(device), Gaussians)


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("preset", OFFLOADED)
def test_stopped_and_resumed_it_ends_with_the_same_bits(
    fitted: Callable[[str, int], Path],
    tiny_capture: Path,
    preset: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    batch = _batch(preset)
    options = [*OPTIONS, "--offload", preset, "--batch-size", str(batch)]
    _stop_at(monkeypatch, step=20)
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 130
    monkeypatch.undo()
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume"]) == 0
    _assert_same(_tensors(out), _tensors(fitted(preset, batch)))
    assert (out / PLY).read_bytes() == (fitted(preset, batch) / PLY).read_bytes()


def _stop_at(monkeypatch: pytest.MonkeyPatch, *, step: int) -> None:
    import gs_train.loop

    original = gs_train.loop.Trainer.train_step

    def stopping(self: gs_train.loop.Trainer, *arguments: object) -> object:
        if self.step == step - 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(gs_train.loop.Trainer, "train_step", stopping)
