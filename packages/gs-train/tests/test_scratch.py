# SPDX-License-Identifier: Apache-2.0
"""Runs whose photographs memory cannot hold: the file of pixels changes no bit, and it goes."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from made_up import RATES
from torch import Tensor

import gs_train
from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data import (
    Capture,
    KeptPhotographs,
    PhotoReader,
    capture_from_arrays,
    load_capture,
    read_image,
)
from gs_train.data.pixel_file import PAGE, PixelFile
from gs_train.machine.interrupt import Interrupted
from gs_train.options.presets import PRESETS
from gs_train.runs.disk import open_scratch
from gs_train.runs.feed import ImageFeed
from gs_train.runs.folder import RunFolder
from gs_train.sizing.photographs import decoded_bytes, scratch_bytes, training_sizes

IMAGE = 3 * 64 * 48
PLACE = 3 * PAGE
N_TRAIN = 10
STEPS = 12
OPTIONS: dict[str, Any] = {
    "steps": STEPS,
    "renderer": "cpu",
    "batch_size": 3,
    "seed": 5,
    "cap": 3000,
    "checkpoint_every": 4,
}
LITTLE = str(3 * IMAGE)  # of ten photographs


@pytest.fixture(scope="module")
def in_memory(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What a run ends with whose photographs fit memory."""
    out = tmp_path_factory.mktemp("memory") / "run"
    gs_train.fit(data=tiny_capture, out=out, **OPTIONS)
    return state(out)


def state(out: Path) -> dict[str, Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    checkpoint = load_checkpoint(newest)
    assert checkpoint.step == STEPS
    return checkpoint.tensors


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.fixture
def capture(tiny_capture: Path, tmp_path: Path) -> Capture:
    return load_capture(tiny_capture, cache_dir=tmp_path / "none")


def no_room_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage

    def usage(path: Path) -> Any:
        return real(path) if path != folder else shutil._ntuple_diskusage(10, 10, 0)

    monkeypatch.setattr(shutil, "disk_usage", usage)


# ------------------------------------------------------------------------------ bits and remains


def test_photographs_from_a_file_train_to_the_bits_of_those_in_memory(
    tiny_capture: Path,
    in_memory: dict[str, Tensor],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    left = []

    def look(report: gs_train.StepReport) -> None:
        left.append([*scratch.iterdir(), *out.glob("tmp*")])

    gs_train.fit(
        data=tiny_capture, out=out, on_step=look, **OPTIONS, image_cache=LITTLE, scratch=scratch
    )
    assert_same(state(out), in_memory)
    assert left == [[]] * STEPS  # not even while it runs
    said = capsys.readouterr().err
    assert (
        f"90.0 KiB of decoded photographs are more than --image-cache {LITTLE}: each photograph is "
        f"decoded once, into a file of 120.0 KiB in {scratch} that goes when the run ends\n"
    ) in said


def test_without_a_folder_the_file_is_in_the_runs(
    tiny_capture: Path,
    in_memory: dict[str, Tensor],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual, out = tmp_path / "usual", tmp_path / "run"
    gs_train.fit(data=tiny_capture, out=usual, **OPTIONS)
    gs_train.fit(data=tiny_capture, out=out, **OPTIONS, image_cache="1")
    assert f"120.0 KiB in {out} that goes" in capsys.readouterr().err
    assert_same(state(out), in_memory)
    names = [sorted(str(p.relative_to(root)) for p in root.rglob("*")) for root in (usual, out)]
    assert [n for n in names[0] if "tfevents" not in n] == [
        n for n in names[1] if "tfevents" not in n
    ]


def test_a_disk_without_room_decodes_each_time_to_the_same_bits(
    tiny_capture: Path,
    in_memory: dict[str, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    no_room_in(scratch, monkeypatch)
    out = tmp_path / "run"
    gs_train.fit(data=tiny_capture, out=out, **OPTIONS, image_cache=LITTLE, scratch=scratch)
    assert_same(state(out), in_memory)
    said = capsys.readouterr().err
    assert said.count("--scratch") == 1
    assert (
        f"and {scratch} has 0 B free beside checkpoints and results, not 120.0 KiB, so that "
        "photographs are decoded again and again; --scratch names another folder\n"
    ) in said


@pytest.mark.parametrize("fault", ["full", "unreadable"])
def test_a_disk_that_fails_in_the_middle_changes_no_bit(
    fault: str,
    tiny_capture: Path,
    in_memory: dict[str, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, number = {"full": ("pwritev", errno.ENOSPC), "unreadable": ("preadv", errno.EIO)}[fault]
    works, n_calls = getattr(os, name), [0]

    def fails(*arguments: Any) -> int:
        n_calls[0] += 1
        if n_calls[0] > 4:
            raise OSError(number, os.strerror(number))
        return works(*arguments)

    monkeypatch.setattr(os, name, fails)
    out = tmp_path / "run"
    gs_train.fit(data=tiny_capture, out=out, **OPTIONS, image_cache=LITTLE)
    assert n_calls[0] > 4
    assert_same(state(out), in_memory)
    assert capsys.readouterr().err.count("the file of decoded photographs cannot be ") == 1


def test_a_run_that_was_stopped_goes_on_with_a_new_file(
    tiny_capture: Path, in_memory: dict[str, Tensor], tmp_path: Path
) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()

    def stop(report: gs_train.StepReport) -> None:
        if report.step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    options = {**OPTIONS, "image_cache": LITTLE, "scratch": scratch}
    with pytest.raises(Interrupted):
        gs_train.fit(data=tiny_capture, out=out, on_step=stop, **options)
    assert not list(scratch.iterdir())
    assert main(["fit", str(tiny_capture), "--out", str(out), "--resume"]) == 0
    assert_same(state(out), in_memory)
    assert not list(scratch.iterdir())


def test_an_error_leaves_no_file(tiny_capture: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def fail(report: gs_train.StepReport) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        gs_train.fit(
            data=tiny_capture,
            out=tmp_path / "run",
            on_step=fail,
            **OPTIONS,
            image_cache=LITTLE,
            scratch=scratch,
        )
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("kind", ["nowhere", "a file"])
def test_a_folder_that_is_none_is_an_input_error(
    kind: str, tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    if kind == "a file":
        place.touch()
    command = ["fit", str(tiny_capture), "--out", str(tmp_path / "run"), "--scratch", str(place)]
    assert main(command) == 2
    assert f"--scratch must be a folder, got {place}\n" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------- what is kept at all


def test_a_file_is_needed_for_photographs_that_memory_loses_and_a_run_needs_again(
    capture: Capture,
) -> None:
    all_bytes = N_TRAIN * IMAGE
    assert decoded_bytes(capture) == all_bytes
    assert scratch_bytes(capture, all_bytes - 1, N_TRAIN + 1) == N_TRAIN * PLACE
    assert scratch_bytes(capture, all_bytes, N_TRAIN + 1) == 0
    assert scratch_bytes(capture, 1, N_TRAIN) == 0  # each once
    held = dataclasses.replace(capture, in_memory=True)
    assert scratch_bytes(held, 1, 10**6) == 0


@pytest.mark.parametrize(("missing", "is_made"), [(0, True), (1, False)])
def test_room_is_left_for_checkpoints_and_results_of_all_rows_to_come(
    missing: int, is_made: bool, capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = gs_train.FitConfig(Path("data"), tmp_path, image_cache="1", keep_checkpoints=2)
    model = SimpleNamespace(sh_degree=3, n_rows=10, expected=1000)
    trainer: Any = SimpleNamespace(
        config=config, step=0, model=model, n_rows=10, n_ranks=1, preset=PRESETS["none"]
    )
    results = 1000 * 59 * 4 * (3 * 3 + 1)  # values and two moments in three checkpoints, the PLY
    free = results + N_TRAIN * PLACE - missing
    usage = shutil._ntuple_diskusage(free, 0, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    file, line = open_scratch(trainer, capture, RunFolder(tmp_path))
    assert (file is not None) == is_made
    assert line is not None
    if file is not None:
        file.close()


def test_only_arrays_that_the_caller_holds_are_in_memory(capture: Capture) -> None:
    images = [read_image(view) for view in capture.views]

    class Stored:
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> np.ndarray:
            return images[index]

    cameras = {
        "viewmats": np.stack([view.world_to_camera for view in capture.views]),
        "Ks": np.stack([view.K for view in capture.views]),
    }
    for given, in_memory in ((images, True), (np.stack(images), True), (Stored(), False)):
        assert capture_from_arrays(given, **cameras).in_memory == in_memory


def test_plan_names_the_bytes_on_disk(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RATES.save(tmp_path / "rates.json")
    command = ["plan", str(tiny_capture), "--renderer", "cpu"]
    command += ["--offload-rates", str(tmp_path / "rates.json")]
    found = {}
    for cache in ("4GiB", LITTLE):
        assert main([*command, "--image-cache", cache, "--json"]) == 0
        found[cache] = json.loads(capsys.readouterr().out)["scratch_bytes"]
    assert found == {"4GiB": 0, LITTLE: N_TRAIN * PLACE}
    assert main([*command, "--image-cache", LITTLE]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Photographs: 90.0 KiB decoded, of which 27.0 KiB are in memory; fit keeps all in a file "
        "of 120.0 KiB while it trains."
    ) in text
    assert main([*command]) == 0
    assert "Photographs:" not in capsys.readouterr().out


# ---------------------------------------------------------------------------------- on a device


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("every", [1, 3, 10**9])  # of how many images one is told to refill
@pytest.mark.parametrize("refills", [False, True])
def test_the_feed_delivers_a_file_in_the_order_of_need(
    refills: bool, every: int, device: str, capture: Capture, tmp_path: Path
) -> None:
    order = [index for k in range(5) for index in np.roll(capture.train, 3 * k).tolist()]
    with PixelFile(tmp_path, training_sizes(capture)) as file:
        kept = KeptPhotographs(PhotoReader(capture), file)
        with ImageFeed(
            order,
            kept.load,
            shown=kept.shown,
            device=torch.device(device),
            cache_bytes=3 * IMAGE,
            largest_bytes=IMAGE,
        ) as feed:
            for k, index in enumerate(order):
                found, image = feed.next(refill=k % every == 0)
                assert found == index
                if refills:
                    feed.refill()
                right = torch.from_numpy(read_image(capture.views[index]))
                assert torch.equal(image.cpu(), right)
            with pytest.raises(StopIteration):
                feed.next()
