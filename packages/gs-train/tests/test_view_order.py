# SPDX-License-Identifier: Apache-2.0
"""``--order``: which views the steps of a run see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_thread import one_threaded
from torch import Tensor

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from gs_train.cli import main
from gs_train.data import load_capture
from gs_train.densify import AdcConfig
from gs_train.options.config import FitConfig
from gs_train.scene.view_order import view_sampler

STEPS, MIDDLE = 14, 9
TILES: dict[str, Any] = {"order": "tiles", "tile_views": 4}


def _fit(capture: Path, out: Path, **options: Any) -> dict[str, Tensor]:
    """The tensors of the last checkpoint, rows by key."""
    chosen = {"steps": STEPS, "batch_size": 2, "renderer": "cpu", "checkpoint_every": 0, **options}
    chosen["adc"] = AdcConfig(refine_start=4, refine_every=6, grow_grad2d=1e-5, cap=6000)
    gs_train.fit(data=capture, out=out, **chosen)
    return _saved(out)


def _saved(out: Path) -> dict[str, Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    tensors = load_checkpoint(newest).tensors
    del tensors["order/changes"]
    order = tensors["model/keys"].argsort()
    return {
        name: value[order] if value.ndim and len(value) == len(order) else value
        for name, value in tensors.items()
    }


def test_tiles_are_of_the_training_views_and_count_them(tiny_capture: Path, tmp_path: Path) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path)
    assert len(capture.train) == 10
    config = FitConfig(data=tiny_capture, out=tmp_path, batch_size=2, seed=3, **TILES)
    sampler = view_sampler(config, capture)
    centres = [np.linalg.inv(capture.views[i].world_to_camera)[:3, 3] for i in capture.train]
    tiles = sampler.tiles(0)
    assert len(tiles) > 2
    assert sorted(np.concatenate(tiles)) == list(range(10))

    def width(groups: list[np.ndarray]) -> float:
        return np.mean([np.std([centres[k] for k in of], axis=0).sum() for of in groups])

    shuffled = view_sampler(FitConfig(data=tiny_capture, out=tmp_path, seed=3), capture)
    any_pairs = [shuffled.epoch(e)[k : k + 2] for e in range(20) for k in range(0, 10, 2)]
    pairs = [sampler.batch(step) for step in range(100)]
    assert width(pairs) < 0.85 * width(any_pairs)


@one_threaded
def test_none_and_best_see_the_same_tiles_and_leave_the_same_bits(
    tiny_capture: Path, tmp_path: Path
) -> None:
    none = _fit(tiny_capture, tmp_path / "none", offload="none", **TILES)
    best = _fit(tiny_capture, tmp_path / "best", offload="best", **TILES)
    shuffled = _fit(tiny_capture, tmp_path / "shuffled", offload="none")
    assert best.keys() == none.keys()
    for name, value in none.items():
        assert torch.equal(best[name], value), name
    assert not torch.equal(shuffled["model/keys"], none["model/keys"]) or not torch.equal(
        shuffled["model/means"], none["model/means"]
    )


@one_threaded
def test_a_run_that_was_stopped_goes_on_in_the_same_order(
    tiny_capture: Path, tmp_path: Path
) -> None:
    whole = _fit(tiny_capture, tmp_path / "whole", **TILES)

    def stop(report: gs_train.StepReport) -> None:
        if report.step == MIDDLE:
            raise gs_train.StopTraining

    out = tmp_path / "stopped"
    with pytest.raises(gs_train.StopTraining):
        _fit(tiny_capture, out, on_step=stop, **TILES)
    gs_train.fit(out=out, resume=True)  # the order is the run's
    again = _saved(out)
    assert again.keys() == whole.keys()
    for name, value in whole.items():
        assert torch.equal(again[name], value), name


@pytest.fixture
def error(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The last line of a command that ends with 2."""

    def of(*command: object) -> str:
        capsys.readouterr()
        assert main([str(word) for word in command]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    return of


def test_another_order_does_not_go_on(
    tiny_capture: Path, tmp_path: Path, error: Callable[..., str]
) -> None:
    out = tmp_path / "run"
    _fit(tiny_capture, out, **TILES)
    again = ["fit", tiny_capture, "--out", out, "--resume"]
    said = error(*again, "--order", "tiles", "--tile-views", "6")
    assert "--resume must keep the run's options: tile_views was 4, got 6" in said
    config = out / "config.yml"
    there = config.read_text()
    config.write_text(there.replace("order: tiles", "order: shuffle").replace("views: 4", "views:"))
    assert "options: order was 'tiles', got 'shuffle'" in error(*again)


def test_a_run_of_an_earlier_version_goes_on_shuffled(
    tiny_capture: Path, tmp_path: Path, error: Callable[..., str]
) -> None:
    out = tmp_path / "run"
    _fit(tiny_capture, out)
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    saved = load_checkpoint(newest)
    for name in ("order", "tile_views"):
        del saved.state["recipe"][name]
    save_checkpoint(
        out / "checkpoints", step=STEPS, tensors=saved.tensors, state=saved.state, keep=1
    )
    config = out / "config.yml"
    lines = config.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(("order:", "tile_views:"))]
    assert len(kept) == len(lines) - 2
    config.write_text("".join(kept))
    again = ["fit", tiny_capture, "--out", out, "--resume", "--steps", STEPS + 1]
    assert "options: order was 'shuffle', got 'tiles'" in error(*again, "--order", "tiles")
    config.write_text("".join(kept) + "order: tiles\n")
    assert "options: order was 'shuffle', got 'tiles'" in error(*again)
    config.write_text("".join(kept))
    assert main([str(word) for word in again]) == 0
    assert "\norder: shuffle\n" in config.read_text()


def test_a_plan_looks_at_batches_of_tiles(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--offload-rates", str(tmp_path / "rates.json")]

    def workload(*options: str) -> dict[str, Any]:
        command = ["plan", str(tiny_capture), "--renderer", "cpu", "--batch-size", "2", *rates]
        command.append("--json")
        assert main([*command, *options]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["workload"]
        return found

    tiled, shuffled = workload("--order", "tiles", "--tile-views", "4"), workload()
    assert tiled["mean"]["union"] < shuffled["mean"]["union"]
    assert tiled["mean"]["union"] <= tiled["tile_rows"] < tiled["n_rows"]
    assert tiled["tile_batches"] == 2
    assert shuffled["tile_rows"] == 0
