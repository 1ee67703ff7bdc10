# SPDX-License-Identifier: Apache-2.0
"""A run whose ranks do not belong together ends on all of them before it begins."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_thread import one_threaded
from threads_as_ranks import ThreadWorld, outcomes

from gs_train.options.config import FitConfig
from gs_train.runs import training
from gs_train.world import World


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def _config(capture: Path, out: Path, **options: Any) -> FitConfig:
    return FitConfig(data=capture, out=out, steps=2, renderer="cpu", batch_size=2, **options)


def _said(configs: Sequence[FitConfig], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What each rank's `fit` ends with."""
    here = threading.local()

    @contextlib.contextmanager
    def on_all_ranks(*_: object) -> Iterator[World]:
        yield here.world

    def run(world: ThreadWorld) -> None:
        here.world = world
        training.fit(configs[world.rank])

    monkeypatch.setattr(training, "on_all_ranks", on_all_ranks)
    return {str(each) for each in outcomes(len(configs), run)}


@one_threaded
def test_ranks_with_different_folders(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        configs.append(_config(tiny_capture, tmp_path / name / "run"))
    (said,) = _said(configs, monkeypatch)
    assert said.startswith("rank 1: --out must be one folder for all ranks, ")
    assert os.listdir(tmp_path / "one") == os.listdir(tmp_path / "two") == []


@one_threaded
def test_ranks_with_different_options(
    tiny_capture: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(tiny_capture, out)
    configs = [config, replace(config, batch_size=3)]
    assert _said(configs, monkeypatch) == {"--batch-size must be the same on all ranks"}
    assert not out.exists()


@one_threaded
def test_ranks_with_different_photographs(
    tiny_capture: Path, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same names and poses, as on hosts that have copies."""
    other = Path(shutil.copytree(tiny_capture, tmp_path / "copy"))
    photograph = sorted((other / "images").iterdir())[2]
    photograph.write_bytes(photograph.read_bytes() + b"\n")
    capture_of_all = training.capture_of_all

    def own_copy(config: FitConfig, *others: Any) -> Any:
        world: World = others[-1]
        folder = other if world.rank else tiny_capture
        return capture_of_all(replace(config, data=folder), *others)

    monkeypatch.setattr(training, "capture_of_all", own_copy)
    config = _config(tiny_capture, out)
    (said,) = _said([config, config], monkeypatch)
    assert said.startswith("points and sizes of photographs must be the same on all ranks")
    assert not out.exists()
