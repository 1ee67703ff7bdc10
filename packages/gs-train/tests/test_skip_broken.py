# SPDX-License-Identifier: Apache-2.0
"""A run without its broken photographs: the next whole view stands in, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_captures import LENS, PINHOLE, TALL, damage_the_middle, photograph, write_capture

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.data import PhotoReader, load_capture
from gs_train.data.colmap_records import Camera
from gs_train.errors import InputError

NAMES = [f"{i:02}.png" for i in range(6)]
POINTS = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))


def captured(folder: Path, camera: Camera = PINHOLE) -> Path:
    return write_capture(folder, [(name, camera) for name in NAMES], points=POINTS)


def break_some(folder: Path) -> None:
    """One is missing, one is cut off, one is damaged within."""
    images = folder / "images"
    (images / "01.png").unlink()
    (images / "03.png").write_bytes((images / "03.png").read_bytes()[:-100])
    damage_the_middle(images / "05.png")


@pytest.mark.parametrize("camera", [PINHOLE, LENS])
def test_broken_photographs_are_told_and_the_split_stays(camera: Camera, tmp_path: Path) -> None:
    folder = captured(tmp_path / "data", camera)
    whole = load_capture(folder, cache_dir=tmp_path / "cache")
    break_some(folder)
    capture = load_capture(folder, cache_dir=tmp_path / "cache", skip_broken=True)
    assert (capture.train, capture.test) == (whole.train, whole.test)
    # What is damaged within is found early only where an image has to be made of it.
    assert capture.broken == ({1, 3, 5} if camera == LENS else {1, 3})
    assert capture.notes[0].startswith(
        "--skip-broken: of 6 photographs 1 missing (first 01.png), 1 broken (first 03.png: "
    )
    assert len(capture.notes) == (2 if camera == LENS else 1)


def test_the_next_whole_training_view_stands_in(tmp_path: Path) -> None:
    folder = captured(tmp_path / "data")
    break_some(folder)
    capture = load_capture(folder, cache_dir=tmp_path / "cache", skip_broken=True)
    reader = PhotoReader(capture, skip_broken=True)
    expected = {1: 2, 2: 2, 3: 4, 4: 4, 5: 2}  # 0 is held out; the first comes after the last
    for index in (5, 3, 1, 2, 4):
        np.testing.assert_array_equal(reader.load(index), photograph(PINHOLE, expected[index]))
        assert reader.shown(index) == expected[index]
    assert reader.fingerprint()["skipped"] == [1, 3, 5]
    (line,) = reader.news()
    assert line.startswith("--skip-broken: ")
    assert "05.png must be a readable image" in line
    assert reader.news() == []


def _circle_at(path: Path) -> None:
    """A link to itself, which the system fails to open: as a disk that errs, without one."""
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("camera", "change"),
    [(PINHOLE, _circle_at), (LENS, Path.unlink)],
    ids=["the system errs", "an undistorted image is gone"],
)
def test_what_may_come_back_is_never_skipped(
    camera: Camera, change: Callable[[Path], None], tmp_path: Path
) -> None:
    capture = load_capture(captured(tmp_path / "data", camera), cache_dir=tmp_path / "cache")
    reader = PhotoReader(capture, skip_broken=True)
    change(capture.views[1].path)
    with pytest.raises(InputError, match=r"01\.png.*; go on with --resume when it can be read$"):
        reader.load(1)
    assert reader.news() == []
    assert reader.fingerprint()["skipped"] == []


def test_what_was_skipped_stays_so_when_mended(tmp_path: Path) -> None:
    folder = captured(tmp_path / "data")
    mended = shutil.copytree(folder, tmp_path / "mended")
    break_some(folder)
    reader = PhotoReader(
        load_capture(folder, cache_dir=tmp_path / "cache", skip_broken=True), skip_broken=True
    )
    for index in (1, 5):
        reader.load(index)
    saved = json.loads(json.dumps(reader.fingerprint()))
    capture = load_capture(mended, cache_dir=tmp_path / "cache")
    again = PhotoReader(capture, skip_broken=True, saved=saved)
    again.load(5)
    assert again.shown(5) == 2
    assert again.fingerprint()["skipped"] == [1, 3, 5]


def test_a_photograph_broken_within_ends_a_run_without_the_option(tmp_path: Path) -> None:
    folder = captured(tmp_path / "data")
    damage_the_middle(folder / "images/05.png")
    reader = PhotoReader(load_capture(folder, cache_dir=tmp_path / "cache"))
    with pytest.raises(InputError, match=r"05.png must be .*; --skip-broken goes on without it"):
        reader.load(5)


def test_no_whole_photograph_left_is_an_error(tmp_path: Path) -> None:
    folder = captured(tmp_path / "data")
    for name in NAMES[1:]:
        damage_the_middle(folder / "images" / name)
    capture = load_capture(folder, cache_dir=tmp_path / "cache", skip_broken=True)
    with pytest.raises(InputError, match="every one of the 5 training photographs is broken"):
        PhotoReader(capture, skip_broken=True).load(1)
    for name in NAMES[1:]:
        (folder / "images" / name).unlink()
    with pytest.raises(InputError, match="left one photograph that can be read, got 5 broken of 6"):
        load_capture(folder, cache_dir=tmp_path / "cache", skip_broken=True)


def test_another_shape_is_refused_all_the_same(tmp_path: Path) -> None:
    folder = captured(tmp_path / "data")
    write_capture(tmp_path / "other", [("02.png", TALL)])
    shutil.copy(tmp_path / "other/images/02.png", folder / "images/02.png")
    with pytest.raises(InputError, match="1 of another shape than the camera"):
        load_capture(folder, cache_dir=tmp_path / "cache", skip_broken=True)


def fit(folder: Path, out: Path, steps: int, *options: str) -> int:
    command = ["fit", str(folder), "--out", str(out), "--renderer", "cpu", "--steps", str(steps)]
    return main([*command, "--checkpoint-every", "4", "--keep-checkpoints", "9", *options])


def state(out: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return load_checkpoint(newest).tensors


def test_a_run_goes_on_without_them_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = captured(tmp_path / "data")
    break_some(folder)
    damage_the_middle(folder / "images/00.png")  # which is held out
    out = tmp_path / "run"
    assert fit(folder, out, 8) == 2
    assert fit(folder, out, 8, "--skip-broken") == 0
    errors = capsys.readouterr().err
    assert errors.count("--skip-broken: of 6 photographs") == 1
    assert errors.count("05.png must be a readable image") == 1
    assert "--skip-broken: not scored: " in errors
    assert json.loads((out / "metrics.json").read_text())["images"] == []

    # The same run, stopped after four steps and resumed where the broken ones were mended.
    half = Path(shutil.copytree(out, tmp_path / "half"))
    shutil.rmtree(half / "checkpoints/step_000008")
    mended = captured(tmp_path / "mended")
    assert fit(mended, half, 8, "--resume") == 0
    resumed, whole = state(half), state(out)
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_run_that_a_photograph_ended_goes_on_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = captured(tmp_path / "data"), tmp_path / "run"
    assert fit(folder, out, 4) == 0
    for name in ("02.png", "03.png"):
        damage_the_middle(folder / "images" / name)
    capsys.readouterr()
    assert fit(folder, out, 14, "--resume") == 2  # ten steps see each of five photographs
    assert "; --skip-broken goes on without it" in capsys.readouterr().err
    assert fit(folder, out, 14, "--resume", "--skip-broken") == 0
    assert "--skip-broken: " in capsys.readouterr().err
