# SPDX-License-Identifier: Apache-2.0
"""What a run was trained on: remembered, compared, and named where it has changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captures import LENS, PINHOLE, photograph, write_capture

from gs_train.checkpoint import latest_checkpoint, open_checkpoint
from gs_train.cli import main
from gs_train.data import Capture, PhotoReader, load_capture
from gs_train.data.colmap_records import Camera
from gs_train.data.fingerprint import Changes, changes

NAMES = [f"{i:02}.png" for i in range(6)]
POINTS = np.random.default_rng(0).normal([0, 0, 4], 1, (60, 3))


def captured(tmp_path: Path, camera: Camera = PINHOLE) -> Path:
    return write_capture(tmp_path / "data", [(name, camera) for name in NAMES], points=POINTS)


def loaded(folder: Path) -> Capture:
    return load_capture(folder, cache_dir=folder.parent / "cache")


def trained_on(capture: Capture) -> dict[str, object]:
    """The fingerprint after every training photograph was decoded, as a checkpoint keeps it."""
    reader = PhotoReader(capture)
    for index in capture.train:
        reader.load(index)
    plain: dict[str, object] = json.loads(json.dumps(reader.fingerprint()))
    return plain


def rewrite(path: Path, *, flip: bool, seconds: int) -> None:
    """Other bytes of the same number behind the image, or the same bytes, at another time."""
    data, time_ns = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    if flip:
        data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(time_ns, time_ns + seconds * 10**9))


def test_the_same_capture_has_not_changed(tmp_path: Path) -> None:
    folder = captured(tmp_path)
    assert changes(trained_on(loaded(folder)), loaded(folder)) == Changes()


@pytest.mark.parametrize("camera", [PINHOLE, LENS])
def test_a_copy_with_other_times_has_not_changed(camera: Camera, tmp_path: Path) -> None:
    folder = captured(tmp_path, camera)
    saved = trained_on(loaded(folder))
    copied = Path(shutil.copytree(folder, tmp_path / "copy/data", copy_function=shutil.copyfile))
    for path in (copied / "images").iterdir():
        rewrite(path, flip=False, seconds=60)
    assert changes(saved, loaded(copied)) == Changes()


def test_photographs_of_another_size_or_crc_are_named(tmp_path: Path) -> None:
    folder = captured(tmp_path)
    saved = trained_on(loaded(folder))
    rewrite(folder / "images/02.png", flip=True, seconds=1)
    with (folder / "images/04.png").open("ab") as file:
        file.write(b"more")
    assert changes(saved, loaded(folder)) == Changes(photographs=("02.png", "04.png"))


def test_a_photograph_that_was_not_decoded_yet_may_change_its_bytes(tmp_path: Path) -> None:
    folder = captured(tmp_path)
    saved = PhotoReader(loaded(folder)).fingerprint()
    rewrite(folder / "images/02.png", flip=True, seconds=1)
    assert changes(saved, loaded(folder)) == Changes()


def test_a_changed_photograph_behind_a_made_image_is_told(tmp_path: Path) -> None:
    folder = captured(tmp_path, LENS)
    saved = trained_on(loaded(folder))
    path = folder / "images/02.png"
    n_bytes = path.stat().st_size
    Image.fromarray(255 - photograph(LENS, 2)).save(path)
    path.write_bytes(path.read_bytes()[:n_bytes].ljust(n_bytes, b"\0"))
    os.utime(path, ns=(0, 0))
    found = changes(saved, loaded(folder))
    assert (found.photographs, found.remade) == ((), ("02.png",))


@pytest.mark.parametrize("what", ["points", "colors"])
def test_other_points_are_told(what: str, tmp_path: Path) -> None:
    folder = captured(tmp_path)
    saved = trained_on(loaded(folder))
    path = folder / "sparse/0/points3D.bin"
    data = bytearray(path.read_bytes())
    data[8 + 8 if what == "points" else 8 + 32] ^= 1
    path.write_bytes(data)
    assert changes(saved, loaded(folder)) == Changes(has_other_points=True)


@pytest.mark.parametrize("offload", ["none", "tide"])
def test_resume_and_eval_name_a_changed_photograph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], offload: str
) -> None:
    folder, out = captured(tmp_path), tmp_path / "run"
    command = ["fit", str(folder), "--out", str(out), "--renderer", "cpu", "--offload", offload]
    command += ["--strategy", "fixed"] if offload == "tide" else []
    assert main([*command, "--steps", "8"]) == 0
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    photographs = open_checkpoint(newest).state["data"]["photographs"]
    trained = [crc for _, _, crc in photographs if crc is not None]
    assert len(trained) == 5  # all but the held-out one
    rewrite(folder / "images/03.png", flip=True, seconds=1)
    capsys.readouterr()
    for again in ([*command, "--resume", "--steps", "9"], ["eval", str(out)]):
        assert main(again) == 2
        assert "got changed ones: 1 (first 03.png); put them back" in capsys.readouterr().err
    rewrite(folder / "images/03.png", flip=True, seconds=1)
    (folder / "sparse/0/points3D.bin").write_bytes(
        (folder / "sparse/0/points3D.bin").read_bytes().replace(bytes([200] * 3), bytes([9] * 3))
    )
    assert main([*command, "--resume", "--steps", "9"]) == 0
    assert "other points than the run started from" in capsys.readouterr().err
